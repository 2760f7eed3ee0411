/* gpu: which kernels run on the GPUs of a process, for some seconds (docs/gpu.md). The agent records; the
 * summary is SQL over its rows. */
#include "ask/parts.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/cli.h"
#include "cli/fanout.h"
#include "cli/query/query_run.h"
#include "cli/values.h"
#include "control/message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TIMEOUT_MS = 30000, LOOK_MS = 50, SLACK_MS = 20000 };

static const char probe[] = "gpu_profile";

/* {rank,} and {rank=} are filled in for several processes. Kernels of NCCL count as communication, all others
 * as computation. Shares are of the time between a device's first and last recorded work, since work that
 * began before the recording is not in it. */
#define LAST                                                                                                 \
    "WITH p AS (SELECT {rank,}timestamp AS t0 FROM gpu.profiles WHERE why IS NULL OR duration_ms > 0"        \
    " QUALIFY row_number() OVER ({over rank} ORDER BY timestamp DESC) = 1),"                                 \
    " kernels AS (SELECT k.* FROM gpu.kernels k JOIN p ON {k rank}k.timestamp >= t0 - INTERVAL 1 "           \
    "MILLISECOND),"                                                                                          \
    " copies AS (SELECT k.* FROM gpu.copies k JOIN p ON {k rank}k.timestamp >= t0 - INTERVAL 1 MILLISECOND)"
#define WORK                                                                                                 \
    ", work AS (SELECT {rank,}device, epoch_ns(timestamp) AS b, epoch_ns(timestamp)"                         \
    " + (duration_us * 1000)::BIGINT AS e, CASE WHEN name LIKE 'nccl%' THEN 2 ELSE 1 END AS kind"            \
    " FROM kernels UNION ALL SELECT {rank,}device, epoch_ns(timestamp), epoch_ns(timestamp)"                 \
    " + (duration_us * 1000)::BIGINT, 4 FROM copies),"                                                       \
    " parts AS (SELECT s, work.* FROM work, (VALUES (1), (2), (3), (7)) sets(s) WHERE kind & s > 0),"        \
    " edges AS (SELECT *, max(e) OVER (PARTITION BY {rank,}device, s ORDER BY b, e"                          \
    " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM parts),"                              \
    " sums AS (SELECT {rank,}device, s, sum(greatest(0, e - greatest(b, coalesce(before, b)))) / 1e6 AS ms"  \
    " FROM edges GROUP BY ALL),"                                                                             \
    " spans AS (SELECT {rank,}device, (max(e) - min(b)) / 1e6 AS span FROM work GROUP BY ALL),"              \
    " flat AS (SELECT {rank,}device, any_value(span) AS span, coalesce(max(ms) FILTER (s = 1), 0) AS comp,"  \
    " coalesce(max(ms) FILTER (s = 2), 0) AS comm, coalesce(max(ms) FILTER (s = 3), 0) AS either,"           \
    " max(ms) FILTER (s = 7) AS any FROM sums JOIN spans USING ({rank,}device) GROUP BY ALL)"

static const char times[] =
    LAST WORK " SELECT {rank,}device, round(span, 3) AS ms, round(100 * comp / span, 1) AS \"computing %\","
              " round(100 * (comp + comm - either) / span, 1) AS \"communicating, hidden %\","
              " round(100 * (either - comp) / span, 1) AS \"not hidden %\","
              " round(100 * (\"any\" - either) / span, 1) AS \"only copying %\","
              " round(100 * (1 - \"any\" / span), 1) AS \"idle %\" FROM flat ORDER BY ALL";

static const char launches[] =
    LAST " SELECT {rank,}device, count(*) AS kernels, count(DISTINCT stream) AS streams,"
         " round(median(duration_us), 2) AS median_us,"
         " round(100 * avg((duration_us < 5)::INTEGER), 1) AS \"under 5 us %\","
         " round(100 * avg((graph IS NOT NULL)::INTEGER), 1) AS \"of graphs %\" FROM kernels GROUP BY ALL "
         "ORDER BY ALL";

/* A kernel for the screen: without its arguments, numbers of templates, and namespaces that all have. */
#define SHORT "CASE WHEN length(s) > 90 THEN s[:87] || '...' ELSE s END"
#define SHORTER                                                                                              \
    "regexp_replace(regexp_replace(regexp_replace(replace(name, '(anonymous namespace)::', ''),"             \
    " '^void |\\(.*$', '', 'g'), '\\b(at::native|at|c10|std|cutlass)::', '', 'g'), ', "                      \
    "[0-9]+(ul)?\\b|<[0-9, ]+>',"                                                                            \
    " '', 'g')"

