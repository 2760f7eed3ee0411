/* notes: see notes.h. */
#include "agent/notes.h"

#include "agent/recorder.h"
#include "table/arena.h"
#include "table/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The same columns as in src/engine/shared/known.c. */
enum { ALERT_TIMESTAMP, ALERT_KIND, ALERT_SEVERITY, ALERT_SUBJECT, ALERT_STEP, ALERT_VALUE, ALERT_MESSAGE };
static const struct pb_column alert_columns[] = {
    [ALERT_TIMESTAMP] = {"timestamp", PB_TIMESTAMP, 0, NULL, "when it was noticed, UTC"},
    [ALERT_KIND] = {"kind", PB_STRING, 0, NULL, "hang, resumed, nan, infinity"},
    [ALERT_SEVERITY] = {"severity", PB_STRING, 0, NULL, "error, warning or note"},
    [ALERT_SUBJECT] = {"subject", PB_STRING, 0, NULL, "what it is about, such as a variable"},
    [ALERT_STEP] = {"step", PB_I64, 0, NULL, "step of python.torch_step; NULL: not known"},
    [ALERT_VALUE] = {"value", PB_F64, 0, NULL, "the value that it is about"},
    [ALERT_MESSAGE] = {"message", PB_STRING, 0, NULL, "what is wrong, for a person"},
};

enum { LOG_TIMESTAMP, LOG_SOURCE, LOG_MESSAGE };
static const struct pb_column log_columns[] = {
    [LOG_TIMESTAMP] = {"timestamp", PB_TIMESTAMP, 0, NULL, "when, UTC"},
    [LOG_SOURCE] = {"source", PB_STRING, 0, NULL, "part of the agent"},
    [LOG_MESSAGE] = {"message", PB_STRING, 0, NULL, "what it did by itself, and why"},
};

static void put_text(struct pb_row *row, unsigned column, const char *text)
{
    if (text)
        pb_set_string(row, column, text, strlen(text));
}

void pb_note_alert(const struct pb_alert *alert)
{
    static struct pb_known_table known;
    const struct pb_table_spec spec = {.name = "python.alerts",
                                       .comment = "what is wrong with the job, as the agent noticed it",
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
    const struct pb_table_spec spec = {.name = "probing.log",
                                       .comment = "what the agent did by itself, and why",
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
