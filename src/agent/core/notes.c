/* notes: see notes.h. */
#include "agent/core/notes.h"

#include "agent/core/recorder.h"
#include "control/tables.def"
#include "table/arena.h"
#include "table/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ALERT_ID(id, ...) ALERT_##id,
enum { PB_TABLE_ALERTS(PB_NOTHING, ALERT_ID) };
static const struct pb_column alert_columns[] = {PB_COLUMNS_OF(PB_TABLE_ALERTS)};

#define LOG_ID(id, ...) LOG_##id,
enum { PB_TABLE_LOG(PB_NOTHING, LOG_ID) };
static const struct pb_column log_columns[] = {PB_COLUMNS_OF(PB_TABLE_LOG)};

static void put_text(struct pb_row *row, unsigned column, const char *text)
{
    if (text)
        pb_set_string(row, column, text, strlen(text));
}

void pb_note_alert(const struct pb_alert *alert)
{
    static struct pb_known_table known;
    const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_ALERTS),
                                       .comment = PB_COMMENT_OF(PB_TABLE_ALERTS),
                                       .columns = alert_columns,
                                       .ncolumns = sizeof(alert_columns) / sizeof(alert_columns[0])};
    struct pb_row row;
    uint32_t inside;

    if (pb_recorder_begin_row(&spec, &known, &row, &inside) < 0)
        return;
    pb_set_timestamp(&row, ALERT_TIMESTAMP, pb_clock_mono());
    put_text(&row, ALERT_KIND, alert->kind);
    put_text(&row, ALERT_SEVERITY, alert->severity);
    put_text(&row, ALERT_SUBJECT, alert->subject);
    put_text(&row, ALERT_MESSAGE, alert->text);
    if (alert->step >= 0)
        pb_set_i64(&row, ALERT_STEP, alert->step);
    if (alert->has_value)
        pb_set_f64(&row, ALERT_VALUE, alert->value);
    pb_recorder_end_row(&row, inside);
}

void pb_note_log(const char *source, const char *format, ...)
{
    static struct pb_known_table known;
    const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_LOG),
                                       .comment = PB_COMMENT_OF(PB_TABLE_LOG),
                                       .columns = log_columns,
                                       .ncolumns = sizeof(log_columns) / sizeof(log_columns[0])};
    char text[300];
    struct pb_row row;
    uint32_t inside;
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (pb_recorder_begin_row(&spec, &known, &row, &inside) < 0)
        return;
    pb_set_timestamp(&row, LOG_TIMESTAMP, pb_clock_mono());
    put_text(&row, LOG_SOURCE, source);
    put_text(&row, LOG_MESSAGE, text);
    pb_recorder_end_row(&row, inside);
}
