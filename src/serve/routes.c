/* routes: see routes.h. */
#include "serve/routes.h"

#include "serve/original.h"
#include "serve/routes_debug.h"

#include <string.h>

static const struct pb_form json[] = {{"json", "application/json", "--json", NULL}, {0}};
static const struct pb_form text[] = {{"text", "text/plain; charset=utf-8", NULL, NULL}, {0}};
static const struct pb_form rows[] = {
    {"json", "application/json", "--format=json", NULL},
    {"csv", "text/csv; charset=utf-8", "--format=csv", NULL},
    {"tsv", "text/tab-separated-values; charset=utf-8", "--format=tsv", NULL},
    {0}};
static const struct pb_form results[] = {
    {"json", "application/json", "--format=json", NULL},
    {"jsonl", "application/x-ndjson", "--format=jsonl", NULL},
    {"csv", "text/csv; charset=utf-8", "--format=csv", NULL},
    {"tsv", "text/tab-separated-values; charset=utf-8", "--format=tsv", NULL},
    {"table", "text/plain; charset=utf-8", "--format=table", NULL},
    {"arrow", "application/vnd.apache.arrow.stream", "--format=arrow", NULL},
    {"parquet", "application/vnd.apache.parquet", "--output=rows.parquet", "rows.parquet"},
    {0}};
static const struct pb_form profiles[] = {
    {"svg", "image/svg+xml", "--output=profile.svg", "profile.svg"},
    {"html", "text/html; charset=utf-8", "--output=profile.html", "profile.html"},
    {"folded", "text/plain; charset=utf-8", "--output=profile.folded", "profile.folded"},
    {"speedscope", "application/json", "--output=profile.json", "profile.json"},
    {"pprof", "application/octet-stream", "--output=profile.pb.gz", "profile.pb.gz"},
    {"perfetto", "application/octet-stream", "--output=profile.perfetto", "profile.perfetto"},
    {0}};
static const struct pb_form pprof[] = {
    {"pprof", "application/octet-stream", "--output=profile.pb.gz", "profile.pb.gz"}, {0}};
static const struct pb_form pages[] = {
    {"html", "text/html; charset=utf-8", "--output=profile.html", "profile.html"}, {0}};
static const struct pb_form only_json[] = {{"json", "application/json", "--format=json", NULL}, {0}};
static const struct pb_form lines[] = {{"json", "application/json", "--format=jsonl", NULL}, {0}};
static const struct pb_form events[] = {{"sse", "text/event-stream", NULL, NULL}, {0}};
static const struct pb_form frames[] = {{"frames", "application/octet-stream", NULL, NULL}, {0}};
static const struct pb_form metrics[] = {
    {"prometheus", "text/plain; version=0.0.4; charset=utf-8", "--format=tsv", NULL}, {0}};

#define SECONDS                                                                                              \
    {                                                                                                        \
        "seconds", "--duration", PB_PARAM_NUMBER, 0.1, 300, "how long to sample; 10 unless told", false      \
    }
#define NATIVE                                                                                               \
    {                                                                                                        \
        "native", "--native", PB_PARAM_FLAG, 0, 0, "frames of C and C++ too", false                          \
    }
#define PROFILE                                                                                              \
    SECONDS, NATIVE, {"rate", "--rate", PB_PARAM_NUMBER, 1, 1000, "samples a second", false},                \
        {"cpu", "--cpu", PB_PARAM_FLAG, 0, 0, "only threads that run", false},                               \
        {"gil", "--gil", PB_PARAM_FLAG, 0, 0, "only the thread that holds the GIL", false},                  \
        {"idle", "--idle", PB_PARAM_FLAG, 0, 0, "also threads that never run", false},                       \
        {"threads", "--threads", PB_PARAM_FLAG, 0, 0, "a level for each thread", false},                     \
    {                                                                                                        \
        "lines", "--lines", PB_PARAM_FLAG, 0, 0, "a function at two lines is two frames", false              \
    }
#define TIMEOUT                                                                                              \
    {                                                                                                        \
        "timeout", "--timeout", PB_PARAM_NUMBER, 0.1, 600, "give up after so many seconds", false            \
    }
#define LOCALS                                                                                               \
    {                                                                                                        \
        "locals", "--locals", PB_PARAM_FLAG, 0, 0, "arguments and local variables of each frame", false      \
    }
#define MERGE                                                                                                \
    {                                                                                                        \
        "merge", "--merge", PB_PARAM_FLAG, 0, 0, "equal stacks once, with the ranks that have them", false   \
    }

#define OVERVIEW                                                                                             \
    "SELECT pid, exe, (SELECT map(list(name), list(value)) FROM system.envs) AS env, command AS cmd, cwd, "  \
    "pid AS main_thread, (SELECT list(tid) FROM system.threads) AS threads FROM system.process"

