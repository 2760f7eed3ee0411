/* steps: see steps.h. */
#include "profile/steps.h"

/* A row per step: the next step for each of its outcomes. GONE always leads to ENDED. */
static const struct {
    const char *name;
    struct {
        bool known;
        enum pb_step step;
    } after[PB_OUTCOMES];
} table[PB_STEPS] = {
#define TO(outcome, next) [PB_OUTCOME_##outcome] = {true, PB_STEP_##next}
    [PB_STEP_LOOK_AGAIN] = {"look-again", {TO(YES, COUNT), TO(NO, ASLEEP), TO(ERROR, ASLEEP)}},
    [PB_STEP_ASLEEP] = {"asleep", {TO(YES, READ), TO(NO, INTERRUPT), TO(ERROR, FAILED)}},
    [PB_STEP_INTERRUPT] = {"interrupt",
                           {TO(YES, DESCRIBE), TO(OFF_CPU, READ), TO(PAUSED, PREEMPTED), TO(NO, PREEMPTED)}},
    [PB_STEP_PREEMPTED] = {"preempted", {TO(YES, READ), TO(NO, STOP)}},
    [PB_STEP_STOP] = {"stop",
                      {TO(YES, READ), TO(NO, REFUSED), TO(LATE, HELD_UP), TO(KEEP, ASLEEP),
                       TO(ERROR, FAILED)}},
    [PB_STEP_READ] = {"read", {TO(YES, PROVE)}},
    [PB_STEP_PROVE] = {"prove",
                       {TO(YES, DESCRIBE), TO(RAN, ASLEEP), TO(RESTLESS, STOP), TO(NO, REFUSED),
                        TO(ERROR, FAILED)}},
    [PB_STEP_DESCRIBE] = {"describe", {TO(YES, COUNT), TO(GUESSED, STOP), TO(ERROR, FAILED)}},
    [PB_STEP_COUNT] = {"count", {TO(YES, TAKEN)}},
    [PB_STEP_TAKEN] = {"taken", {{0}}},
    [PB_STEP_REFUSED] = {"refused", {{0}}},
    [PB_STEP_HELD_UP] = {"held-up", {{0}}},
    [PB_STEP_FAILED] = {"failed", {{0}}},
    [PB_STEP_ENDED] = {"ended", {{0}}},
#undef TO
};

enum pb_step pb_step_next(enum pb_step step, enum pb_outcome outcome)
{
    if (outcome == PB_OUTCOME_GONE)
        return PB_STEP_ENDED;
    return table[step].after[outcome].known ? table[step].after[outcome].step : PB_STEP_FAILED;
}

const char *pb_step_name(enum pb_step step)
{
    return table[step].name;
}

const char *pb_outcome_name(enum pb_outcome outcome)
{
    static const char *const names[PB_OUTCOMES] = {
        [PB_OUTCOME_YES] = "yes",         [PB_OUTCOME_NO] = "no",     [PB_OUTCOME_OFF_CPU] = "off-cpu",
        [PB_OUTCOME_PAUSED] = "paused",   [PB_OUTCOME_RAN] = "ran",   [PB_OUTCOME_RESTLESS] = "restless",
        [PB_OUTCOME_GUESSED] = "guessed", [PB_OUTCOME_KEEP] = "keep", [PB_OUTCOME_LATE] = "late",
        [PB_OUTCOME_ERROR] = "error",     [PB_OUTCOME_GONE] = "gone",
    };
    return names[outcome];
}

enum pb_watch_state pb_watch_state_next(enum pb_watch_state state, enum pb_step end, bool settled)
{
    switch (end) {
    case PB_STEP_TAKEN:
        return settled ? PB_WATCH_SETTLED : PB_WATCH_MOVING;
    case PB_STEP_HELD_UP:
        return PB_WATCH_HELD_UP;
    case PB_STEP_REFUSED: /* it is not tried again before its time */
        return state == PB_WATCH_HELD_UP ? PB_WATCH_HELD_UP : PB_WATCH_MOVING;
    default:
        return PB_WATCH_MOVING;
    }
}

const char *pb_watch_state_name(enum pb_watch_state state)
{
    static const char *const names[] = {[PB_WATCH_NEW] = "new",
                                        [PB_WATCH_MOVING] = "moving",
                                        [PB_WATCH_SETTLED] = "settled",
                                        [PB_WATCH_HELD_UP] = "held-up"};
    return names[state];
}
