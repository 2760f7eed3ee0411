/* routes_original: the requests of the tool before, as rows of the same table, over commands of ours. See
 * routes.h and original.h. */
#include "serve/original.h"
#include "serve/routes.h"

#include <stddef.h>
#include <string.h>

static const struct pb_form only_json[] = {{"json", "application/json", "--format=json", NULL}, {0}};
static const struct pb_form lines[] = {{"json", "application/json", "--format=jsonl", NULL}, {0}};
static const struct pb_form pages[] = {
    {"html", "text/html; charset=utf-8", "--output=profile.html", "profile.html"}, {0}};
static const struct pb_form speedscope[] = {
    {"json", "application/json", "--output=profile.json", "profile.json"}, {0}};
static const struct pb_form trace[] = {{"json", "application/json", "--output=trace.json", "trace.json"},
                                       {0}};
static const struct pb_form folded[] = {
    {"folded", "text/plain; charset=utf-8", "--output=profile.folded", "profile.folded"}, {0}};

/* SQL in an envelope of JSON, its rows in another. */
#define QUERY(at, what, to, failed, takes, more, ...)                                                        \
    {                                                                                                        \
        .method = "POST", .path = at, .summary = what, .words = PB_WORDS("query", __VA_ARGS__),              \
        .params = takes, .forms = lines, .flags = PB_ROUTE_STDIN | PB_ROUTE_SQL | (more), .limit_s = 60,     \
        .convert = to, .fail = failed                                                                        \
    }
/* Rows of a table under a name of theirs. */
#define ROWS(at, what, form, to, more, ...)                                                                  \
    {                                                                                                        \
        .method = "GET", .path = at, .summary = what, .words = PB_WORDS(__VA_ARGS__), .forms = form,         \
        .flags = PB_ROUTE_TARGET | (more), .limit_s = 30, .convert = to                                      \
    }

#define OVERVIEW                                                                                             \
    "SELECT pid, exe, (SELECT map(list(name), list(value)) FROM system.envs) AS env, command AS cmd, cwd, "  \
    "pid AS main_thread, (SELECT list(tid) FROM system.threads) AS threads FROM system.process"
#define STEPS                                                                                                \
    "SELECT rank, local_step, global_step AS coord_step, step_duration_sec * 1000 AS duration_ms FROM "      \
    "python.torch_step_timing ORDER BY timestamp DESC LIMIT 10000"

#define EVENTS                                                                                               \
    "SELECT name, coalesce(phase, 'span') AS cat, CASE record_type WHEN 'span_start' THEN 'B' WHEN "         \
    "'span_end' THEN 'E' ELSE 'i' END AS ph, time // 1000 AS ts, trace_id AS pid, thread_id AS tid FROM "    \
    "(FROM python.trace_event ORDER BY time DESC LIMIT 10000) ORDER BY time"
#define RUNTIME                                                                                              \
    "SELECT name, value FROM system.envs WHERE regexp_matches(name, "                                        \
    "'^(TORCH|PYTORCH|NCCL|CUDA|OMP|MKL|GLOO|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_)')"

