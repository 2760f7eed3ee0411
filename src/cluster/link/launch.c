/* launch: the launchers: what is started for a node, or for all of them; see link.h.
 *
 * Nothing of ours runs on a node before, and nothing stays: the launcher starts `probing cluster answer`
 * there with the user's own rights, which reads questions from its standard input until that ends. */
#include "base/null.h"
#include "base/process.h"
#include "cluster/link/link.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 64 };

bool pb_way_is_labelled(enum pb_cluster_way way)
{
    return way == PB_WAY_SLURM || way == PB_WAY_RAY;
}

bool pb_way_must_hold(enum pb_cluster_way way)
{
    return way == PB_WAY_SLURM;
}

bool pb_way_is_socket(enum pb_cluster_way way)
{
    return way == PB_WAY_SERVICES;
}

struct launch_line {
    const char *words[WORDS];
    size_t n;
    char launcher[PB_CLUSTER_TEXT], texts[8][PB_CLUSTER_TEXT + 32];
    size_t ntexts;
    char *nodes; /* of all selected, joined by commas */
};

static void line_done(struct launch_line *l)
{
    free(l->nodes);
}

static void add(struct launch_line *l, const char *word)
{
    if (l->n < WORDS - 1)
        l->words[l->n++] = word;
}

__attribute__((format(printf, 2, 3))) static void addf(struct launch_line *l, const char *format, ...)
{
    va_list args;
    char *text = l->texts[l->ntexts];

    if (l->ntexts == sizeof(l->texts) / sizeof(l->texts[0]))
        return;
    l->ntexts++;
    va_start(args, format);
    vsnprintf(text, sizeof(l->texts[0]), format, args);
    va_end(args);
    add(l, text);
}

/* The launcher's own words: what the user gave in its place, cut at blanks. */
static void add_launcher(struct launch_line *l, const struct pb_cluster *c, const char *usual)
{
    char *save = NULL;

    snprintf(l->launcher, sizeof(l->launcher), "%s", c->launcher[0] ? c->launcher : usual);
    for (char *word = strtok_r(l->launcher, " ", &save); word; word = strtok_r(NULL, " ", &save))
        add(l, word);
}

static int join_nodes(struct launch_line *l, const struct pb_link_plan *plan)
{
    size_t size;
    FILE *out = open_memstream(&l->nodes, &size);
    bool first = true;

    if (!out)
        return -ENOMEM;
    for (size_t i = 0; i < plan->c->nnodes; i++)
        if (plan->selection->node[i]) {
            fprintf(out, "%s%s", first ? "" : ",", plan->c->nodes[i].address);
            first = false;
        }
    return fclose(out) == 0 ? 0 : -ENOMEM;
}

/* -l and text: lines of tasks are mixed without, and cut with. --overlap: it would wait for the job's own
 * steps. -I, no memory and no GPUs: nothing of the job's is taken, and it does not wait for it. -W: one task
 * that hangs does not hold the others' end. */
static void add_srun(struct launch_line *l, const struct pb_link_plan *plan)
{
    add_launcher(l, plan->c, "srun");
    add(l, "--overlap");
    addf(l, "--jobid=%s", plan->c->job);
    addf(l, "--nodes=%zu", plan->selection->asked);
    addf(l, "--ntasks=%zu", plan->selection->asked);
    add(l, "--ntasks-per-node=1");
    add(l, "--nodelist");
    add(l, l->nodes);
    /* It hands its input on only when all nodes are there: a dead one would hold all. */
    add(l, plan->keep ? "--input=all" : "--input=none");
    add(l, "--export=ALL");
    add(l, "--mem-per-cpu=0");
    add(l, "--immediate");
    add(l, "--label");
    if (plan->holds)
        add(l, "--no-kill"); /* a node that fails later does not end the others' tasks */
    else
        add(l, "--wait=2");
    add(l, "--quiet");
    add(l, "--mpi=none");
    add(l, "--kill-on-bad-exit=0");
    add(l, plan->c->program);
    add(l, "cluster");
    add(l, "answer");
    add(l, "text");
}

