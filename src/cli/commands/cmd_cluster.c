/* cluster: finds the nodes and ranks of a job and keeps them, so that -t cluster is all of it. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/program.h"
#include "cli/cli.h"
#include "cli/print/rows.h"
#include "cli/ranks/ranks.h"
#include "cluster/find_nodes.h"
#include "cluster/questions/cluster_answer.h"
#include "cluster/questions/cluster_look.h"
#include "cluster/questions/cluster_service.h"
#include "print/outlet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHOWN = 16 }; /* nodes, each with a sentence */

static const struct pb_option options[] = {
    {0, "services", PB_TEXT("HOST:PORT,.."), "nodes that run `probing serve`"},
    {0, "hosts", PB_TEXT("FILE"), "nodes by ssh: a host on each line, as for mpirun"},
    {0, "slurm", PB_TEXT("JOB"),
     "the nodes of a SLURM job, by srun (default: SLURM_JOB_ID, where that is set)"},
    {0, "mpi", NULL, "the nodes of the mpirun that runs here, by ssh"},
    {0, "kubernetes", PB_TEXT("LABELS"), "pods with these labels, by kubectl exec"},
    {0, "ray", NULL,
     "the nodes of the Ray cluster, by a task on each (default: RAY_ADDRESS, where that is set)"},
    {0, "here", NULL, "the ranks of this machine (torchrun); the default where nothing else is found"},
    {0, "match", PB_TEXT("VARIABLE=VALUE"), "ranks with this in their environment (default: all of yours)"},
    {0, "roles", PB_TEXT("LAYOUT"),
     "roles by rank: tp=4,pp=2,dp=*, the first changes fastest; none: do not ask the processes for them"},
    {0, "launcher", PB_TEXT("WORDS"), "in place of ssh, srun, kubectl or python3: ssh -F FILE"},
    {0, "program", PB_TEXT("PATH"), "probing on the nodes (default: where it is here)"},
    {0, "serve", NULL, "start a service on each node and use these; detach stops them"},
    {0, "token-file", PB_TEXT("FILE"), "the token of the services (--services)"},
    {0, "archive", PB_TEXT("DIR"),
     "query: an archive of all ranks, or a folder with an archive for each node"},
    {'o', "output", PB_TEXT("FILE"), "query: write to FILE; its ending selects the format"},
    {0, "stats", NULL, "query: say how much was read, on stderr"},
    {0},
};

static const char *name_of(const struct pb_call *call)
{
    return call->nargs > 1 ? call->args[1] : NULL;
}

static int set_option(const struct pb_call *call, const char *option, char *to, struct pb_err *err)
{
    const char *value = pb_call_option(call, option);

    if (!value)
        return 0;
    if (strlen(value) >= PB_CLUSTER_TEXT || strpbrk(value, "\r\n"))
        return pb_fail(err, PB_USAGE, "--%s is too long, or has more than one line", option);
    strcpy(to, value);
    return 0;
}

static int set_program(struct pb_cluster *c, struct pb_err *err)
{
    int r = c->program[0] ? 0 : pb_program_path(c->program, sizeof(c->program));

    return r < 0 ? pb_fail(err, r, "cannot find the probing executable: %s (give --program)", strerror(-r))
                 : 0;
}

/* Store the whole path: later commands may start in another folder. */
static int set_token_file(const struct pb_call *call, struct pb_cluster *c, struct pb_err *err)
{
    const char *given = pb_call_option(call, "token-file");
    _cleanup_free_ char *path = realpath(given, NULL);

    if (!path || strlen(path) >= sizeof(c->token_file))
        return pb_fail(err, path ? -ENAMETOOLONG : -errno, "%s cannot be read: %s", given,
                       path ? "its path is too long" : strerror(errno));
    strcpy(c->token_file, path);
    return 0;
}