static const char slowest[] =
    LAST ", each AS (SELECT {rank,}name, count(*) AS calls, sum(duration_us) AS us FROM kernels"
         " GROUP BY {rank,}name QUALIFY row_number() OVER ({over rank} ORDER BY us DESC) <= 10),"
         " whole AS (SELECT {rank,}sum(duration_us) AS all_us FROM kernels {by rank})"
         " SELECT {rank,}calls, round(us / 1000, 3) AS ms, round(us / calls, 2) AS avg_us,"
         " round(100 * us / all_us, 1) AS \"of kernels %\", {kernel} AS kernel"
         " FROM (SELECT *, " SHORTER " AS s FROM each) {join rank} ORDER BY {rank,}ms DESC";

static const char copied[] = LAST
    " SELECT {rank,}kind AS copies, pageable, count(*) AS calls, round(sum(bytes) / 1048576.0, 3) AS mb,"
    " round(sum(duration_us) / 1000, 3) AS ms, round(sum(bytes) / nullif(sum(duration_us), 0) / 1000, 2) AS"
    " \"GB/s\" FROM copies GROUP BY ALL ORDER BY {rank,}ms DESC LIMIT 8";

static const char lost[] = "SELECT {rank,}unfinished, lost FROM gpu.profiles WHERE unfinished + lost > 0"
                           " QUALIFY row_number() OVER ({over rank} ORDER BY timestamp DESC) = 1";

static const struct {
    const char *mark, *several, *single;
} marks[] = {
    {"{rank,}", "rank, ", ""},
    {"{over rank}", "PARTITION BY rank", ""},
    {"{k rank}", "k.rank = p.rank AND ", ""},
    {"{by rank}", "GROUP BY rank", ""},
    {"{join rank}", "JOIN whole USING (rank)", ", whole"},
    {"{kernel}", NULL, NULL}, /* short, or the whole name */
};
#define MARKS (sizeof(marks) / sizeof(marks[0]))

static void put_statement(FILE *to, const char *statement, bool ranks, bool whole_names)
{
    while (*statement) {
        size_t i = 0;
        while (i < MARKS && strncmp(statement, marks[i].mark, strlen(marks[i].mark)) != 0)
            i++;
        if (i == MARKS) {
            putc(*statement++, to);
            continue;
        }
        if (marks[i].several)
            fputs(ranks ? marks[i].several : marks[i].single, to);
        else
            fputs(whole_names ? "name" : SHORT, to);
        statement += strlen(marks[i].mark);
    }
}

/* What the agent says of the probe. */
struct probe_state {
    uint64_t state;
    char why[256];
};

static int ask_agent(struct pb_client *client, pid_t pid, enum pb_probes_mode mode, const char *settings,
                     struct probe_state *ret, struct pb_err *err)
{
    uint8_t buf[512];
    struct pb_frame_writer w;
    struct pb_frame frame;

    *ret = (struct probe_state){.state = PB_PROBE_OFF};
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_MODE, mode);
    pb_frame_put_str(&w, PB_TAG_NAME, probe);
    pb_frame_put_str(&w, PB_TAG_DATA, settings);
    int64_t id = pb_client_request(client, &w, PB_MSG_PROBES);
    int r = id < 0 ? (int)id : 0, found = 0;
    while (r == 0) {
        r = pb_client_next(client, &frame, -1);
        if (r < 0 || frame.type != PB_MSG_OUTPUT)
            break;
        ret->state = pb_field_u64(&frame, PB_TAG_VALUE, PB_PROBE_OFF);
        pb_field_text(&frame, PB_TAG_WHY, ret->why, sizeof(ret->why));
        found = 1;
    }
    r = pb_reply_end(pid, r, &frame, err);
    return r < 0 || found ? r
                          : pb_fail(err, -ENOTSUP, "the agent in this process is older than this program");
}

static int begin(struct pb_client *client, pid_t pid, const char *settings, struct pb_err *err)
{
    struct probe_state state;

    int r = ask_agent(client, pid, PB_PROBES_LIST, "", &state, err);
    if (r >= 0 && state.state != PB_PROBE_OFF)
        return pb_fail(err, -EBUSY, "a recording of its GPU runs already: wait for its end");
    return r < 0 ? r : ask_agent(client, pid, PB_PROBES_START, settings, &state, err);
}

/* The agent answers to the end of its process. */
static bool is_gone(int r)
{
    return r == -EPIPE || r == -ECONNRESET;
}