/* A task on each node runs the answering end, and its output comes back whole, as srun's would. */
static const char ray_script[] =
    "import base64, os, subprocess, sys\n"
    "import ray\n"
    "from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On\n"
    "ray.init(address='auto', log_to_driver=False, logging_level='error')\n"
    "question, program, names = sys.stdin.buffer.read(), sys.argv[1], sys.argv[2].split(',')\n"
    "@ray.remote(num_cpus=0)\n"
    "def ask(question):\n"
    "    name = ray.get_runtime_context().get_node_id()\n"
    "    return subprocess.run([program, 'cluster', 'answer', 'text'], input=question, "
    "stdout=subprocess.PIPE, env=dict(os.environ, PROBING_CLUSTER_NODE=name)).stdout\n"
    "tasks = {ask.options(scheduling_strategy=On(node_id=name, soft=False)).remote(question): (i, name)\n"
    "         for i, name in enumerate(names)}\n"
    "left = list(tasks)\n"
    "while left:\n"
    "    done, left = ray.wait(left)\n"
    "    for task in done:\n"
    "        try:\n"
    "            sys.stdout.write('%d: %s\\n' % (tasks[task][0], ray.get(task).decode().strip()))\n"
    "            sys.stdout.flush()\n"
    "        except Exception as error:\n"
    "            sys.stderr.write('%s: %s\\n' % (tasks[task][1], str(error).split('\\n')[0]))\n";

static void add_kubectl(struct launch_line *l, const struct pb_cluster *c, const struct pb_cluster_node *node)
{
    char *save = NULL;

    add_launcher(l, c, "kubectl");
    add(l, "exec");
    add(l, "-i");
    snprintf(l->texts[l->ntexts], sizeof(l->texts[0]), "%s", node->address);
    char *name = strtok_r(l->texts[l->ntexts++], "/", &save), *pod = strtok_r(NULL, "/", &save),
         *container = strtok_r(NULL, "/", &save);
    add(l, "-n");
    add(l, name ? name : "");
    add(l, pod ? pod : "");
    if (container) {
        add(l, "-c");
        add(l, container);
    }
    add(l, "--");
    add(l, c->program);
}

static int make_line(struct launch_line *l, const struct pb_link_plan *plan, ssize_t node)
{
    const struct pb_cluster *c = plan->c;
    const struct pb_cluster_node *n = node >= 0 ? &c->nodes[node] : NULL;

    if (!n) {
        int r = join_nodes(l, plan);
        if (r < 0)
            return r;
        if (c->way == PB_WAY_SLURM) {
            add_srun(l, plan);
            return 0;
        }
        add_launcher(l, c, "python3");
        add(l, "-c");
        add(l, ray_script);
        add(l, c->program);
        add(l, l->nodes);
        return 0;
    }
    if (c->way == PB_WAY_SSH) {
        add_launcher(l, c, "ssh");
        add(l, "-T");
        add(l, "-x");
        add(l, "-oBatchMode=yes");
        addf(l, "-oConnectTimeout=%u", plan->deadline_ms / 1000 + 1);
        add(l, "--");
        add(l, n->address);
        add(l, c->program);
    } else if (c->way == PB_WAY_KUBERNETES) {
        add_kubectl(l, c, n);
    } else {
        add(l, c->program);
    }
    add(l, "cluster");
    add(l, "answer");
    if (c->way == PB_WAY_LOCAL && n->address[0] == '/')
        add(l, n->address); /* an archive of that node */
    return 0;
}

/* The environment with one variable more, on the heap: the texts are those of before. */
static char **extend_environment(const char *more)
{
    size_t n = 0;

    while (environ[n])
        n++;
    char **ret = calloc(n + 2, sizeof(*ret));
    if (ret) {
        memcpy(ret, environ, n * sizeof(*ret));
        ret[n] = (char *)more;
    }
    return ret;
}

