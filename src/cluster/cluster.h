/* cluster: a job of many processes on many machines as one target: its nodes, how they are reached, its
 * ranks.
 *
 * `probing cluster attach` stores what it found in a file of the user (0600, in the runtime folder), so that
 * later commands can start at once. Each answer lists the node's ranks (node_wire.h), so a stale file causes
 * a warning, never a wrong result. */
#pragma once

#include "cluster/roles.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_err;

enum {
    PB_CLUSTER_NAME = 64, /* of a cluster, with its NUL */
    PB_CLUSTER_TEXT = 256,
    PB_CLUSTER_SERVICE = 64, /* IP:PORT, with its NUL */
    PB_CLUSTER_TOKEN = 128,
    PB_CLUSTER_NODES = 1 << 14,
    PB_CLUSTER_RANKS = 1 << 18
};

/* How a node is reached. */
enum pb_cluster_way {
    PB_WAY_LOCAL,      /* this machine: a child */
    PB_WAY_SERVICES,   /* HTTP to probing-serve */
    PB_WAY_SSH,        /* a child for each node, also for MPI: mpirun itself goes by ssh */
    PB_WAY_KUBERNETES, /* kubectl exec, a child for each pod */
    PB_WAY_SLURM,      /* one srun for all nodes */
    PB_WAY_RAY,        /* one script for all nodes, a task on each */
    PB_WAYS
};

struct pb_cluster_rank {
    int32_t rank, local; /* local: -1 where it is not known */
    uint32_t node;       /* which of the nodes */
    pid_t pid;           /* there */
    uint64_t start_time; /* there: another process has another */
    bool has_torch;      /* pb_members_find_torch; it does not travel */
    struct pb_roles roles;
};

struct pb_cluster_clock {
    bool known;
    int64_t offset_ns; /* its clock less ours */
    int64_t error_ns;  /* at most */
    int64_t at_ns;     /* when that was, by our CLOCK_REALTIME */
};

struct pb_cluster_node {
    char name[PB_CLUSTER_TEXT];    /* as answers call it: unique */
    char address[PB_CLUSTER_TEXT]; /* how it is reached: IP:PORT, a host for ssh, NAMESPACE/POD/CONTAINER */
    char version[32];              /* of the program there; "": it has not answered yet */
    char
        service[PB_CLUSTER_SERVICE]; /* of the user's service there, which is asked before the launcher; "" */
    char token[PB_CLUSTER_TOKEN];    /* of that service */
    struct pb_cluster_clock clock;
};

struct pb_cluster {
    char name[PB_CLUSTER_NAME];
    enum pb_cluster_way way;
    char job[PB_CLUSTER_TEXT];        /* of SLURM: its number; else for people */
    char match[PB_CLUSTER_TEXT];      /* VARIABLE=VALUE in the environment of its ranks; "": any rank */
    char launcher[PB_CLUSTER_TEXT];   /* words in place of ssh, srun or kubectl; "": that */
    char program[PB_CLUSTER_TEXT];    /* `probing` on the nodes */
    char token_file[PB_CLUSTER_TEXT]; /* of services; "": as for -t HOST:PORT */
    char layout[PB_CLUSTER_TEXT];     /* of roles, as given (roles.h); "": none */
    char serve[PB_CLUSTER_TEXT]; /* marks the services that `attach --serve` started; "": it was not given */
    uint32_t world;              /* 0: not known */
    int64_t seen_ns;             /* when it was looked at, CLOCK_REALTIME */
    struct pb_cluster_node *nodes;
    size_t nnodes;
    struct pb_cluster_rank *ranks; /* by rank; each once */
    size_t nranks;
};

void pb_cluster_done(struct pb_cluster *c);

const char *pb_cluster_way_name(enum pb_cluster_way way);

/* Letters, digits, "." "_" "-", not first a "." or "-". */
bool pb_cluster_is_name(const char *name);

/* Adds a node, zeroed but for both texts. -EEXIST: there is one of that name; -EINVAL: a text that is empty,
 * too long or has blanks or control characters. */
int pb_cluster_add_node(struct pb_cluster *c, const char *name, const char *address);
/* Keeps the list sorted. -EEXIST: there is that rank; -ENOSPC. */
int pb_cluster_add_rank(struct pb_cluster *c, const struct pb_cluster_rank *rank);
/* NULL: none. */
const struct pb_cluster_rank *pb_cluster_find_rank(const struct pb_cluster *c, int32_t rank);
/* -1: none. */
ssize_t pb_cluster_find_node(const struct pb_cluster *c, const char *name);

/* --- common_role.c --- */
/* What the ranks of a set have in common that not all ranks have: "pp=3, all tp"; "": nothing. */
void pb_cluster_common_role(const struct pb_cluster *c, const bool *in, size_t n, char *ret, size_t size);

/* --- cluster_file.c: the file --- */
/* Any bytes at all: -EBADMSG. */
int pb_cluster_parse(const char *text, size_t n, struct pb_cluster *ret, struct pb_err *err);
/* The text of the file, on the heap. */
int pb_cluster_format(const struct pb_cluster *c, char **ret, size_t *ret_length);

/* name NULL or "": the only one there is. -ENOENT, and with several -EINVAL: err names them. */
int pb_cluster_load(const char *name, struct pb_cluster *ret, struct pb_err *err);
int pb_cluster_save(const struct pb_cluster *c, struct pb_err *err);
/* Only the clocks that were measured: what others have changed in the file meanwhile stays, and a cluster
 * that was forgotten stays so. */
int pb_cluster_save_clocks(const struct pb_cluster *c, struct pb_err *err);
int pb_cluster_forget(const char *name, struct pb_err *err);
/* The names, sorted; *ret is a list on the heap of texts on the heap. */
int pb_cluster_names(char ***ret, size_t *ret_n, struct pb_err *err);
void pb_cluster_names_free(char **names, size_t n);
