/* routes: the table of what is answered, and how a request's path finds its row. See routes.h. */
#include "serve/routes.h"

#include "serve/routes_debug.h"

#include <string.h>

static const struct pb_form pb_forms_json[] = {{"json", "application/json", "--json", NULL}, {0}};
static const struct pb_form pb_forms_text[] = {{"text", "text/plain; charset=utf-8", NULL, NULL}, {0}};
static const struct pb_form pb_forms_rows[] = {
    {"json", "application/json", "--format=json", NULL},
    {"csv", "text/csv; charset=utf-8", "--format=csv", NULL},
    {"tsv", "text/tab-separated-values; charset=utf-8", "--format=tsv", NULL},
    {0}};
static const struct pb_form pb_forms_profiles[] = {
    {"svg", "image/svg+xml", "--output=profile.svg", "profile.svg"},
    {"html", "text/html; charset=utf-8", "--output=profile.html", "profile.html"},
    {"folded", "text/plain; charset=utf-8", "--output=profile.folded", "profile.folded"},
    {"speedscope", "application/json", "--output=profile.json", "profile.json"},
    {"pprof", "application/octet-stream", "--output=profile.pb.gz", "profile.pb.gz"},
    {"perfetto", "application/octet-stream", "--output=profile.perfetto", "profile.perfetto"},
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
static const struct pb_form pprof[] = {
    {"pprof", "application/octet-stream", "--output=profile.pb.gz", "profile.pb.gz"}, {0}};
static const struct pb_form events[] = {{"sse", "text/event-stream", NULL, NULL}, {0}};
static const struct pb_form frames[] = {{"frames", "application/octet-stream", NULL, NULL}, {0}};
static const struct pb_form plain[] = {{"text", "text/plain; charset=utf-8", NULL, NULL}, {0}};
static const struct pb_form metrics[] = {
    {"prometheus", "text/plain; version=0.0.4; charset=utf-8", "--format=tsv", NULL},
    {"openmetrics", "application/openmetrics-text; version=1.0.0; charset=utf-8", "--format=tsv", NULL},
    {0}};

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
#define SINCE(name, help)                                                                                    \
    {                                                                                                        \
        name, "--" name, PB_PARAM_TEXT, 0, 0, help, false                                                    \
    }

#define TARGET_PATH "/api/v1/targets/{id}"

/* What a command says of one process. */
#define ABOUT(resource, command, what)                                                                       \
    {                                                                                                        \
        .method = "GET", .path = TARGET_PATH "/" resource, .summary = what,                                  \
        .words = PB_WORDS("-t", "{id}", command), .params = PB_PARAMS(TIMEOUT), .forms = pb_forms_rows,      \
        .limit_s = 30                                                                                        \
    }
/* What a command does to one. */
#define CHANGE(verb, resource, more, takes, tool, what, ...)                                                 \
    {                                                                                                        \
        .method = verb, .path = TARGET_PATH "/" resource, .summary = what,                                   \
        .words = PB_WORDS("-t", "{id}", __VA_ARGS__), .params = takes, .forms = pb_forms_text,               \
        .flags = PB_ROUTE_CHANGES | (more), .limit_s = 60, .tools = tool                                     \
    }

/* An answer of the service itself. */
#define FIXED(at, what, form, function, more)                                                                \
    {                                                                                                        \
        .method = "GET", .path = at, .summary = what, .write = function, .forms = form,                      \
        .flags = PB_ROUTE_HIDDEN | (more)                                                                    \
    }

static const struct pb_route routes[] = {
    FIXED("/", "This list", plain, pb_fixed_index, PB_ROUTE_OPEN),
    FIXED("/health", "Whether it runs", pb_forms_json, pb_fixed_health, PB_ROUTE_OPEN),
    FIXED("/ready", "Whether it answers", pb_forms_json, pb_fixed_ready, PB_ROUTE_OPEN),
    FIXED("/openapi.json", "This description", pb_forms_json, pb_openapi_write, 0),
    FIXED("/api/v1/service", "What the page shows of the service itself", pb_forms_json, pb_fixed_service, 0),
    {.method = "GET",
     .path = "/api/v1/command",
     .summary = "A command line of `probing -t HOST:PORT`",
     .forms = plain,
     .flags = PB_ROUTE_HIDDEN | PB_ROUTE_COMMAND | PB_ROUTE_CHANGES},
    {.method = "GET",
     .path = "/api/v1/targets",
     .summary = "Processes that are probed or could be, and runs that ended, archived ones too",
     .words = PB_WORDS("list"),
     .params = PB_PARAMS(
         {"dead", "--dead", PB_PARAM_FLAG, 0, 0, "all runs that ended, not only the newest", false}),
     .forms = pb_forms_rows,
     .limit_s = 30,
     .topic = {.name = "targets", .every_ms = 3000},
     .tools = PB_TOOLS({.name = "list_targets",
                        .about = "Python processes of this machine that are probed or could be, and runs "
                                 "that ended",
                        .form = "json"})},
    {.method = "GET",
     .path = "/api/v1/now",
     .summary = "A line for each process: state, innermost frame of its own code, step, memory",
     .words = PB_WORDS("now"),
     .forms = pb_forms_rows,
     .limit_s = 30,
     .topic = {.name = "now", .more = "--watch", .every_ms = 1000},
     .tools = PB_TOOLS({.name = "now",
                        .about = "A line for each process: state, innermost frame of its own code, training "
                                 "step, memory",
                        .form = "json"})},
    {.method = "GET",
     .path = "/api/v1/diagnosis",
     .summary = "What is wrong with the jobs of this machine, whose fault it is, and at which line",
     .words = PB_WORDS("diagnose"),
     .forms = pb_forms_json,
     .flags = PB_ROUTE_TARGET | PB_ROUTE_PARTIAL,
     .limit_s = 60,
     .topic = {.name = "diagnosis", .every_ms = 5000, .calm_ms = 15000, .target = true},
     .tools =
         PB_TOOLS({.name = "diagnose",
                   .about = "What is wrong with the jobs of this machine: the rank, the line, the cause, "
                            "the evidence, and how sure it is"})},
    {.method = "GET",
     .path = "/api/v1/skills",
     .summary = "The playbooks of the service's user, with their parameters",
     .words = PB_WORDS("skill", "list"),
     .forms = pb_forms_json,
     .limit_s = 30,
     .tools = PB_TOOLS({.name = "list_skills",
                        .about = "The playbooks that run_skill runs, with their parameters",
                        .form = "json"})},
    {.method = "POST",
     .path = TARGET_PATH "/skill",
     .summary = "Runs a playbook, whose id is the body, over the job of a process",
     .words = PB_WORDS("-t", "{id}", "skill", "run"),
     .params = PB_PARAMS(
         {"param", "--param", PB_PARAM_TEXT, 0, 0, "a parameter of the playbook: NAME=VALUE", false},
         TIMEOUT),
     .forms = pb_forms_json,
     .flags = PB_ROUTE_ARGUMENT,
     .limit_s = 60,
     .tools =
         PB_TOOLS({.name = "run_skill",
                   .about = "Runs a playbook over all ranks of a job: rows of its statements, and remarks of "
                            "its rules; diagnose says what is wrong with proof",
                   .form = "json",
                   .body = "skill",
                   .body_help = "the id of the playbook (list_skills)"})},
    {.method = "GET",
     .path = "/api/v1/alerts",
     .summary = "What is wrong with the jobs that are probed, as their agents noticed it; the newest first",
     .words = PB_WORDS("query", "--all", "SELECT * FROM python.alerts ORDER BY timestamp DESC LIMIT 200"),
     .forms = results,
     .limit_s = 30,
     .topic = {.name = "alerts", .every_ms = 2000}},
    {.method = "GET",
     .path = "/api/v1/hangs",
     .summary = "Alerts: a job stopped making progress, or resumed",
     .words = PB_WORDS(
         "query", "--all",
         "SELECT * FROM python.alerts WHERE kind IN ('hang', 'resumed') ORDER BY timestamp DESC LIMIT 200"),
     .forms = results,
     .limit_s = 30,
     .topic = {.name = "hangs", .every_ms = 2000}},
    {.method = "GET",
     .path = "/api/v1/tables",
     .summary = "Every table that a query may name, with what it is about",
     .words = PB_WORDS("query", "FROM probing.tables"),
     .forms = results,
     .flags = PB_ROUTE_TARGET,
     .limit_s = 30},
    {.method = "GET",
     .path = "/api/v1/columns",
     .summary = "Every column of these tables, with its unit and what it is about",
     .words = PB_WORDS("query", "SELECT \"table\", \"column\", unit, comment FROM probing.columns"),
     .forms = results,
     .flags = PB_ROUTE_TARGET,
     .limit_s = 30,
     .tools = PB_TOOLS({.name = "describe_tables",
                        .about = "Every table and column that can be queried, with units and meaning",
                        .form = "csv"})},
    {.method = "GET",
     .path = "/api/v1/events",
     .summary = "A stream of events: the answers of several resources, again whenever they change",
     .params = PB_PARAMS(
         {"topics", NULL, PB_PARAM_TEXT, 0, 0,
          "names of topics with commas, of a process NAME:ID; x-topic of a resource is its topic's name",
          true}),
     .forms = events,
     .flags = PB_ROUTE_EVENTS},
    {.method = "GET",
     .path = "/api/v1/recordings",
     .summary = "What is or was recorded of processes (record)",
     .words = PB_WORDS("record", "--list"),
     .forms = pb_forms_rows,
     .limit_s = 30},
    {.method = "GET",
     .path = "/api/v1/cores",
     .summary = "The core files in the folder of serve --cores",
     .write = pb_fixed_cores,
     .forms = pb_forms_json,
     .flags = PB_ROUTE_CORES},
    {.method = "GET",
     .path = "/api/v1/cores/{file}/stacks",
     .summary = "The stacks of a process that died, and what it died of",
     .words = PB_WORDS("core", "{file}", "backtrace"),
     .params = PB_PARAMS(LOCALS, PB_PARAM_NATIVE, MERGE),
     .forms = pb_forms_json,
     .flags = PB_ROUTE_CORES,
     .limit_s = 60},
    {.method = "GET",
     .path = TARGET_PATH "/stacks",
     .summary = "What every thread is doing now",
     .words = PB_WORDS("-t", "{id}", "backtrace"),
     .params = PB_PARAMS(LOCALS, PB_PARAM_NATIVE, MERGE, TIMEOUT),
     .forms = pb_forms_json,
     .limit_s = 30,
     .topic = {.name = "stacks", .more = "--watch", .every_ms = 1000},
     .tools = PB_TOOLS(
         {.name = "stacks", .about = "What every thread of a process is doing now, and what it waits for"},
         {.name = "hang_report",
          .about = "Why a process makes no progress: who waits for what and who holds it, "
                   "with locals and native frames",
          .more = PB_WORDS("--locals", "--native")})},
    {.method = "GET",
     .path = TARGET_PATH "/source",
     .summary = "The text of a source file that is in its stacks",
     .words = PB_WORDS("-t", "{id}", "backtrace", "--timeout=3"),
     .params = PB_PARAMS({"path", "--source", PB_PARAM_TEXT, 0, 0, "its path, as a frame has it", true}),
     .forms = pb_forms_text,
     .flags = PB_ROUTE_OWN | PB_ROUTE_FINDS,
     .limit_s = 30},
    {.method = "GET",
     .path = TARGET_PATH "/memory",
     .summary = "What the process takes of the memory",
     .words = PB_WORDS("-t", "{id}", "memory"),
     .params = PB_PARAMS(TIMEOUT),
     .forms = pb_forms_rows,
     .limit_s = 30,
     .topic = {.name = "memory", .every_ms = 2000},
     .tools =
         PB_TOOLS({.name = "memory", .about = "What a process takes of the memory, and whether it grows"})},
    ABOUT("tables", "tables", "The tables that it has recorded"),
    ABOUT("settings", "config", "Its settings and where their values come from"),
    CHANGE("POST", "settings", PB_ROUTE_ARGUMENT, PB_PARAMS(TIMEOUT),
           PB_TOOLS({.name = "config",
                     .about = "Changes a setting of the agent in the process: NAME=VALUE",
                     .body = "setting",
                     .body_help = "NAME=VALUE"}),
           "Changes a setting; the body is NAME=VALUE", "config"),
    ABOUT("probes", "probes", "What records in it"),
    {.method = "GET",
     .path = TARGET_PATH "/torch",
     .summary = "Its training steps",
     .words = PB_WORDS("-t", "{id}", "torch"),
     .forms = pb_forms_rows,
     .limit_s = 30,
     .topic = {.name = "torch", .every_ms = 2000}},
    {.method = "GET",
     .path = TARGET_PATH "/profile",
     .summary = "Samples it and gives the profile",
     .words = PB_WORDS("-t", "{id}", "flamegraph"),
     .params = PB_PARAMS(PB_PARAMS_PROFILE),
     .forms = pb_forms_profiles,
     .limit_s = 60,
     .topic = {.name = "profile", .more = "--duration=5", .form = "speedscope"},
     .tools = PB_TOOLS({.name = "profile",
                        .about = "Samples a process for some seconds: a line for each stack with its count, "
                                 "outermost frame first",
                        .form = "folded"})},
    {.method = "GET",
     .path = TARGET_PATH "/recording",
     .summary = "The profile of what was recorded of it, or of a part of that time",
     .words = PB_WORDS("flamegraph", "--from", "{id}"),
     .params = PB_PARAMS(SINCE("since", "from then on: 5m ago, or 14:30:00"), SINCE("until", "up to then")),
     .forms = pb_forms_profiles,
     .limit_s = 60},
    CHANGE("POST", "recording", 0,
           PB_PARAMS(PB_PARAMS_SAMPLING,
                     {"watchdog", "--watchdog", PB_PARAM_NUMBER, 1, 86400,
                      "record all stacks when the main thread does not move for so many seconds", false},
                     {"size", "--size", PB_PARAM_NUMBER, 1, 4096, "megabytes that it may hold", false}),
           NULL, "Records it from now on, also when this service ends", "record", "--background"),
    CHANGE("DELETE", "recording", 0, NULL, NULL, "Ends its recordings; what they hold stays", "record",
           "--stop"),
    CHANGE("POST", "archive", 0,
           PB_PARAMS({"retention", "--retention", PB_PARAM_NUMBER, 0, 36500, "days; older files go", false}),
           NULL, "Moves what it has recorded into the archive", "archive", "--once"),
    {.method = "GET",
     .path = TARGET_PATH "/doctor",
     .summary = "Whether it can be probed, and what stands in the way",
     .words = PB_WORDS("-t", "{id}", "doctor"),
     .forms = pb_forms_rows,
     .limit_s = 30},
    CHANGE("POST", "eval", PB_ROUTE_ARGUMENT, PB_PARAMS(TIMEOUT),
           PB_TOOLS({.name = "eval",
                     .about = "Runs Python code inside of the process and gives its value",
                     .body = "code",
                     .body_help = "the code"}),
           "Runs the Python code of the body in it", "eval"),
    CHANGE("POST", "inject", 0, PB_PARAMS(TIMEOUT), NULL, "Brings the agent into it", "inject"),
    CHANGE("POST", "detach", 0, PB_PARAMS(TIMEOUT), NULL, "Takes the agent out of it", "detach"),
    PB_ROUTES_DEBUG,
    {.method = "GET",
     .path = "/api/v1/stacks",
     .summary = "The stacks of several processes; merged: equal ones once",
     .words = PB_WORDS("backtrace"),
     .params = PB_PARAMS(LOCALS, PB_PARAM_NATIVE, MERGE, TIMEOUT),
     .forms = pb_forms_json,
     .flags = PB_ROUTE_TARGET | PB_ROUTE_ALL | PB_ROUTE_ONE | PB_ROUTE_PARTIAL,
     .limit_s = 30,
     .tools = PB_TOOLS({.name = "compare_ranks",
                        .about = "The stacks of all processes of a job, equal ones once, the rarest first: "
                                 "finds the rank that differs; target is the launcher's pid, or text that "
                                 "stands in every rank's command line",
                        .more = PB_WORDS("--merge", "--all")})},
    {.method = "POST",
     .path = "/api/v1/query",
     .summary = "SQL, which is the body, over everything known of processes",
     .words = PB_WORDS("query", "-"),
     .params = PB_PARAMS(TIMEOUT, {"strict", "--strict", PB_PARAM_FLAG, 0, 0,
                                   "fail where a process could not be read", false}),
     .forms = results,
     .flags = PB_ROUTE_STDIN | PB_ROUTE_TARGET | PB_ROUTE_ALL,
     .limit_s = 60,
     .tools = PB_TOOLS({.name = "query",
                        .about = "SQL (DuckDB) over what is known of a process, live or dead; "
                                 "describe_tables says what there is",
                        .form = "json",
                        .body = "sql",
                        .body_help = "the statement"})},
    PB_ROUTE_FLAMEGRAPH("/flamegraph",
                        "A flame graph of the service's own target, or of ?target=", pb_forms_profiles),
    PB_ROUTE_FLAMEGRAPH("/debug/pprof/profile", "The same for go tool pprof", pprof),
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
     .forms = pb_forms_json,
     .flags = PB_ROUTE_MCP,
     .limit_s = 120},
    {.method = "POST",
     .path = "/api/v1/cluster",
     .summary = "A question of `probing -t cluster` to this node: a line of base64, answered in frames",
     .words = PB_WORDS("cluster", "answer"),
     .forms = frames,
     .flags = PB_ROUTE_CHANGES | PB_ROUTE_STDIN | PB_ROUTE_CLUSTER,
     .limit_s = 600},
    {0},
};