static int wait_for_end(struct pb_client *client, pid_t pid, struct pb_err *err)
{
    struct probe_state state = {.state = PB_PROBE_ON};

    while (state.state != PB_PROBE_OFF) {
        usleep(LOOK_MS * 1000);
        int r = ask_agent(client, pid, PB_PROBES_LIST, "", &state, err);
        if (is_gone(r))
            return pb_fail(err, r, "the process ended, or its agent was detached, during the recording");
        if (r < 0)
            return r;
    }
    return state.why[0] ? pb_fail(err, -EIO, "%s", state.why) : 0;
}

/* Begins in all, then waits for all: they record the same time. */
static int record(const struct pb_call *call, struct pb_parts_session *sessions, struct pb_err *err)
{
    unsigned ms = pb_call_ms(call, "seconds");
    int failed = 0;
    char settings[32];

    snprintf(settings, sizeof(settings), "for=%ums", ms);
    for (int waits = 0; waits < 2; waits++)
        for (size_t i = 0; i < call->targets.n; i++) {
            struct pb_parts_session *s = &sessions[i];
            if (s->result < 0 && waits)
                continue;
            int r = s->result < 0 ? pb_fail(err, s->result, "%s", pb_err_text(&s->err, s->result)) : 0;
            if (r == 0) {
                pb_client_limit(&s->session.client, ms + SLACK_MS);
                r = waits ? wait_for_end(&s->session.client, call->targets.at[i].pid, err)
                          : begin(&s->session.client, call->targets.at[i].pid, settings, err);
            }
            if (r < 0) {
                s->result = s->result < 0 ? s->result : -EIO;
                failed = pb_target_failed(call, &call->targets.at[i], r, err);
            }
        }
    return failed;
}

static int print_summary(const struct pb_call *call, struct pb_err *err)
{
    const char *const summary[] = {times, launches, slowest, copied, lost};
    struct pb_query_options o = {.timeout_ms = TIMEOUT_MS,
                                 .print = {.if_empty = "no kernel ran on the GPU meanwhile"}};
    bool ranks = call->targets.n > 1;
    _cleanup_free_ char *sql = NULL;
    size_t size;

    o.format = call->format == PB_FORMAT_JSON  ? PB_QUERY_JSON
               : call->format == PB_FORMAT_CSV ? PB_QUERY_CSV
               : call->format == PB_FORMAT_TSV ? PB_QUERY_TSV
                                               : PB_QUERY_TABLE;
    FILE *to = open_memstream(&sql, &size);
    if (!to)
        return pb_fail(err, -ENOMEM, "out of memory");
    bool as_table = o.format == PB_QUERY_TABLE; /* the others hold one table: the kernels */
    for (size_t i = 0; as_table && i < sizeof(summary) / sizeof(summary[0]); i++) {
        fputs(i ? "; " : "", to);
        put_statement(to, summary[i], ranks, false);
    }
    if (!as_table)
        put_statement(to, slowest, ranks, true);
    if (fclose(to) != 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    return pb_query_run(call, &o, sql, strlen(sql), stdout, err);
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    struct pb_parts_session *sessions;

    if (call->nargs != 1 || strcmp(call->args[0], "profile") != 0)
        return pb_fail(err, PB_USAGE, "what of the GPU? there is profile");
    int r = pb_parts_sessions(&call->ask, &call->targets, false, 0, &sessions, err);
    if (r < 0)
        return r;
    r = record(call, sessions, err);
    pb_parts_sessions_done(sessions, call->targets.n);
    if (r && call->targets.n == 1)
        return r;
    int printed = print_summary(call, err);
    return printed < 0 ? printed : r;
}

static const struct pb_option options[] = {
    {0, "seconds", PB_TIME(.least = 10, .most = 60000, .usual = 2000), "how long it records (default 2s)"},
    {0},
};

const struct pb_command pb_cmd_gpu = {
    .name = "gpu",
    .summary = "which kernels run on the GPUs of a process",
    .synopsis = "profile",
    .text =
        "profile: every kernel and copy on its GPUs for some seconds, by NVIDIA's CUPTI, which torch with "
        "CUDA "
        "has loaded.\nShown: how long each GPU computed, communicated (kernels of NCCL; hidden: while others "
        "computed), copied and was idle,\nthe kernels that take most time, and copies. The rows are "
        "gpu.kernels "
        "and gpu.copies. A recording ends by itself, also\nwhen this program is killed. CUPTI is not touched "
        "before the first; after it, it stays initialized.\nOnly "
        "one "
        "profiler can use CUPTI: where torch.profiler or Nsight does, it is refused.",
    .example = "probing -t 4711 gpu profile\nprobing -t train.py --all gpu profile --seconds 500ms\n"
               "probing -t 4711 query \"SELECT name, duration_us FROM gpu.kernels\"",
    .options = options,
    .max_args = 1,
    .flags = PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_ROWS | PB_CMD_TOGETHER,
    .run = run,
};
