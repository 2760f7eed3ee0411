/* task: runs part of a question in a child process, so that it can be abandoned.
 *
 * A read of /proc, a ptrace call or a driver may block on its target for ever, and no flag gets a thread out
 * of that; a process can be killed. So each task that touches a target runs in a forked child, all at once,
 * each with its own deadline. The child answers through shared memory that has the same address in both
 * processes, so an answer may hold pointers into it. Signal handlers, ptrace and children of the task stay in
 * the child: a caller with many threads is not affected. The caller must not reap unknown children
 * (waitpid(-1)). */
#pragma once

#include "ask/ask.h"
#include "base/err.h"

#include <stddef.h>
#include <sys/types.h>

/* The shared memory. Lives until pb_room_free. */
struct pb_room;

/* Zeroed, aligned for any type. NULL: the room is full. */
void *pb_room_alloc(struct pb_room *room, size_t size);
void *pb_room_copy(struct pb_room *room, const void *from, size_t size);
/* NULL for NULL too. */
char *pb_room_text(struct pb_room *room, const char *text);
void pb_room_free(struct pb_room *room);

struct pb_task {
    /* Runs in the child. Its result and err become the task's; its answer goes into the room. ask->note
     * reaches the caller. */
    int (*work)(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err);
    void *arg;
    pid_t pid;         /* of the target, for sentences; 0: none */
    unsigned limit_ms; /* where the caller's pb_ask sets no limit */
    size_t room_size;
    bool keep_room; /* the caller gets the room also where result < 0 */
    bool always;    /* in a child also where the caller is such a child */
    /* At its deadline the child gets SIGTERM, and some seconds to undo its work, before it is killed; the
     * same when the caller dies. */
    bool gentle;

    /* Written by pb_tasks_run: */
    int result; /* result of work; -ETIMEDOUT; -ECANCELED; -ECHILD: the child died */
    struct pb_err err;
    struct pb_room *room; /* owned by the caller, where result >= 0; else NULL */
    int fd;               /* passed by pb_task_give_fd, owned by the caller; -1: none */
};

/* Runs all tasks, each in a child, at most `parallel` at a time (0: 64), and returns when the last has ended.
 * Within such a child the tasks run one after the other, without further children. */
void pb_tasks_run(const struct pb_ask *ask, struct pb_task *tasks, size_t n, size_t parallel);

/* The same for one task: returns task->result, the sentence in err. */
int pb_task_run(const struct pb_ask *ask, struct pb_task *task, struct pb_err *err);

/* The same small work for many processes, one after the other in one child. An item that takes longer than
 * limit_ms is abandoned with its child, and another child goes on with the next. */
struct pb_each_answer {
    int result; /* result of work; -ETIMEDOUT; -ECHILD: the child died at it */
    void *answer;
};

struct pb_each {
    /* Runs in the child. -ENOSPC: the room is full; it is called again with an empty one. */
    int (*work)(const struct pb_ask *ask, void *arg, size_t i, struct pb_room *room, void **ret);
    void *arg;
    size_t n;
    unsigned limit_ms; /* for one item */
    size_t room_size;

    /* Written by pb_each_run: */
    struct pb_each_answer *at; /* n answers */
    struct pb_room **rooms;    /* memory of the answers */
    size_t nrooms;
};

/* -ENOMEM, -ECANCELED. Call pb_each_done in any case. */
int pb_each_run(const struct pb_ask *ask, struct pb_each *each);
void pb_each_done(struct pb_each *each);

/* Called by work: sets the task's answer; passes one descriptor to the caller (closed here afterwards). */
void pb_task_answer(struct pb_room *room, void *answer);
int pb_task_give_fd(struct pb_room *room, int fd);
/* Called by work that makes progress: its new deadline is limit_ms from now. */
void pb_task_extend(const struct pb_room *room, unsigned limit_ms);
/* Called by the caller: the answer of work. NULL: none. */
void *pb_task_answer_of(const struct pb_task *task);
/* Runs a task whose work returns 0 with an answer of `size` bytes, copies that to ret, and frees the room. */
int pb_task_fetch(const struct pb_ask *ask, struct pb_task *task, void *ret, size_t size, struct pb_err *err);
