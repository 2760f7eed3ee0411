/* steps: how one sample of one thread is taken, as a machine of steps that can be read, tested and seen.
 *
 * Each step does one thing to the thread (watch_sample.c) and comes to an outcome; what follows is decided
 * by pb_step_next alone. It is pure, so a unit test walks all paths: each ends, and none counts a stack that
 * was neither proved nor copied in an interrupt. With a trace (sampler.h) every sample prints its path.
 *
 *   LOOK_AGAIN  of a thread that was asleep: has it run since?       not: COUNT
 *   ASLEEP      is it off its CPU, waiting?                          yes: READ
 *   INTERRUPT   is its stack copied in an interrupt of its CPU?      yes: DESCRIBE; it waits for a CPU: READ
 *   PREEMPTED   does it wait for a CPU?                              yes: READ
 *   STOP        does it stop (ptrace), or (--no-stop) lose its CPU?  yes: READ; not in time: HELD_UP
 *   READ        its memory, whatever comes of it                     PROVE
 *   PROVE       it did not run meanwhile                             yes: DESCRIBE; it ran: back to ASLEEP
 *   DESCRIBE    the stack as a node of the profile                   COUNT; registers were missing: STOP
 *   COUNT       one sample more                                      TAKEN */
#pragma once

#include <stdbool.h>

enum pb_step {
    PB_STEP_LOOK_AGAIN,
    PB_STEP_ASLEEP,
    PB_STEP_INTERRUPT,
    PB_STEP_PREEMPTED,
    PB_STEP_STOP,
    PB_STEP_READ,
    PB_STEP_PROVE,
    PB_STEP_DESCRIBE,
    PB_STEP_COUNT,
    /* Ends: */
    PB_STEP_TAKEN,
    PB_STEP_REFUSED, /* no allowed way could prove the stack */
    PB_STEP_HELD_UP, /* refused, and not to be stopped again for a while: it did not stop in time */
    PB_STEP_FAILED,
    PB_STEP_ENDED, /* the thread has ended: an event, no error */
    PB_STEPS,
};

enum pb_outcome {
    PB_OUTCOME_YES,
    PB_OUTCOME_NO,       /* not by this way, not now */
    PB_OUTCOME_OFF_CPU,  /* INTERRUPT: it waits for a CPU */
    PB_OUTCOME_PAUSED,   /* INTERRUPT: not tried, since its stack did not fit lately */
    PB_OUTCOME_RAN,      /* PROVE: it ran meanwhile, or was between two stores that belong together */
    PB_OUTCOME_RESTLESS, /* PROVE: the same, so often that only a stop can help */
    PB_OUTCOME_GUESSED,  /* DESCRIBE: some registers were missing; a stop would give them */
    PB_OUTCOME_KEEP,     /* STOP: not possible; the guessed stack is accepted */
    PB_OUTCOME_LATE,     /* STOP: it did not stop in time */
    PB_OUTCOME_ERROR,
    PB_OUTCOME_GONE,
    PB_OUTCOMES,
};

/* What follows an outcome of a step. Outcomes that a step does not have lead to PB_STEP_FAILED. */
enum pb_step pb_step_next(enum pb_step step, enum pb_outcome outcome);

static inline bool pb_step_is_end(enum pb_step step)
{
    return step >= PB_STEP_TAKEN;
}

const char *pb_step_name(enum pb_step step);
const char *pb_outcome_name(enum pb_outcome outcome);

/* The state of a thread from one tick to the next. */
enum pb_watch_state {
    PB_WATCH_NEW,     /* not read yet */
    PB_WATCH_MOVING,  /* it ran, or may have run, at the last look */
    PB_WATCH_SETTLED, /* it was proved asleep: its stack is unchanged as long as it has not run */
    PB_WATCH_HELD_UP, /* it did not stop in time: it is read without a stop, or refused, for a while */
};

/* settled: the sample that was taken proved it asleep, waiting for something. */
enum pb_watch_state pb_watch_state_next(enum pb_watch_state state, enum pb_step end, bool settled);
const char *pb_watch_state_name(enum pb_watch_state state);
