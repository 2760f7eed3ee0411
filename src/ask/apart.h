/* apart: a part of a question done in a child process, so that it can be given up.
 *
 * A read of /proc, a ptrace call or a driver may wait for its target without end, and no flag gets a thread
 * out of that; a process can be killed. So each piece of work that touches a target runs in a forked child,
 * all pieces at once, each with a deadline of its own. The child answers through memory that is shared and
 * has the same address on both sides, so an answer may hold pointers into it. Signal handlers, ptrace and
 * children of the work stay in the child too: a caller with many threads is not touched. The caller must not
 * reap children that are not its own (waitpid(-1)). */
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
    /* Runs in the child. What it returns and says in err are the task's; its answer goes into the room. ask:
     * with notes that reach the caller's. */
    int (*work)(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err);
    void *arg;
    pid_t pid;         /* of the target, for sentences; 0: none */
    unsigned limit_ms; /* where the caller's pb_ask has none */
    size_t room_size;
    bool keep_room; /* room is the caller's also where result < 0 */
    bool always;    /* in a child of its own also where the caller is one */
    /* When its time is over the child gets SIGTERM, and some seconds to put things back, before it is killed;
     * the same when the caller dies. */
    bool gentle;

    /* Written by pb_apart_run: */
    int result; /* what work returned; -ETIMEDOUT; -ECANCELED; -ECHILD: the child died */
    struct pb_err err;
    struct pb_room *room; /* the caller's, where result >= 0; else NULL */
    int fd;               /* what the work gave by pb_apart_give_fd, the caller's; -1: nothing */
};

/* Runs all of them, each in a child, at most so many at a time (0: 64), and returns when the last has ended.
 * In a child already they are done one after the other, without another one. */
void pb_apart_run(const struct pb_ask *ask, struct pb_task *tasks, size_t n, size_t parallel);

/* The same for one: returns task->result, the sentence in err. */
int pb_apart_one(const struct pb_ask *ask, struct pb_task *task, struct pb_err *err);

/* The same small work for many processes, one after the other in one child: an item that takes longer than
 * limit_ms is given up with its child, and another child goes on with the next. */
struct pb_each_answer {
    int result; /* what work returned; -ETIMEDOUT; -ECHILD: it brought the child down */
    void *answer;
};

struct pb_each {
    /* Runs in the child. -ENOSPC: the room is full, it is called again with an empty one. */
    int (*work)(const struct pb_ask *ask, void *arg, size_t i, struct pb_room *room, void **ret);
    void *arg;
    size_t n;
    unsigned limit_ms; /* for one item */
    size_t room_size;

    /* Written by pb_apart_each: */
    struct pb_each_answer *at; /* n of them */
    struct pb_room **rooms;    /* where the answers are */
    size_t nrooms;
};

/* -ENOMEM, -ECANCELED. pb_each_done in any case. */
int pb_apart_each(const struct pb_ask *ask, struct pb_each *each);
void pb_each_done(struct pb_each *each);

/* In work: the answer of the task, and a descriptor for the caller (one; closed here afterwards). */
void pb_apart_answer(struct pb_room *room, void *answer);
int pb_apart_give_fd(struct pb_room *room, int fd);
/* In work: it is known to go on, and may take so long from now on. */
void pb_apart_extend(const struct pb_room *room, unsigned limit_ms);
/* In the caller: what work answered. NULL: nothing. */
void *pb_apart_answer_of(const struct pb_task *task);