const struct pb_route pb_routes[] = {
    {.method = "GET",
     .path = "/api/v1/targets",
     .summary = "Processes that are probed or could be, and runs that ended",
     .words = PB_WORDS("list"),
     .params = PB_PARAMS(
         {"dead", "--dead", PB_PARAM_FLAG, 0, 0, "all runs that ended, not only the newest", false}),
     .forms = rows,
     .limit_s = 30},
    {.method = "GET",
     .path = "/api/v1/now",
     .summary = "A line for each process: state, innermost frame of its own code, step, memory",
     .words = PB_WORDS("now"),
     .forms = rows,
     .limit_s = 30},
    {.method = "GET",
     .path = "/api/v1/alerts",
     .summary = "What is wrong with the jobs that are probed, as their agents noticed it; the newest first",
     .words = PB_WORDS("query", "--all", "SELECT * FROM python.alerts ORDER BY timestamp DESC LIMIT 200"),
     .forms = results,
     .limit_s = 30},
    {.method = "GET",
     .path = "/api/v1/hangs",
     .summary = "Of the alerts: that a job stands still, or goes on again",
     .words = PB_WORDS(
         "query", "--all",
         "SELECT * FROM python.alerts WHERE kind IN ('hang', 'resumed') ORDER BY timestamp DESC LIMIT 200"),
     .forms = results,
     .limit_s = 30},
    {.method = "GET",
     .path = "/api/v1/events",
     .summary = "A stream of events: the answers of several resources, again whenever they change",
     .params = PB_PARAMS(
         {"topics", NULL, PB_PARAM_TEXT, 0, 0,
          "now, targets, alerts, hangs, stacks:ID, memory:ID, torch:ID, profile:ID, with commas", true}),
     .forms = events,
     .flags = PB_ROUTE_EVENTS},
    {.method = "GET",
     .path = "/api/v1/targets/{id}/stacks",
     .summary = "What every thread is doing now",
     .words = PB_WORDS("-t", "{id}", "backtrace"),
     .params = PB_PARAMS(LOCALS, NATIVE, MERGE, TIMEOUT),
     .forms = json,
     .limit_s = 30},
    {.method = "GET",
     .path = "/api/v1/targets/{id}/memory",
     .summary = "What the process takes of the memory",
     .words = PB_WORDS("-t", "{id}", "memory"),
     .params = PB_PARAMS(TIMEOUT),
     .forms = rows,
     .limit_s = 30},
    {.method = "GET",
     .path = "/api/v1/targets/{id}/tables",
     .summary = "The tables that it has recorded",
     .words = PB_WORDS("-t", "{id}", "tables"),
     .params = PB_PARAMS(TIMEOUT),
     .forms = rows,
     .limit_s = 30},
    {.method = "GET",
     .path = "/api/v1/targets/{id}/settings",
     .summary = "Its settings and where their values come from",
     .words = PB_WORDS("-t", "{id}", "config"),
     .params = PB_PARAMS(TIMEOUT),
     .forms = rows,
     .limit_s = 30},
    {.method = "POST",
     .path = "/api/v1/targets/{id}/settings",
     .summary = "Changes a setting; the body is NAME=VALUE",
     .words = PB_WORDS("-t", "{id}", "config"),
     .params = PB_PARAMS(TIMEOUT),
     .forms = text,
     .flags = PB_ROUTE_CHANGES | PB_ROUTE_ARGUMENT,
     .limit_s = 30},
    {.method = "GET",
     .path = "/api/v1/targets/{id}/probes",
     .summary = "What records in it",
     .words = PB_WORDS("-t", "{id}", "probes"),
     .params = PB_PARAMS(TIMEOUT),
     .forms = rows,
     .limit_s = 30},
    {.method = "GET",
     .path = "/api/v1/targets/{id}/torch",
     .summary = "Its training steps",
     .words = PB_WORDS("-t", "{id}", "torch"),
     .forms = rows,
     .limit_s = 30},
    {.method = "GET",
     .path = "/api/v1/targets/{id}/profile",
     .summary = "Samples it and gives the profile",
     .words = PB_WORDS("-t", "{id}", "flamegraph"),
     .params = PB_PARAMS(PROFILE),
     .forms = profiles,
     .limit_s = 60},
    {.method = "GET",
     .path = "/api/v1/targets/{id}/doctor",
     .summary = "Whether it can be probed, and what stands in the way",
     .words = PB_WORDS("-t", "{id}", "doctor"),
     .forms = rows,
     .limit_s = 30},
    {.method = "POST",
     .path = "/api/v1/targets/{id}/eval",
     .summary = "Runs the Python code of the body in it",
     .words = PB_WORDS("-t", "{id}", "eval"),
     .params = PB_PARAMS(TIMEOUT),
     .forms = text,
     .flags = PB_ROUTE_CHANGES | PB_ROUTE_ARGUMENT,
     .limit_s = 60},
    {.method = "POST",
     .path = "/api/v1/targets/{id}/inject",
     .summary = "Brings the agent into it",
     .words = PB_WORDS("-t", "{id}", "inject"),
     .params = PB_PARAMS(TIMEOUT),
     .forms = text,
     .flags = PB_ROUTE_CHANGES,
     .limit_s = 60},
    {.method = "POST",
     .path = "/api/v1/targets/{id}/detach",
     .summary = "Takes the agent out of it",
     .words = PB_WORDS("-t", "{id}", "detach"),
     .params = PB_PARAMS(TIMEOUT),
     .forms = text,
     .flags = PB_ROUTE_CHANGES,
     .limit_s = 60},
    PB_ROUTES_DEBUG,
    {.method = "GET",
     .path = "/api/v1/stacks",
     .summary = "The stacks of several processes; merged: equal ones once",
     .words = PB_WORDS("backtrace"),
     .params = PB_PARAMS(LOCALS, NATIVE, MERGE, TIMEOUT),
     .forms = json,
     .flags = PB_ROUTE_TARGET | PB_ROUTE_PARTIAL,
     .limit_s = 30},
    {.method = "POST",
     .path = "/api/v1/query",
     .summary = "SQL, which is the body, over everything known of processes",
     .words = PB_WORDS("query", "-"),
     .params = PB_PARAMS(TIMEOUT, {"strict", "--strict", PB_PARAM_FLAG, 0, 0,
                                   "fail where a process could not be read", false}),
     .forms = results,
     .flags = PB_ROUTE_STDIN | PB_ROUTE_TARGET,
     .limit_s = 60},
    {.method = "GET",
     .path = "/flamegraph",
     .summary = "A flame graph of the service's own target, or of ?target=",
     .words = PB_WORDS("flamegraph"),
     .params = PB_PARAMS(PROFILE),
     .forms = profiles,
     .flags = PB_ROUTE_TARGET,
     .limit_s = 60},
    {.method = "GET",
     .path = "/debug/pprof/profile",
     .summary = "The same for go tool pprof",
     .words = PB_WORDS("flamegraph"),
     .params = PB_PARAMS(PROFILE),
     .forms = pprof,
     .flags = PB_ROUTE_TARGET,
     .limit_s = 60},
    {.method = "GET",
     .path = "/metrics",
     .summary = "For Prometheus",
     .words = PB_WORDS("list"),
     .forms = metrics,
     .limit_s = 30,
     .convert = pb_metrics_write},
    {.method = "POST",
     .path = "/mcp",
     .summary = "Tools for an assistant: the Model Context Protocol",
     .forms = json,
     .flags = PB_ROUTE_MCP,
     .limit_s = 120},
    {.method = "POST",
     .path = "/api/v1/cluster",
     .summary = "A question of `probing -t cluster` to this node: a line of base64, answered in frames",
     .words = PB_WORDS("cluster", "answer"),
     .forms = frames,
     .flags = PB_ROUTE_CHANGES | PB_ROUTE_STDIN,
     .limit_s = 600},
    /* For clients of the tool before. */
    {.method = "POST",
     .path = "/query",
     .summary = "SQL in the envelope of the tool before",
     .words = PB_WORDS("query", "--columns", "-"),
     .forms = lines,
     .flags = PB_ROUTE_STDIN | PB_ROUTE_SQL | PB_ROUTE_TARGET,
     .limit_s = 60,
     .convert = pb_original_message},
    {.method = "POST",
     .path = "/query/dto",
     .summary = "The same in its newer envelope",
     .words = PB_WORDS("query", "--columns", "-"),
     .forms = lines,
     .flags = PB_ROUTE_STDIN | PB_ROUTE_SQL | PB_ROUTE_TARGET,
     .limit_s = 60,
     .convert = pb_original_dto},
    {.method = "POST",
     .path = "/apis/query/local-pid",
     .summary = "The same of a process by its pid",
     .words = PB_WORDS("query", "--columns", "-"),
     .params = PB_PARAMS({"pid", "--target", PB_PARAM_TEXT, 0, 0, "the process", true}),
     .forms = lines,
     .flags = PB_ROUTE_STDIN | PB_ROUTE_SQL,
     .limit_s = 60,
     .convert = pb_original_message},
    {.method = "POST",
     .path = "/apis/cluster/query",
     .summary = "The same over every process of this node that is probed",
     .words = PB_WORDS("query", "--all", "--columns", "-"),
     .forms = lines,
     .flags = PB_ROUTE_STDIN | PB_ROUTE_SQL,
     .limit_s = 60,
     .convert = pb_original_cluster},
    {.method = "GET",
     .path = "/config/{name}",
     .summary = "The value of a setting",
     .words = PB_WORDS("config", "{name}"),
     .forms = text,
     .flags = PB_ROUTE_TARGET,
     .limit_s = 30},
    {.method = "GET",
     .path = "/apis/processes/local",
     .summary = "The process: program, environment without secrets, threads",
     .words = PB_WORDS("query", OVERVIEW),
     .forms = rows,
     .flags = PB_ROUTE_TARGET,
     .limit_s = 30},
    {.method = "GET",
     .path = "/apis/overview",
     .summary = "The same, not as a list",
     .words = PB_WORDS("query", OVERVIEW),
     .forms = only_json,
     .flags = PB_ROUTE_TARGET,
     .limit_s = 30,
     .convert = pb_original_first},
    {.method = "GET",
     .path = "/apis/nodes",
     .summary = "The processes that are probed, as nodes of a job",
     .words = PB_WORDS("list"),
     .forms = only_json,
     .limit_s = 30,
     .convert = pb_original_nodes},
    {.method = "GET",
     .path = "/apis/pythonext/callstack",
     .summary = "The frames of a thread, the innermost first",
     .words = PB_WORDS("backtrace", "--locals"),
     .params = PB_PARAMS({"tid", NULL, PB_PARAM_PART, 0, 0, "its number; the main thread unless told", false},
                         {"mode", "py:;cpp:--native;mixed:--native", PB_PARAM_CHOICE, 0, 0,
                          "which frames: py; cpp and mixed have native ones too", false}),
     .forms = json,
     .flags = PB_ROUTE_TARGET,
     .limit_s = 30,
     .convert = pb_original_callstack,
     .chosen = "tid"},
    {.method = "POST",
     .path = "/apis/pythonext/eval",
     .summary = "Runs the Python code of the body",
     .words = PB_WORDS("eval"),
     .forms = text,
     .flags = PB_ROUTE_CHANGES | PB_ROUTE_ARGUMENT | PB_ROUTE_TARGET,
     .limit_s = 60},
    {.method = "GET",
     .path = "/apis/flamegraph/pprof",
     .summary = "As /flamegraph",
     .words = PB_WORDS("flamegraph"),
     .params = PB_PARAMS(PROFILE),
     .forms = profiles,
     .flags = PB_ROUTE_TARGET,
     .limit_s = 60},
    {.method = "GET",
     .path = "/apis/pprofextension/flamegraph",
     .summary = "As /flamegraph, for a browser",
     .words = PB_WORDS("flamegraph"),
     .params = PB_PARAMS(PROFILE),
     .forms = pages,
     .flags = PB_ROUTE_TARGET,
     .limit_s = 60},
    {0},
};

