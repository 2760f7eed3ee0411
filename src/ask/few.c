/* few: see few.h. */
#include "ask/few.h"

#include "ask/sources.h"
#include "base/cleanup.h"
#include "base/err.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_MS = 30000 };

static int take_rows(const struct pb_batch *batch, struct pb_few *few)
{
    _cleanup_(pb_row_text_done) struct pb_row_text row = {0};
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < batch->nrows && few->n < PB_FEW_ROWS; i++, few->n++) {
        r = pb_row_text_take(&row, batch, i);
        for (unsigned k = 0; r == 0 && k < batch->ncolumns && k < PB_FEW_CELLS; k++)
            snprintf(few->cells[few->n][k], sizeof(few->cells[0][0]), "%.*s", (int)row.cells[k].length,
                     row.cells[k].text);
    }
    return r;
}

int pb_few_ask(const struct pb_query_sources *sources, const char *sql, struct pb_few *ret,
               struct pb_err *err)
{
    struct pb_sql_event event;
    struct pb_sql *query;
    struct pb_sql_query q = {.sql = sql,
                             .length = strlen(sql),
                             .sources = sources->at,
                             .nsources = sources->n,
                             .archive = sources->archive,
                             .timeout_ms = TIMEOUT_MS};

    ret->n = 0;
    int r = pb_sql_open(&q, &query, err);
    if (r < 0)
        return r;
    while ((r = pb_sql_next(query, &event, err)) > 0)
        if (event.kind == PB_SQL_EVENT_BATCH && (r = take_rows(&event.batch, ret)) < 0)
            break;
    pb_sql_close(query);
    return r;
}

double pb_few_number(const struct pb_few *few, unsigned row, unsigned cell)
{
    return row < few->n && few->cells[row][cell][0] ? strtod(few->cells[row][cell], NULL) : NAN;
}

int64_t pb_few_count(const struct pb_few *few, unsigned row, unsigned cell)
{
    double value = pb_few_number(few, row, cell);

    return isnan(value) ? -1 : (int64_t)value;
}
