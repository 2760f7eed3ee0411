/* gil_work: what a probe does with the GIL, in a thread of ours: the resident thread, which starts and stops
 * probes, never takes it. One such thread at a time for each probe; it looks itself at what is wanted. */
#pragma once

#include "agent/python/python.h"

#include <stdint.h>

struct pb_gil_work {
    const char *name;                        /* of the thread */
    int (*possible)(void);                   /* whether the GIL is worth asking for; NULL: always */
    int least_minor;                         /* 3.x from which on it is done */
    void (*run)(const struct pb_python *py); /* with the GIL */
    void (*refused)(const char *why);        /* instead of run: this Python is none for it */
    int (*again)(
        void);        /* after run: whether it is due once more, since what is wanted has changed meanwhile */
    uint32_t working; /* zero */
};

/* Starts the thread. 0: one is on its way, and may have looked already (`again`). Any thread. */
int pb_gil_work_start(struct pb_gil_work *work);

/* In a forked child. */
void pb_gil_work_forget(struct pb_gil_work *work);
