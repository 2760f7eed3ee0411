/* bundle: an incident in one file, and the commands that read it.
 *
 * The file is a zip whose parts other programs read: text, JSON, folded stacks, and an archive of Parquet
 * files (engine/shared/archive.h). What only a running process can answer (stacks, findings, settings) is
 * kept as the commands printed it, and printed again; what is recorded is asked as any archive is. */
#pragma once

#include "cli/cli.h"

#include <limits.h>
#include <stdio.h>

/* The environment of commands that a service of an unpacked file runs: its folder. */
#define PB_BUNDLE_VARIABLE "PROBING_INCIDENT"

enum { PB_BUNDLE_NOTE = 300, PB_BUNDLE_LAYOUT = 1 };

struct pb_bundle_process {
    struct pb_target target; /* dead: it had ended when the file was made */
    char command[256];       /* secrets masked */
    char python[32];         /* "": not known */
};

struct pb_bundle_note {
    char name[PATH_MAX]; /* a part, or what it is of */
    char why[PB_BUNDLE_NOTE];
};

/* What a file has, while it is made and when it was opened. */
struct pb_bundle {
    char folder[PATH_MAX]; /* the parts as files */
    char made[32], release[32], named[256];
    bool found; /* diagnose found something */
    struct pb_bundle_process *processes;
    size_t nprocesses;
    struct pb_bundle_note *left_out, *notes;
    size_t nleft_out, nnotes;
};

void pb_bundle_done(struct pb_bundle *b);
/* A sentence about a part that is missing, or whole only in part. */
int pb_bundle_leave_out(struct pb_bundle *b, const char *name, const char *why);
int pb_bundle_note(struct pb_bundle *b, const char *name, const char *why);

/* --- bundle_folder.c --- */
/* A new folder of ours below TMPDIR, or /tmp. */
int pb_bundle_folder_make(char ret[PATH_MAX], struct pb_err *err);
/* Removes it with all that is below it. */
void pb_bundle_folder_remove(const char *path);
/* Calls `each` with the path below the folder of every regular file. */
int pb_bundle_each_file(const char *folder, int (*each)(void *arg, const char *name, uint64_t size),
                        void *arg);

/* --- bundle_collect.c --- */
/* Asks for all parts at once, each with a deadline, and writes them into the folder. */
int pb_bundle_collect(const struct pb_call *call, struct pb_bundle *b, struct pb_err *err);

/* --- bundle_rows.c: for the tasks of bundle_collect.c --- */
/* The rows and recordings of one process. Runs in a child. */
int pb_bundle_put_rows(const struct pb_ask *ask, const struct pb_bundle *b, const struct pb_target *target,
                       struct pb_err *err);
/* The versions of what a process has loaded. Runs in a child. */
int pb_bundle_put_versions(const struct pb_bundle *b, const struct pb_target *target, struct pb_err *err);
/* What the machine says of itself: memory, load, its kernel's log. Runs in a child. */
int pb_bundle_put_machine(const struct pb_bundle *b, struct pb_err *err);

/* --- bundle_keep.c --- */
/* Makes a file about a process and all that --all gives with it in that folder, beside the newest of the
 * earlier ones. kind: for its name. */
int pb_bundle_keep(const char *folder, pid_t pid, const char *kind, char ret[PATH_MAX], struct pb_err *err);

/* --- bundle_write.c --- */
/* The manifest, the page, and the file: of the parts those that fit in max bytes. */
int pb_bundle_write(struct pb_bundle *b, const char *path, uint64_t max, uint64_t *ret_size,
                    struct pb_err *err);

/* --- bundle_page.c --- */
/* max: the most bytes of the whole file. */
int pb_bundle_put_page(const struct pb_bundle *b, uint64_t max, FILE *to);

/* --- bundle_open.c --- */
/* Whether a target is the name of such a file, or of its folder. */
bool pb_bundle_is(const char *target);
/* Whether this command runs for a service of an unpacked file. */
const char *pb_bundle_served(void);
/* Runs a command about the file of call->target: in a child, so that the unpacked parts are removed however
 * the command ends. run: as for a process. Returns its exit status, or a negative errno. */
int pb_bundle_run(struct pb_call *call, int (*run)(struct pb_call *call), struct pb_err *err);
/* The same for pb_bundle_served. */
int pb_bundle_run_served(struct pb_call *call, int (*run)(struct pb_call *call), struct pb_err *err);
/* Runs work with the folders of the arguments that are such files, "" for others. In a child, if there are
 * any. */
enum { PB_BUNDLE_FILES = 2 };
int pb_bundle_with(const struct pb_call *call, const char *const *args, int n,
                   int (*work)(const struct pb_call *call, const char folders[PB_BUNDLE_FILES][PATH_MAX],
                               struct pb_err *err),
                   struct pb_err *err);
/* Makes the folders, of which NULL is the last, and runs work in a child; removes them when that has ended,
 * in whatever way: signals that would end the caller go to the child. Its exit status as PB_EXITED. */
int pb_bundle_in_child(char *const *folders, int (*work)(void *arg, struct pb_err *err), void *arg,
                       const struct pb_call *call, struct pb_err *err);
/* Unpacks the file, and runs `become` in a child with the folder in its environment. */
int pb_bundle_serve(const struct pb_call *call, const char *path,
                    int (*become)(void *arg, struct pb_err *err), void *arg, struct pb_err *err);

/* --- bundle_read.c --- */
/* Reads the manifest of an unpacked file; path: how it is named in errors. */
int pb_bundle_read(const char *folder, const char *path, struct pb_bundle *ret, struct pb_err *err);
/* Those that text names: a pid, PID@START or a part of the command line; NULL: all. */
int pb_bundle_targets(const struct pb_bundle *b, const char *text, struct pb_targets *ret,
                      struct pb_err *err);
/* Whether the command is answered by what was printed when the file was made. Its exit status goes to
 * *ret_status; b's targets are those of the call. */
bool pb_bundle_replays(const struct pb_call *call);
int pb_bundle_replay(const struct pb_call *call, const struct pb_bundle *b, struct pb_err *err);
/* Calls `each` with the name and value of every setting, of one process after the other. */
int pb_bundle_settings(const char *folder, int (*each)(void *arg, const char *name, const char *value),
                       void *arg);
/* All recorded samples, else those of the second in which the file was made; for flamegraph. */
struct pb_profile;
int pb_bundle_profile(const char *folder, struct pb_profile *p, struct pb_err *err);