/* "cluster slurm-12: 4 nodes by slurm, 8 of 8 ranks", and which ranks are missing. */
static void put_summary(const struct pb_cluster *c)
{
    size_t missing = 0;
    _cleanup_free_ bool *gone = calloc(c->world + 1, sizeof(*gone));

    printf("cluster %s: %zu node%s by %s, %zu", c->name, c->nnodes, c->nnodes == 1 ? "" : "s",
           pb_cluster_way_name(c->way), c->nranks);
    if (c->world)
        printf(" of %u", c->world);
    printf(" rank%s\n", c->world == 1 || (!c->world && c->nranks == 1) ? "" : "s");
    for (uint32_t i = 0; gone && i < c->world; i++)
        if (!pb_cluster_find_rank(c, (int32_t)i)) {
            gone[i] = true;
            missing++;
        }
    if (!missing)
        return;
    fflush(stdout);
    fputs(missing == 1 ? "note: no node has rank " : "note: no node has ranks ", stderr);
    pb_cluster_put_ranks(stderr, gone, c->world);
    putc('\n', stderr);
}

static void tell_versions(const struct pb_cluster *c)
{
    for (size_t i = 0; i < c->nnodes; i++)
        if (c->nodes[i].version[0] && strcmp(c->nodes[i].version, PROBING_VERSION) != 0)
            fprintf(stderr, "note: %s has probing %s, this is %s\n", c->nodes[i].name, c->nodes[i].version,
                    PROBING_VERSION);
}

/* The findings of the nodes' doctor, equal ones once for all their ranks. */
static void tell_notes(const struct pb_cluster_look_notes *notes)
{
    _cleanup_free_ bool *printed = calloc(notes->n + 1, sizeof(*printed));
    _cleanup_free_ bool *in = calloc(PB_CLUSTER_RANKS, sizeof(*in));

    for (size_t i = 0; printed && in && i < notes->n; i++) {
        size_t n = 0;
        if (printed[i])
            continue;
        memset(in, 0, PB_CLUSTER_RANKS * sizeof(*in));
        for (size_t k = i; k < notes->n; k++)
            if (strcmp(notes->at[k].text, notes->at[i].text) == 0) {
                printed[k] = true;
                n++;
                if (notes->at[k].rank >= 0 && notes->at[k].rank < PB_CLUSTER_RANKS)
                    in[notes->at[k].rank] = true;
            }
        fputs(n == 1 ? "note: rank " : "note: ranks ", stderr);
        pb_cluster_put_ranks(stderr, in, PB_CLUSTER_RANKS);
        fputs(" cannot be injected into: ", stderr);
        pb_put_sentence(stderr, notes->at[i].text);
    }
}

/* Ranks that are other processes than before. */
static void tell_restarts(const struct pb_cluster *before, const struct pb_cluster *c)
{
    size_t most = c->nranks ? (size_t)c->ranks[c->nranks - 1].rank + 1 : 0, n = 0;
    _cleanup_free_ bool *anew = calloc(most + 1, sizeof(*anew));

    for (size_t i = 0; anew && i < c->nranks; i++) {
        const struct pb_cluster_rank *old = pb_cluster_find_rank(before, c->ranks[i].rank);
        if (old && (old->start_time != c->ranks[i].start_time || old->pid != c->ranks[i].pid)) {
            anew[c->ranks[i].rank] = true;
            n++;
        }
    }
    if (!n)
        return;
    fputs(n == 1 ? "note: rank " : "note: ranks ", stderr);
    pb_cluster_put_ranks(stderr, anew, most);
    fputs(n == 1 ? " was restarted\n" : " were restarted\n", stderr);
}

static void tell_services(const struct pb_cluster *c, const struct pb_node_reason *reasons)
{
    size_t n = 0, without = 0;
    bool beyond = false;

    for (size_t i = 0; i < c->nnodes; i++) {
        n += c->nodes[i].service[0] != '\0';
        beyond = beyond || (c->nodes[i].service[0] && c->way != PB_WAY_LOCAL);
    }
    printf("services on %zu of %zu node%s\n", n, c->nnodes, c->nnodes == 1 ? "" : "s");
    fflush(stdout);
    for (size_t i = 0; i < c->nnodes; i++) {
        if (c->nodes[i].service[0] || without++ >= SHOWN)
            continue;
        fprintf(stderr, "note: no service on %s, which is reached by %s instead: ", c->nodes[i].name,
                pb_cluster_way_name(c->way));
        pb_put_sentence(stderr, reasons[i].text[0] ? reasons[i].text : "the node did not answer");
    }
    if (without > SHOWN)
        fprintf(stderr, "note: and on %zu more nodes\n", without - SHOWN);
    if (beyond)
        fputs("note: the services have no TLS: tokens, questions and answers can be read on the network "
              "between "
              "(probing cluster detach ends them)\n",
              stderr);
}

