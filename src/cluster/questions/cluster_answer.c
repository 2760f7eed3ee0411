/* cluster_answer: see cluster_answer.h. */
#include "cluster/questions/cluster_answer.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cluster/archive_nodes.h"
#include "cluster/questions/cluster_clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Wait for the first question until a deadline. Later questions may come at any time, but when the connection
 * is lost, this process must end. */
enum { LINE_SIZE = 128 * 1024, PATIENCE_MS = 10000, NEXT_PATIENCE_MS = 600000 };

void pb_answer_ranks(const struct pb_answering *a)
{
    for (size_t i = 0; i < a->members->n; i++) {
        pb_answer_rank(a->out, &a->members->at[i], a->members->world);
        pb_answer_exit(a->out, 0);
    }
}

int pb_answer_targets(const struct pb_answering *a, struct pb_targets *ret)
{
    size_t n = a->members->n;

    ret->at = calloc(n + 1, sizeof(*ret->at));
    if (!ret->at)
        return -ENOMEM;
    ret->n = n;
    for (size_t i = 0; i < n; i++) {
        ret->at[i] = (struct pb_target){.pid = a->members->at[i].pid};
        pb_target_set_rank(&ret->at[i], a->members->at[i].rank);
    }
    return 0;
}

static const struct {
    const char *name;
    int (*answer)(const struct pb_answering *a, struct pb_err *err);
} answers[] = {{"look", pb_answer_look},       {"stacks", pb_answer_stacks},   {"command", pb_answer_command},
               {"profile", pb_answer_profile}, {"service", pb_answer_service}, {"rows", pb_answer_rows},
               {"once", pb_answer_once}};

/* The question that is in the environment. False: there is none. */
static bool take_variable(char *ret, size_t size, size_t *ret_n)
{
    const char *variable = getenv(PB_WIRE_VARIABLE);

    if (!variable || strlen(variable) >= size)
        return false;
    *ret_n = strlen(variable);
    memcpy(ret, variable, *ret_n);
    unsetenv(PB_WIRE_VARIABLE); /* not for what is started from here */
    return true;
}

/* Up to the next newline of the standard input. 0: that has ended. */
static int read_line(char *ret, size_t size, int patience_ms, size_t *ret_n, struct pb_err *err)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    size_t n = 0;

    while (n < size) {
        if (poll(&p, 1, patience_ms) == 0)
            return pb_fail(err, -ETIMEDOUT, "no question came on standard input");
        ssize_t more = read(STDIN_FILENO, ret + n, size - n);
        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0)
            break;
        const char *newline = memchr(ret + n, '\n', (size_t)more);
        n += (size_t)more;
        if (newline)
            break;
    }
    *ret_n = n;
    return n > 0;
}

/* As the launcher calls it: the asking end knows the node by that. */
static void find_node_name(char ret[PB_CLUSTER_TEXT])
{
    const char *names[] = {getenv("PROBING_CLUSTER_NODE"), getenv("SLURMD_NODENAME")};

    for (size_t i = 0; i < 2; i++)
        if (names[i] && names[i][0]) {
            snprintf(ret, PB_CLUSTER_TEXT, "%s", names[i]);
            return;
        }
    if (gethostname(ret, PB_CLUSTER_TEXT - 1) < 0 || !ret[0])
        strcpy(ret, "?");
    ret[PB_CLUSTER_TEXT - 1] = '\0';
}

static int answer_question(struct pb_answering *a, struct pb_err *err)
{
    _cleanup_(pb_members_done) struct pb_node_members members = {0};
    const char *what = a->question->words[0];

    int r = a->ask.archive_node
                ? pb_history_members(a->ask.archive, a->ask.archive_node, &members, err)
                : pb_members_read(&a->ask, a->question->match, a->question->ranks, &members, err);
    if (r < 0)
        return r;
    a->members = &members;
    if (a->ask.archive_node && strcmp(what, "rows") != 0)
        return pb_fail(err, -ENOSYS, "an archive does not know the question '%s'", what);
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
        if (strcmp(answers[i].name, what) == 0)
            return answers[i].answer(a, err);
    return pb_fail(err, -ENOSYS, "probing %s here does not know the question '%s'", PROBING_VERSION, what);
}

/* One question, and its answer. */
static int answer_line(const struct pb_answering *asked, const char *line, size_t n, bool text,
                       const char *node)
{
    _cleanup_(pb_question_done) struct pb_question_in in = {0};
    struct pb_answer_writer out = {.fd = STDOUT_FILENO, .text = text};
    struct pb_answering a = *asked;
    struct pb_err why = {0};
    int64_t received_ns = pb_wall_ns();

    a.out = &out;
    pb_answer_begin(&out, node);
    int r = pb_question_decode(line, n, &in, &why);
    if (r == 0 && strcmp(in.q.words[0], PB_CLOCK_WORD) == 0) {
        pb_clock_say(&out, received_ns);
    } else if (r == 0) {
        pb_answer_flush(&out); /* it is there, however long it takes */
        a.question = &in.q;
        a.deadline_ns = pb_now_ns() + in.q.limit_ms * PB_NS_PER_MS;
        r = answer_question(&a, &why);
    }
    return pb_answer_end(&out, r < 0, r < 0 ? pb_err_text(&why, r) : "");
}

int pb_answer_run(const struct pb_ask *ask, const struct pb_answer_commands *commands, const char *how,
                  struct pb_err *err)
{
    _cleanup_free_ char *line = malloc(LINE_SIZE);
    _cleanup_free_ char *folder = how && how[0] == '/' ? strdup(how) : NULL;
    char node[PB_CLUSTER_TEXT];
    size_t n = 0, answered = 0;
    bool text = how && strcmp(how, "text") == 0;
    int r = line && (text || !how || folder) ? 0 : -ENOMEM;
    struct pb_answering a = {.ask = *ask, .commands = commands};

    signal(SIGPIPE, SIG_IGN); /* the asking end may be gone: its writes fail */
    find_node_name(node);
    char *at = folder ? strrchr(folder, '@') : NULL;
    if (at) {
        *at = '\0';
        a.ask.archive = folder;
        a.ask.archive_node = at + 1;
    }
    if (r == 0 && take_variable(line, LINE_SIZE, &n)) {
        r = answer_line(&a, line, n, text, node);
        return r < 0 ? pb_fail(err, r, "the answer cannot be written: %s", strerror(-r)) : 0;
    }
    while (r == 0) {
        r = read_line(line, LINE_SIZE, answered ? NEXT_PATIENCE_MS : PATIENCE_MS, &n, err);
        if (r <= 0)
            break;
        r = answer_line(&a, line, n, text, node);
        if (r < 0)
            return pb_fail(err, r, "the answer cannot be written: %s", strerror(-r));
        answered++;
    }
    if (r == 0 && !answered)
        return pb_fail(err, -EBADMSG, "no question came on standard input");
    return answered ? 0 : r;
}