int pb_launch_words(const char *const *words, char *const *environment, struct pb_launched *ret)
{
    int both[2] = {-1, -1}, errors[2] = {-1, -1};
    pid_t pid = 0;
    int r = 0;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both) < 0 || pipe2(errors, O_CLOEXEC) < 0)
        r = -errno;
    if (r == 0)
        pid = pb_process_start(&(struct pb_process_plan){.argv = words,
                                                         .environment = environment,
                                                         .search = true,
                                                         .in = both[1],
                                                         .out = both[1],
                                                         .errors = errors[1]});
    r = pid < 0 ? pid : r;
    int fds[] = {both[1], errors[1], both[0], errors[0]};
    for (int i = 0; i < (r < 0 ? 4 : 2); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (r < 0)
        return r;
    /* Ours alone: the ends that the launcher has wait as it expects of its standard streams. */
    fcntl(both[0], F_SETFL, O_NONBLOCK);
    fcntl(errors[0], F_SETFL, O_NONBLOCK);
    *ret = (struct pb_launched){pid, both[0], errors[0]};
    return 0;
}

bool pb_link_asks_by_environment(const struct pb_link_plan *plan)
{
    return plan->c->way == PB_WAY_SLURM && !plan->keep;
}

/* srun's tasks get the question by their environment, which their owner alone can read. */
static int launch_line(const struct pb_link_plan *plan, const struct launch_line *l, struct pb_launched *ret)
{
    _cleanup_free_ char *variable = NULL;
    _cleanup_free_ char **environment = NULL;

    if (!pb_link_asks_by_environment(plan))
        return pb_launch_words(l->words, NULL, ret);
    if (asprintf(&variable, PB_WIRE_VARIABLE "=%s", plan->question) < 0)
        return -ENOMEM;
    variable[strcspn(variable, "\n")] = '\0';
    environment = extend_environment(variable);
    return environment ? pb_launch_words(l->words, environment, ret) : -ENOMEM;
}

int pb_link_launch(const struct pb_link_plan *plan, ssize_t node, struct pb_launched *ret, struct pb_err *err)
{
    _cleanup_(line_done) struct launch_line l = {0};

    int r = make_line(&l, plan, node);
    if (r == 0)
        r = launch_line(plan, &l, ret);
    return r < 0
               ? pb_fail(err, r, "%s cannot be started: %s", l.n ? l.words[0] : "the launcher", strerror(-r))
               : 0;
}

/* With no descriptor of ours but that of its errors. */
static _Noreturn void become_held(const char *const *words, char *const *environment, int errors)
{
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    pb_null_over(STDIN_FILENO, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    execvpe(words[0], (char *const *)words, environment);
    dprintf(STDERR_FILENO, "%s cannot be started: %s\n", words[0], strerror(errno));
    _exit(0);
}

int pb_link_hold(const struct pb_link_plan *plan, int errors, struct pb_err *err)
{
    _cleanup_(line_done) struct launch_line l = {0};
    _cleanup_free_ char *variable = NULL;
    _cleanup_free_ char **environment = NULL;

    int r = make_line(&l, plan, -1);
    if (r == 0 && asprintf(&variable, PB_WIRE_VARIABLE "=%s", plan->question) < 0)
        r = -ENOMEM;
    if (r == 0) {
        variable[strcspn(variable, "\n")] = '\0';
        environment = extend_environment(variable);
    }
    if (!environment)
        return pb_fail(err, -ENOMEM, "out of memory");
    /* Detach the launcher from us, so that it leaves no zombie. */
    r = pb_process_orphan();
    if (r == 0)
        become_held(l.words, environment, errors);
    return r < 0 ? pb_fail(err, r, "%s cannot be started: %s", l.words[0], strerror(-r)) : 0;
}

int pb_link_end(pid_t pid, unsigned *patience_ms)
{
    int status = 0;

    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (*patience_ms == 0) {
            kill(-pid, SIGKILL);
            while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
            break;
        }
        usleep(1000);
        --*patience_ms;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