static int serve_nodes(struct pb_cluster *c, const struct pb_cluster_result *looked, unsigned limit_ms,
                       struct pb_err *err)
{
    _cleanup_free_ struct pb_node_reason *reasons = NULL;

    int r = pb_cluster_serve(c, looked, limit_ms, &reasons, err);
    if (r == 0)
        tell_services(c, reasons);
    return r;
}

/* False: some nodes did not answer. */
static bool end_services(struct pb_cluster *c, unsigned limit_ms)
{
    _cleanup_free_ struct pb_node_reason *reasons = NULL;
    struct pb_err err = {0};
    size_t n = 0;

    int r = pb_cluster_end_services(c, limit_ms, &reasons, &err);
    if (r < 0)
        pb_put_between(stderr, "note: the services cannot be ended: ", pb_err_text(&err, r), "\n");
    for (size_t i = 0; r == 0 && i < c->nnodes; i++) {
        if (!reasons[i].text[0] || n++ >= SHOWN)
            continue;
        fprintf(stderr, "note: what was started on %s may still run: ", c->nodes[i].name);
        pb_put_sentence(stderr, reasons[i].text);
    }
    if (n > SHOWN)
        fprintf(stderr, "note: and on %zu more nodes\n", n - SHOWN);
    return r == 0 && !n;
}

static int look_and_keep(const struct pb_call *call, struct pb_cluster *c, struct pb_err *err)
{
    enum { NOTES = 1024 };
    _cleanup_(pb_cluster_result_done) struct pb_cluster_result result = {0};
    struct pb_cluster_look_notes notes = {.cap = NOTES};
    _cleanup_free_ void *room = notes.at = calloc(NOTES, sizeof(*notes.at));

    int r = room ? pb_cluster_look(c, pb_call_limit(call), &result, &notes, err)
                 : pb_fail(err, -ENOMEM, "out of memory");
    if (r < 0)
        return r;
    bool all = pb_cluster_tell(c, &result);
    if (!result.answered)
        return pb_fail(err, -EHOSTUNREACH, "no node answered: nothing was saved");
    if (c->nranks == 0)
        return pb_fail(err, -ESRCH, "no node has a process with a rank%s%s: nothing was saved",
                       c->match[0] ? " and " : "", c->match);
    /* Kept before, so that detach ends what is started even where this is ended. */
    r = pb_cluster_save(c, err);
    if (r == 0)
        put_summary(c);
    if (r == 0 && c->serve[0]) {
        r = serve_nodes(c, &result, pb_call_limit(call), err);
        r = r < 0 ? r : pb_cluster_save(c, err);
    }
    if (r < 0)
        return r;
    tell_versions(c);
    tell_notes(&notes);
    return all ? 0 : PB_PARTIAL;
}

/* The mark of the services; that of before where the cluster is attached again, since detach is to end what
 * was started then. */
static int set_services(const struct pb_call *call, struct pb_cluster *c, struct pb_err *err)
{
    _cleanup_(pb_cluster_done) struct pb_cluster before = {0};
    struct pb_err ignored = {0};

    if (pb_call_option(call, "serve") && c->way == PB_WAY_SERVICES)
        return pb_fail(err, PB_USAGE, "--services are there: leave --serve out");
    if (pb_cluster_load(c->name, &before, &ignored) == 0 && before.serve[0] && c->way != PB_WAY_SERVICES) {
        strcpy(c->serve, before.serve);
        return 0;
    }
    return pb_call_option(call, "serve") ? pb_cluster_mark_services(c, err) : 0;
}