const struct pb_route pb_routes_original[] = {
    QUERY("/query", "SQL in the envelope of the tool before", pb_original_message, pb_original_failure, NULL,
          PB_ROUTE_TARGET | PB_ROUTE_ALL, "--columns", "-"),
    QUERY("/query/dto", "The same in its newer envelope", pb_original_dto, NULL, NULL,
          PB_ROUTE_TARGET | PB_ROUTE_ALL, "--columns", "-"),
    QUERY("/apis/query/local-pid", "The same of a process by its pid", pb_original_message,
          pb_original_failure, PB_PARAMS({"pid", "--target", PB_PARAM_TEXT, 0, 0, "the process", true}), 0,
          "--columns", "-"),
    QUERY("/apis/cluster/query", "The same over every process of this node that is probed",
          pb_original_cluster, NULL, NULL, 0, "--all", "--columns", "-"),
    ROWS("/config/{name}", "The value of a setting", pb_forms_text, NULL, 0, "config", "{name}"),
    ROWS("/apis/processes/local", "The process: program, environment without secrets, threads", pb_forms_rows,
         NULL, PB_ROUTE_ONE, "query", OVERVIEW),
    ROWS("/apis/overview", "The same, not as a list", only_json, pb_original_first, PB_ROUTE_ONE, "query",
         OVERVIEW),
    {.method = "GET",
     .path = "/apis/nodes",
     .summary = "The processes that are probed, as nodes of a job",
     .words = PB_WORDS("list"),
     .params =
         PB_PARAMS({"offset", NULL, PB_PARAM_PART, 0, 0, "how many to leave out", false},
                   {"limit", NULL, PB_PARAM_PART, 0, 0, "how many at most", false},
                   {"since_version", NULL, PB_PARAM_PART, 0, 0, "passed over: all of them come", false}),
     .forms = only_json,
     .limit_s = 30,
     .convert = pb_original_nodes,
     .chosen = "offset,limit,since_version"},
    {.method = "PUT",
     .path = "/apis/nodes",
     .summary = "Adds nodes to that list, for five minutes; the body is one, or {\"nodes\"}",
     .words = PB_WORDS("list"),
     .forms = only_json,
     .flags = PB_ROUTE_CHANGES | PB_ROUTE_REPORT | PB_ROUTE_OWN,
     .limit_s = 30,
     .convert = pb_original_reported},
    {.method = "GET",
     .path = "/apis/training/step_matrix",
     .summary = "How long each step took on each rank of this node",
     .words = PB_WORDS("query", "--all", STEPS),
     .params =
         PB_PARAMS({"cluster", "true:;false:", PB_PARAM_CHOICE, 0, 0, "this node alone is asked", false}),
     .forms = only_json,
     .limit_s = 30,
     .convert = pb_original_steps},
    {.method = "GET",
     .path = "/apis/files",
     .summary = "The text of a source file that stands in the stacks of the process",
     .words = PB_WORDS("backtrace", "--timeout=3"),
     .params = PB_PARAMS({"path", "--source", PB_PARAM_TEXT, 0, 0, "its path, as a frame has it", true}),
     .forms = pb_forms_text,
     .flags = PB_ROUTE_TARGET | PB_ROUTE_ONE | PB_ROUTE_OWN | PB_ROUTE_FINDS,
     .limit_s = 30},
    {.method = "GET",
     .path = "/apis/pythonext/callstack",
     .summary = "The frames of a thread, the innermost first",
     .words = PB_WORDS("backtrace", "--locals"),
     .params = PB_PARAMS({"tid", NULL, PB_PARAM_PART, 1, 0, "its number; the main thread unless told", false},
                         {"mode", "py:;cpp:--native;mixed:--native", PB_PARAM_CHOICE, 0, 0,
                          "which frames: py; cpp and mixed have native ones too", false}),
     .forms = pb_forms_json,
     .flags = PB_ROUTE_TARGET | PB_ROUTE_ONE,
     .limit_s = 30,
     .convert = pb_original_callstack,
     .chosen = "tid"},
    {.method = "POST",
     .path = "/apis/pythonext/eval",
     .summary = "Runs the Python code of the body",
     .words = PB_WORDS("eval"),
     .forms = pb_forms_text,
     .flags = PB_ROUTE_CHANGES | PB_ROUTE_ARGUMENT | PB_ROUTE_TARGET | PB_ROUTE_ONE,
     .limit_s = 60},
    ROWS("/apis/pythonext/trace/list", "The functions that are traced", only_json, NULL, PB_ROUTE_ONE,
         "trace"),
    ROWS("/apis/pythonext/trace/variables", "Variables that were recorded", only_json, NULL, PB_ROUTE_ONE,
         "query", "SELECT * FROM python.trace_variables ORDER BY timestamp DESC LIMIT 1000"),
    ROWS("/apis/pythonext/trace/show", "Calls and spans that were recorded", only_json, NULL, PB_ROUTE_ONE,
         "query", "SELECT * FROM python.trace_event ORDER BY timestamp DESC LIMIT 1000"),
    ROWS("/apis/pythonext/pytorch/timeline", "Modules and phases that were recorded", only_json, NULL,
         PB_ROUTE_ONE, "query", "SELECT * FROM python.torch_trace ORDER BY timestamp DESC LIMIT 1000"),
    PB_ROUTE_FLAMEGRAPH("/apis/flamegraph/pprof", "As /flamegraph", pb_forms_profiles),
    PB_ROUTE_FLAMEGRAPH("/apis/pprofextension/flamegraph", "As /flamegraph, for a browser", pages),
    PB_ROUTE_FLAMEGRAPH("/apis/pprofextension/flamegraph/folded", "The same as lines of stacks", folded),
    PB_ROUTE_FLAMEGRAPH("/apis/pprofextension/flamegraph/json", "The same for speedscope", speedscope),
    {.method = "GET",
     .path = "/apis/pythonext/trace/chrome-tracing",
     .summary = "Calls and spans that were recorded, for chrome://tracing and Perfetto",
     .words = PB_WORDS("query", EVENTS),
     .params = PB_PARAMS({"limit", NULL, PB_PARAM_PART, 0, 0, "passed over: the last 10,000 come", false}),
     .forms = only_json,
     .flags = PB_ROUTE_TARGET | PB_ROUTE_ONE,
     .limit_s = 30,
     .convert = pb_original_events},
    {.method = "POST",
     .path = "/apis/pythonext/trace/start",
     .summary = "Records the calls of a function from now on",
     .words = PB_WORDS("trace"),
     .params = PB_PARAMS({"function", NULL, PB_PARAM_LAST, 0, 0, "pkg.mod:Class.method", true},
                         {"watch", "--locals", PB_PARAM_TEXT, 0, 0, "local variables, with commas", false},
                         {"depth", "--depth", PB_PARAM_NUMBER, 1, 100, "calls that it makes too", false}),
     .forms = pb_forms_text,
     .flags = PB_ROUTE_CHANGES | PB_ROUTE_TARGET | PB_ROUTE_ONE,
     .limit_s = 60},
    {.method = "POST",
     .path = "/apis/pythonext/trace/stop",
     .summary = "Ends that",
     .words = PB_WORDS("trace", "--stop"),
     .params = PB_PARAMS({"function", NULL, PB_PARAM_LAST, 0, 0, "pkg.mod:Class.method", true}),
     .forms = pb_forms_text,
     .flags = PB_ROUTE_CHANGES | PB_ROUTE_TARGET | PB_ROUTE_ONE,
     .limit_s = 60},
    {.method = "POST",
     .path = "/apis/pythonext/pytorch/profile",
     .summary = "torch.profiler for a few whole steps; the trace for Perfetto",
     .words = PB_WORDS("torch", "profile"),
     .params = PB_PARAMS({"steps", "--steps", PB_PARAM_NUMBER, 1, 100, "how many", false}),
     .forms = trace,
     .flags = PB_ROUTE_CHANGES | PB_ROUTE_TARGET | PB_ROUTE_ONE,
     .limit_s = 90},
    ROWS("/apis/pythonext/pytorch/runtime-debug",
         "Its environment, as far as torch and its libraries read it", only_json, NULL, PB_ROUTE_ONE, "query",
         RUNTIME),
    {0},
};

