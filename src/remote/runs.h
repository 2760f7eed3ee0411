/* runs: the run directories of agents, live and dead, found and opened from outside.
 *
 * An agent makes its directory in its own view of the file system (agent/core/run.h has the layout). So that
 * of a live process is reached through /proc/PID/root, in whatever container it is; dead runs are searched
 * for in our own view. The root that PROBING_DIR names may be a symbolic link of that view; below it nothing
 * is trusted: no link is followed, and only directories and regular files of the expected owner are
 * opened. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

struct pb_err;
struct pb_procinfo;
struct pb_settings;

#define PB_RUNS_RECORDINGS 16

/* Identifies a run: later processes may reuse a pid. */
struct pb_run_id {
    pid_t pid;           /* in the namespace of the process */
    uint64_t start_time; /* of the process, as procinfo has it; 0: any, the newest */
    unsigned program;    /* 1 and more: a later program of the same process (exec) */
};
#define PB_RUN_ANY_PROGRAM UINT_MAX
#define PB_RUN_ID_SIZE     40

/* As people read and type it: PID@START, or PID@START.PROGRAM, with START in base 36 to be short. */
const char *pb_run_id_text(const struct pb_run_id *id, char ret[PB_RUN_ID_SIZE]);
/* -EINVAL: not a valid id. */
int pb_run_id_parse(const char *text, struct pb_run_id *ret);

struct pb_run_info {
    int dir_fd;      /* -1: closed; a run found by a scan is opened again when needed */
    char path[1024]; /* in our view or the target's */
    bool alive;      /* an agent holds its lock */
    bool detached;   /* it ended by detach, and not with its program */
    uid_t uid;
    struct pb_run_id id; /* of a recording: of its recorder */
    time_t changed;      /* when it last wrote */
    uint64_t bytes;
    char about[8192]; /* its description: see pb_run_get */
};

/* The run of a live process. -ENOENT: it has none. */
int pb_run_of(const struct pb_procinfo *process, struct pb_run_info *ret);

/* The run that an agent left in a process that still runs, by detach. -ENOENT: none. */
int pb_run_left(const struct pb_procinfo *process, struct pb_run_info *ret);

/* All runs in our view that we may read, newest first. Our own dead ones beyond the limits of rundir.h are
 * removed first. */
struct pb_runs {
    struct pb_run_info *at;
    size_t n;
};
int pb_runs_scan(struct pb_runs *ret, struct pb_err *err);
void pb_runs_done(struct pb_runs *runs);
void pb_run_done(struct pb_run_info *run);

/* The newest dead run in a scan that matches id; NULL: there is none. */
const struct pb_run_info *pb_runs_find_dead(const struct pb_runs *runs, const struct pb_run_id *id);

/* A value of the description, unescaped; "" when it is not there. Returns ret. */
const char *pb_run_get(const struct pb_run_info *run, const char *name, char *ret, size_t size);

/* Its settings, as its agent last wrote them. -ENOENT: there are none. */
int pb_run_settings(const struct pb_run_info *run, struct pb_settings *ret);

/* The file of its tables, to read. The caller closes it. */
int pb_run_open_arena(const struct pb_run_info *run, struct pb_err *err);

/* A recording (profile/store.h) of a process. */
struct pb_recording {
    int fd;              /* of its tables; the caller closes it */
    uint64_t start_time; /* of the process, as procinfo has it */
    bool alive;          /* it is still being recorded */
    time_t changed;
};

/* Recordings of that process: at most max, newest first. start_time 0: any of that pid. Only ours and those
 * of uid, the process's own user. The name tells the recorded process: no other recording is opened. Returns
 * how many; -EMFILE or -ENFILE: out of descriptors. */
int pb_runs_recordings(pid_t pid, uint64_t start_time, uid_t uid, struct pb_recording *ret, unsigned max);

/* A connected control socket, on which that process listens, and the secret for its HELLO (40 bytes). -EPERM:
 * what is at the socket's place is not the process's own. -ETIMEDOUT: the agent did not accept the connection
 * within timeout_ms. */
int pb_run_connect(const struct pb_run_info *run, const struct pb_procinfo *process, char *secret,
                   int timeout_ms, struct pb_err *err);