const struct pb_route *pb_route_next(const struct pb_route *r)
{
    r = r ? r + 1 : routes;
    return r->method ? r : NULL;
}

bool pb_route_is_file(const char *name)
{
    return name[0] != '.' && name[0] != '-' && !strchr(name, '/');
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

const struct pb_form *pb_route_form(const struct pb_route *r, const char *name)
{
    const struct pb_form *f = r->forms;

    while (name && f->name && strcmp(f->name, name) != 0)
        f++;
    return f->name ? f : NULL;
}

bool pb_route_is_offered(const struct pb_offer *o, const struct pb_route *r)
{
    return !(o->read_only && r->flags & PB_ROUTE_CHANGES) && !(o->others && r->flags & PB_ROUTE_OWN) &&
           (o->cores || !(r->flags & PB_ROUTE_CORES));
}

const struct pb_route *pb_route_find(const char *method, const char *path, const struct pb_offer *o,
                                     char ret_variable[PB_ROUTE_VARIABLE], char ret_allowed[64])
{
    char variable[PB_ROUTE_VARIABLE] = "";
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;

    ret_allowed[0] = '\0';
    for (const struct pb_route *r = NULL; (r = pb_route_next(r));) {
        if (!pb_route_is_offered(o, r) || !matches(r->path, path, variable))
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