static int find(const struct pb_call *call, struct pb_cluster *c, struct pb_err *err)
{
    const struct pb_cluster_find how = {.services = pb_call_option(call, "services"),
                                        .hosts = pb_call_option(call, "hosts"),
                                        .slurm = pb_call_option(call, "slurm"),
                                        .kubernetes = pb_call_option(call, "kubernetes"),
                                        .mpi = pb_call_option(call, "mpi"),
                                        .ray = pb_call_option(call, "ray"),
                                        .local = pb_call_option(call, "here")};

    if (!!how.hosts + !!how.services + !!how.slurm + !!how.kubernetes + how.mpi + how.ray + how.local > 1)
        return pb_fail(err, PB_USAGE,
                       "one of --services, --hosts, --slurm, --mpi, --kubernetes, --ray and --here");
    if (how.slurm && (!how.slurm[0] || strspn(how.slurm, "0123456789_+") != strlen(how.slurm)))
        return pb_fail(err, PB_USAGE, "--slurm takes the number of a job, not '%s'", how.slurm);
    return pb_cluster_find(&call->ask, &how, c, err);
}

static int attach(const struct pb_call *call, struct pb_err *err)
{
    _cleanup_(pb_cluster_done) struct pb_cluster c = {0};
    const char *name = name_of(call);

    if (name && !pb_cluster_is_name(name))
        return pb_fail(err, PB_USAGE, "'%s' is no name: letters, digits, . _ and - make one", name);
    snprintf(c.name, sizeof(c.name), "%s", name ? name : "");
    int r = set_option(call, "launcher", c.launcher, err);
    if (r == 0)
        r = set_option(call, "program", c.program, err);
    if (r == 0)
        r = set_program(&c, err);
    if (r == 0)
        r = find(call, &c, err);
    if (r == 0)
        r = set_option(call, "match", c.match, err);
    if (r == 0)
        r = set_option(call, "roles", c.layout, err);
    if (r == 0 && pb_call_option(call, "token-file"))
        r = set_token_file(call, &c, err);
    if (r == 0)
        r = set_services(call, &c, err);
    return r < 0 ? r : look_and_keep(call, &c, err);
}

static int refresh(const struct pb_call *call, struct pb_err *err)
{
    _cleanup_(pb_cluster_done) struct pb_cluster c = {0}, before = {0};

    int r = pb_cluster_load(name_of(call), &c, err);
    if (r == 0)
        r = pb_cluster_load(c.name, &before, err);
    if (r == 0)
        r = pb_cluster_find_again(&c, err);
    if (r == 0)
        r = look_and_keep(call, &c, err);
    if (r == 0 || r == PB_PARTIAL)
        tell_restarts(&before, &c);
    return r;
}

static int list(const struct pb_call *call, struct pb_err *err)
{
    static const char *const columns[] = {"name", "way", "job", "nodes", "ranks", "world"};
    struct pb_rows rows;
    char **names = NULL;
    size_t n = 0;

    int r = pb_cluster_names(&names, &n, err);
    if (r < 0)
        return r;
    pb_rows_init(&rows, columns, 6);
    for (size_t i = 0; i < n; i++) {
        _cleanup_(pb_cluster_done) struct pb_cluster c = {0};
        struct pb_err why = {0};
        r = pb_cluster_load(names[i], &c, &why);
        if (r < 0) {
            pb_put_between(stderr, "probing: cluster: ", pb_err_text(&why, r), "\n");
            continue;
        }
        pb_rows_text(&rows, c.name);
        pb_rows_text(&rows, pb_cluster_way_name(c.way));
        pb_rows_text(&rows, c.job);
        pb_rows_number(&rows, "%zu", c.nnodes);
        pb_rows_number(&rows, "%zu", c.nranks);
        pb_rows_number(&rows, "%u", c.world);
    }
    pb_cluster_names_free(names, n);
    r = pb_rows_print(&rows, call->format, "no cluster is attached", err);
    pb_rows_done(&rows);
    return r;
}

static int show(const struct pb_call *call, struct pb_err *err)
{
    static const char *const columns[] = {"rank", "node", "pid", "local", "roles", "version", "by"};
    _cleanup_(pb_cluster_done) struct pb_cluster c = {0};
    struct pb_rows rows;
    char roles[PB_ROLES_TEXT];

    int r = pb_cluster_load(name_of(call), &c, err);
    if (r < 0)
        return r;
    pb_rows_init(&rows, columns, 7);
    for (size_t i = 0; i < c.nranks; i++) {
        const struct pb_cluster_rank *rank = &c.ranks[i];
        const struct pb_cluster_node *node = &c.nodes[rank->node];
        pb_roles_format(&rank->roles, roles);
        pb_rows_number(&rows, "%d", rank->rank);
        pb_rows_text(&rows, node->name);
        pb_rows_number(&rows, "%d", (int)rank->pid);
        if (rank->local >= 0)
            pb_rows_number(&rows, "%d", rank->local);
        else
            pb_rows_text(&rows, NULL);
        pb_rows_text(&rows, roles[0] ? roles : NULL);
        pb_rows_text(&rows, node->version[0] ? node->version : NULL);
        pb_rows_text(&rows, node->service[0] ? node->service : pb_cluster_way_name(c.way));
    }
    r = pb_rows_print(&rows, call->format, NULL, err);
    pb_rows_done(&rows);
    return r;
}