/* Paths begin so; those of the table above come first. */
static const struct {
    const char *path, *instead;
} not_here[] = {
    {"/apis/pythonext/pytorch/profile/", "the profiler is started, and its trace had, by POST "
                                         "/apis/pythonext/pytorch/profile?steps=N"},
    {"/apis/pythonext/ray/",
     "tasks of Ray are not recorded; `probing cluster attach --ray` finds its processes"},
    {"/apis/pythonext/crash/", "the scene of a crash is kept by `probing -t PID catch`"},
    {"/apis/pythonext/flight-recorder/", "collectives are rows of python.comm_collective"},
    {"/apis/pythonext/skills/", "there are no playbooks; /mcp has tools for an assistant"},
    {"/apis/pythonext/magics", "the prompt has no magic commands"},
    {"/apis/pythonext/extensions/", "plug-ins add tables: /api/v1/tables"},
    {"/apis/pythonext/engines/", "engines for inference are not looked at; what they log may be queried"},
    {"/apis/rdmaextension", "counters of RDMA are not read"},
    {"/apis/torchextension/", "modules and their times are rows of python.torch_trace"},
    {"/apis/flamegraph/torch", "modules and their times are rows of python.torch_trace"},
    {"/apis/pprofextension/flamegraph/", "profiles of several processes: /flamegraph?target=&all=true"},
};

const char *pb_original_instead(const char *path)
{
    for (size_t i = 0; i < sizeof(not_here) / sizeof(not_here[0]); i++)
        if (strncmp(path, not_here[i].path, strlen(not_here[i].path)) == 0)
            return not_here[i].instead;
    return NULL;
}