bool pb_route_is_name(const char *name)
{
    return name[0] >= 'a' && name[0] <= 'z' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_.-") == strlen(name);
}

bool pb_route_is_id(const char *id)
{
    size_t digits = strspn(id, "0123456789");

    if (!digits || digits > 10)
        return false;
    if (id[digits] == '@')
        return id[digits + 1] &&
               strspn(id + digits + 1, "0123456789abcdefghijklmnopqrstuvwxyz.") == strlen(id + digits + 1);
    return id[digits] == '\0';
}

static bool matches(const char *pattern, const char *path, char ret[PB_ROUTE_VARIABLE])
{
    while (*pattern) {
        if (*pattern == '{') {
            size_t n = strcspn(path, "/");
            if (n == 0 || n >= PB_ROUTE_VARIABLE)
                return false;
            memcpy(ret, path, n);
            ret[n] = '\0';
            path += n;
            pattern = strchr(pattern, '}') + 1;
        } else if (*pattern++ != *path++) {
            return false;
        }
    }
    return *path == '\0';
}

const struct pb_route *pb_route_find(const char *method, const char *path, bool read_only,
                                     char ret_variable[PB_ROUTE_VARIABLE], char ret_allowed[64])
{
    char variable[PB_ROUTE_VARIABLE] = "";
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;

    ret_allowed[0] = '\0';
    for (const struct pb_route *r = pb_routes; r->method; r++) {
        if ((read_only && r->flags & PB_ROUTE_CHANGES) || !matches(r->path, path, variable))
            continue;
        if (strcmp(r->method, wanted) == 0) {
            memcpy(ret_variable, variable, PB_ROUTE_VARIABLE);
            return r;
        }
        snprintf(ret_allowed + strlen(ret_allowed), 64 - strlen(ret_allowed), "%s%s%s",
                 ret_allowed[0] ? ", " : "", r->method, strcmp(r->method, "GET") == 0 ? ", HEAD" : "");
    }
    return NULL;
}
