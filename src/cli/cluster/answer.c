/* answer: see answer.h. */
#include "cli/cluster/answer.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/cli.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_SIZE = 128 * 1024, PATIENCE_MS = 10000 };

void pb_answer_ranks(const struct pb_answering *a)
{
    for (size_t i = 0; i < a->members->n; i++) {
        pb_answer_rank(a->out, &a->members->at[i], a->members->world);
        pb_answer_exit(a->out, 0);
    }
}

static int answer_look(const struct pb_answering *a, struct pb_err *err)
{
    (void)err;
    pb_answer_ranks(a);
    return 0;
}

static const struct {
    const char *name;
    int (*answer)(const struct pb_answering *a, struct pb_err *err);
} answers[] = {{"look", answer_look},
               {"stacks", pb_answer_stacks},
               {"command", pb_answer_command},
               {"rows", pb_answer_rows}};

/* From the environment, or up to the first newline of the standard input. */
static int read_line(char *ret, size_t size, size_t *ret_n, struct pb_err *err)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    const char *variable = getenv(PB_WIRE_VARIABLE);
    size_t n = 0;

    if (variable && strlen(variable) < size) {
        *ret_n = strlen(variable);
        memcpy(ret, variable, *ret_n);
        unsetenv(PB_WIRE_VARIABLE); /* not for what is started from here */
        return 0;
    }
    while (n < size) {
        if (poll(&p, 1, PATIENCE_MS) == 0)
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
    return n ? 0 : pb_fail(err, -EBADMSG, "no question came on standard input");
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

    int r = pb_members_read(&a->ask, a->question->match, a->question->ranks, &members, err);
    if (r < 0)
        return r;
    a->members = &members;
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
        if (strcmp(answers[i].name, what) == 0)
            return answers[i].answer(a, err);
    return pb_fail(err, -ENOSYS, "probing %s here does not know the question '%s'", PROBING_VERSION, what);
}

int pb_answer_run(const struct pb_call *call, bool text, struct pb_err *err)
{
    _cleanup_(pb_question_done) struct pb_question_in in = {0};
    _cleanup_free_ char *line = malloc(LINE_SIZE);
    struct pb_answer_writer out = {.fd = STDOUT_FILENO, .text = text};
    struct pb_answering a = {.ask = call->ask, .out = &out};
    struct pb_err why = {0};
    char node[PB_CLUSTER_TEXT];
    size_t n = 0;

    signal(SIGPIPE, SIG_IGN); /* the asking end may be gone: its writes fail */
    int r = line ? read_line(line, LINE_SIZE, &n, err) : -ENOMEM;
    if (r < 0)
        return r;
    find_node_name(node);
    pb_answer_begin(&out, node);
    r = pb_question_decode(line, n, &in, &why);
    if (r == 0) {
        a.question = &in.q;
        a.deadline_ns = pb_now_ns() + in.q.limit_ms * PB_NS_PER_MS;
        r = answer_question(&a, &why);
    }
    r = pb_answer_end(&out, r < 0, r < 0 ? pb_err_text(&why, r) : "");
    return r < 0 ? pb_fail(err, r, "the answer cannot be written: %s", strerror(-r)) : 0;
}
