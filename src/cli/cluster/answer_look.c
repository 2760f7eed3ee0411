/* answer_look: which ranks a node has, and whether they could be probed; see answer.h. */
#include "ask/task.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "cli/cluster/answer.h"
#include "inject/doctor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { ONE_LIMIT_MS = 1000, ROOM = 1 << 20 };

struct verdict {
    char text[400];
};

/* Without an answer: nothing stands in the way. */
static int check_rank(const struct pb_ask *ask, void *arg, size_t i, struct pb_room *room, void **ret)
{
    const struct pb_node_members *members = arg;
    struct pb_check checks[PB_CHECKS_MAX];
    struct verdict v;

    (void)ask;
    int n = pb_inject_check(members->at[i].pid, checks, PB_CHECKS_MAX);
    for (int k = 0; k < n; k++) {
        if (checks[k].state != PB_CHECK_FAIL)
            continue;
        snprintf(v.text, sizeof(v.text), "%s: %s%s%s%s", checks[k].name, checks[k].found,
                 checks[k].remedy[0] ? " (" : "", checks[k].remedy, checks[k].remedy[0] ? ")" : "");
        *ret = pb_room_copy(room, &v, sizeof(v));
        return *ret ? 0 : -ENOSPC;
    }
    return 0;
}

int pb_answer_look(const struct pb_answering *a, struct pb_err *err)
{
    const struct pb_node_members *members = a->members;
    struct pb_each each = {.work = check_rank,
                           .arg = (void *)(uintptr_t)members,
                           .n = members->n,
                           .limit_ms = ONE_LIMIT_MS,
                           .room_size = ROOM};

    if (members->jobs[0])
        return pb_fail(err, -EINVAL,
                       "there are ranks of several jobs: %.350s; take one with --match VARIABLE=VALUE",
                       members->jobs);
    if (a->question->nwords > 1 && strcmp(a->question->words[1], "roles") == 0)
        pb_answer_take_roles(a);
    int r = members->n ? pb_each_run(&a->ask, &each) : 0;
    for (size_t i = 0; i < members->n; i++) {
        const struct verdict *v = r == 0 ? each.at[i].answer : NULL;
        pb_answer_rank(a->out, &members->at[i], members->world);
        if (v)
            pb_answer_bytes(a->out, true, v->text, strnlen(v->text, sizeof(v->text)));
        pb_answer_exit(a->out, 0);
    }
    pb_each_done(&each);
    return 0;
}