static int detach(const struct pb_call *call, struct pb_err *err)
{
    _cleanup_(pb_cluster_done) struct pb_cluster c = {0};
    const char *name = name_of(call);

    /* A file that cannot be read is forgotten too, by its name. */
    int r = pb_cluster_load(name, &c, err);
    if (r < 0)
        return name && r != -ENOENT ? pb_cluster_forget(name, err) : r;
    bool all = !c.serve[0] || end_services(&c, pb_call_limit(call));
    r = pb_cluster_forget(c.name, err);
    return r < 0 || all ? r : PB_PARTIAL;
}

static bool takes_cluster(const char *name)
{
    const struct pb_command *command = pb_command_find(name);

    return command && command->flags & PB_CMD_CLUSTER;
}

static int answer(const struct pb_call *call, struct pb_err *err)
{
    static const struct pb_answer_commands commands = {.takes_cluster = takes_cluster, .run = pb_run_line};
    const char *how = name_of(call);

    if (how && strcmp(how, "text") != 0 && how[0] != '/')
        return pb_fail(err, PB_USAGE, "it answers in bytes or as text, not as '%s'", how);
    return pb_answer_run(&call->ask, &commands, how, err);
}

static int query(const struct pb_call *call, struct pb_err *err)
{
    struct pb_cluster self = {0};

    int r = set_program(&self, err);
    return r < 0 ? r : pb_cluster_history(call, self.program, err);
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    static const struct {
        const char *name;
        int (*run)(const struct pb_call *call, struct pb_err *err);
    } verbs[] = {{"attach", attach}, {"refresh", refresh}, {"list", list},    {"show", show},
                 {"detach", detach}, {"query", query},     {"answer", answer}};

    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
        if (strcmp(verbs[i].name, call->args[0]) == 0)
            return verbs[i].run(call, err);
    return pb_fail(err, PB_USAGE, "unknown subcommand '%s': use attach, list, show, refresh, detach or query",
                   call->args[0]);
}

const struct pb_command pb_cmd_cluster = {
    .name = "cluster",
    .summary = "a job on many nodes as one target: attach once, then ask with -t cluster",
    .synopsis = "attach | list | show | refresh | detach [NAME] | query --archive DIR SQL",
    .text = "attach finds the nodes of a job, asks each for its ranks, and stores the list. From "
            "then on -t cluster (or -t cluster:NAME) is all of them; --ranks and --nodes select "
            "some.\n\n"
            "Nothing stays on the nodes: for each question the launcher (srun, ssh, kubectl, Ray) "
            "runs this program there, with your rights. With --serve, attach starts a service on "
            "each node and asks through it; if that fails on a node, the launcher is used. "
            "--services uses services that run already.\n\n"
            "refresh finds the ranks again, after a restart or a requeue. detach forgets the job, "
            "and ends only services that --serve started. query runs SQL over the archives of all "
            "ranks, in one folder or one for each node.\n\n"
            "If a node does not answer in time, the answers of the others are shown, stderr names "
            "it, and the exit status is 3.",
    .example = "probing cluster attach --slurm 4711\n"
               "probing cluster attach big --hosts hosts.txt --roles tp=4,pp=2,dp=*\n"
               "probing -t cluster backtrace --merge\n"
               "probing -t cluster eval \"loss\" --ranks pp=1,tp=*\n"
               "probing cluster query --archive DIR \"SELECT rank, max(step) FROM t\"",
    .options = options,
    .min_args = 1,
    .max_args = 2,
    .flags = PB_CMD_BYTES | PB_CMD_ROWS | PB_CMD_TIMEOUT,
    .run = run,
};
