/* ras: what NCCL's own service (RAS) says of a job: which ranks of which communicators are alive, and how
 * many operations of each kind each has launched. One question to any process of the job tells of all
 * ranks of all nodes; no agent and no right to trace is needed.
 *
 * Plain reads with a deadline, in the calling process. The answer is somebody else's: it is bounded, and
 * counts only where it names the asked process. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct pb_err;

enum { PB_RAS_COMMS = 64, PB_RAS_KINDS = 8 };

struct pb_ras_rank {
    int rank;
    long pid;
    char host[64];
    bool missing; /* it does not answer the others: stopped, ended, or cut off */
    bool failed;  /* NCCL has seen an error there */
    long counts[PB_RAS_KINDS];
};

struct pb_ras_comm {
    char hash[24];
    int size;
    size_t nranks;
    struct pb_ras_rank *ranks;
};

struct pb_ras {
    char version[24];
    char kinds[PB_RAS_KINDS][16]; /* Broadcast, AllReduce, .. */
    size_t nkinds, ncomms;
    struct pb_ras_comm comms[PB_RAS_COMMS];
};

/* Asks the service of the process. -ENOENT: it has none (no NCCL of 2.24 or later, or NCCL_RAS_ENABLE=0);
 * -ENOTSUP: it cannot answer as JSON (before NCCL 2.28); -ESRCH: what answered does not know the process. */
int pb_ras_ask(pid_t pid, unsigned limit_ms, struct pb_ras *ret, struct pb_err *err);
void pb_ras_done(struct pb_ras *ras);

/* Reads an answer, from its first brace on. -EBADMSG. */
int pb_ras_parse(const char *answer, size_t length, struct pb_ras *ret, struct pb_err *err);

/* Whether two answers, one after the other, show a communicator in which ranks are behind the others and
 * stay there, or do not answer. A job that runs has ranks at different numbers too, but not at the same
 * ones for long. ret: the sentence. */
bool pb_ras_judge(const struct pb_ras *first, const struct pb_ras *second, char *ret, size_t size);
