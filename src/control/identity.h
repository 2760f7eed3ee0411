/* identity: which part of which job a process is, from the environment that its launcher set.
 *
 * torchrun, SLURM, MPI (Open MPI, MPICH, MVAPICH), Kubernetes and Ray each have their own names; identity.c
 * has the table of them. Reads an environment block as in /proc/PID/environ: never getenv, which races with a
 * host that calls setenv. Shared by the agent (its own process) and by tools (any process). */
#pragma once

#include <stddef.h>

enum pb_identity_field {
    PB_ID_JOB,
    PB_ID_NODE,
    PB_ID_RANK,
    PB_ID_LOCAL_RANK,
    PB_ID_WORLD_SIZE,
    PB_ID_ROLE,
    PB_ID_TP_RANK,
    PB_ID_PP_RANK,
    PB_ID_DP_RANK,
    PB_ID_FIELDS,
};

struct pb_identity {
    char value[PB_ID_FIELDS][96]; /* "" where it is not set */
    const char *launcher;         /* the launcher whose variable gave the rank; "": none */
};

/* block: NUL-separated NAME=value entries, len bytes, any content. */
void pb_identity_read(const char *block, size_t len, struct pb_identity *ret);

/* "job", "node", "rank", ...: the name of a field in a run's description. */
const char *pb_identity_name(enum pb_identity_field field);
