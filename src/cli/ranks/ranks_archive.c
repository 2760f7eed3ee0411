/* ranks_archive: SQL over archives of many ranks, by DuckDB here: `cluster query --archive DIR`; see ranks.h
 * and cluster/archive_nodes.h. */
#include "base/cleanup.h"
#include "base/err.h"
#include "cli/query/query_run.h"
#include "cli/ranks/ranks.h"
#include "cluster/archive_nodes.h"

#include <stdio.h>
#include <string.h>

#define MOST_ROWS "20000000" /* of a table and node: nothing travels here but from one process to the next */

extern const struct pb_command pb_cmd_query;

/* The same call as of the query command. */
static void make_call(const struct pb_call *call, char timeout[32], struct pb_call *ret)
{
    static const char *const formats[] = {NULL, "json", "csv", "tsv"};

    *ret = *call;
    ret->command = &pb_cmd_query;
    memset(ret->values, 0, sizeof(ret->values));
    for (size_t i = 0; pb_cmd_query.options[i].name; i++) {
        const char *name = pb_cmd_query.options[i].name;
        ret->values[i] = strcmp(name, "archive") == 0    ? NULL
                         : strcmp(name, "format") == 0   ? formats[call->format]
                         : strcmp(name, "timeout") == 0  ? timeout
                         : strcmp(name, "max-rows") == 0 ? MOST_ROWS
                                                         : pb_call_option(call, name);
    }
    ret->nargs = call->nargs - 1;
    for (int i = 0; i < ret->nargs; i++)
        ret->args[i] = call->args[i + 1];
}

int pb_cluster_history(const struct pb_call *call, const char *program, struct pb_err *err)
{
    enum { TIMEOUT_MS = 30000 };
    _cleanup_(pb_cluster_done) struct pb_cluster c = {.way = PB_WAY_LOCAL};
    _cleanup_(pb_selection_done) struct pb_selection s = {0};
    const char *folder = pb_call_option(call, "archive");
    char timeout[32];
    struct pb_call query;

    if (!folder)
        return pb_fail(err, PB_USAGE,
                       "cluster query needs --archive DIR (for running ranks: probing -t cluster query)");
    if (call->nargs < 2)
        return pb_fail(err, PB_USAGE, "which query? (probing cluster query --archive DIR \"SELECT ...\")");
    strcpy(c.name, "archive");
    snprintf(c.program, sizeof(c.program), "%s", program);
    int r = pb_history_find(&c, folder, err);
    if (r == 0)
        r = pb_select(&c, NULL, NULL, &s, err);
    if (r < 0)
        return r;
    snprintf(timeout, sizeof(timeout), "%ums", call->timeout_given ? call->timeout_ms : TIMEOUT_MS);
    make_call(call, timeout, &query);
    return pb_query_over_cluster(&query, &c, &s, NULL, err);
}
