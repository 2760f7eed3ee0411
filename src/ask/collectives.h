/* collectives: where the ranks of a job stand in their process groups, from torch's Flight Recorder;
 * as data. Needs no agent, and answers while the job hangs.
 *
 * Plain reads in the calling process: callers run them in a child (task.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_source;

enum { PB_COLLECTIVE_GROUPS = 64, PB_COLLECTIVE_RECENT = 32 };

/* One operation that a rank has issued. */
struct pb_collective {
    uint64_t number; /* in its group */
    char op[48];     /* all_reduce, broadcast, .. */
    char sizes[96];  /* of its inputs: [[4, 8]] */
    char types[48];  /* [Float] */
    bool is_over, has_started;
    double seconds;   /* since it was issued */
    double timeout_s; /* after which torch ends the job */
};

/* One group as a rank sees it. */
struct pb_collective_group {
    char name[64], description[64];
    bool gpu;                                          /* NCCL */
    int64_t issued, started, over;                     /* numbers of the last ones; -1: none, or unknown */
    char ranks[512];                                   /* "0,1,2"; "": unknown */
    struct pb_collective recent[PB_COLLECTIVE_RECENT]; /* oldest first */
    size_t nrecent;
};

struct pb_collective_rank {
    int rank;
    pid_t pid;
    int result; /* 0; -ENOENT: it has no recorder; else why it could not be read */
    size_t ngroups;
    struct pb_collective_group *groups; /* freed by pb_collectives_done */
};

/* What a process says of its groups; `to` has its rank and pid already, and is freed by done. -ENOENT: it
 * has no recorder; else why it could not be read. */
int pb_collectives_take(struct pb_source *source, struct pb_collective_rank *to);
void pb_collectives_done(struct pb_collective_rank *ranks, size_t n);

enum pb_stall_kind {
    PB_STALL_NONE,
    PB_STALL_NOT_JOINED, /* ranks have not issued it */
    PB_STALL_OPERATION,  /* ranks have issued another operation under that number */
    PB_STALL_SIZE,
    PB_STALL_TYPE,
    PB_STALL_ALL_IN, /* all of them have issued the same */
};

/* What holds up a group: the first number that is not over. */
struct pb_stall {
    enum pb_stall_kind kind;
    bool gpu;
    bool on_gpu; /* a kernel of it was seen to run: it polls for its peers */
    char group[64], op[48];
    uint64_t number;
    double seconds;   /* since the last of the waiting ranks issued it */
    double timeout_s; /* after which torch ends the job; 0: unknown */
    char waiting[96]; /* ranks that have issued it: "0, 2-3" */
    int nwaiting;
    char others[96];  /* those that have not, or have issued something else */
    char unasked[96]; /* ranks of the group without an answer: not asked, or ended; "": none, or unknown */
    char difference[200]; /* "broadcast instead of all_reduce" */
    char text[500];       /* all of it, as a sentence */
};

/* The group that has stood longest; false: none stands for `least` seconds. roles: n of them, NULL: not
 * wanted. */
enum pb_stall_role { PB_STALL_NO_PART, PB_STALL_WAITS, PB_STALL_OTHER };
bool pb_collectives_judge(const struct pb_collective_rank *ranks, size_t n, double least,
                          struct pb_stall *ret, unsigned char *roles);

/* What one rank alone can tell: its oldest operation that has not completed for `least` seconds. The other
 * ranks are unknown. */
bool pb_collectives_own(const struct pb_collective_rank *rank, double least, struct pb_stall *ret);
