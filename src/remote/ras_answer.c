/* ras_answer: what NCCL's RAS has answered, and what two answers say; see ras.h. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "remote/ras.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_RANKS 65536

/* --- its answer ------------------------------------------------------------------------------------ */

static long number_of(const struct pb_json *j, uint32_t node, const char *key)
{
    char text[32];

    return pb_json_text(j, pb_json_get(j, node, key), text, sizeof(text)) >= 0 ? strtol(text, NULL, 10) : -1;
}

static bool is_yes(const struct pb_json *j, uint32_t node, const char *key)
{
    char text[8];

    return pb_json_text(j, pb_json_get(j, node, key), text, sizeof(text)) >= 0 && strcmp(text, "true") == 0;
}

/* Counts by the name of the operation, which later versions have more of. */
static void take_counts(const struct pb_json *j, uint32_t node, struct pb_ras *ras, struct pb_ras_rank *ret)
{
    char name[16];

    for (uint32_t at = node ? j->nodes[node].child : 0; at; at = j->nodes[at].next) {
        size_t kind = 0;
        snprintf(name, sizeof(name), "%.*s",
                 (int)(j->nodes[at].key_length < 15 ? j->nodes[at].key_length : 15), j->nodes[at].key);
        while (kind < ras->nkinds && strcmp(ras->kinds[kind], name) != 0)
            kind++;
        if (kind == PB_RAS_KINDS)
            continue;
        if (kind == ras->nkinds)
            memcpy(ras->kinds[ras->nkinds++], name, sizeof(name));
        ret->counts[kind] = number_of(j, node, name);
    }
}

static void take_ranks(const struct pb_json *j, uint32_t list, bool missing, struct pb_ras *ras,
                       struct pb_ras_comm *comm)
{
    for (uint32_t at = list ? j->nodes[list].child : 0; at && comm->nranks < MOST_RANKS;
         at = j->nodes[at].next) {
        struct pb_ras_rank *more = comm->nranks & (comm->nranks - 1) || !comm->nranks
                                       ? comm->ranks
                                       : realloc(comm->ranks, 2 * comm->nranks * sizeof(*more));
        if (!comm->nranks)
            more = malloc(sizeof(*more));
        if (!more)
            return;
        comm->ranks = more;
        struct pb_ras_rank *rank = &comm->ranks[comm->nranks++];
        *rank = (struct pb_ras_rank){
            .rank = (int)number_of(j, at, "rank"), .pid = number_of(j, at, "pid"), .missing = missing};
        if (pb_json_text(j, pb_json_get(j, at, "host"), rank->host, sizeof(rank->host)) < 0)
            rank->host[0] = '\0';
        uint32_t status = pb_json_get(j, at, "status");
        rank->failed = status && (number_of(j, status, "async_error") > 0 || is_yes(j, status, "abort_flag"));
        take_counts(j, pb_json_get(j, at, "collective_counts"), ras, rank);
    }
}

/* NCCL 2.28 leaves out the comma before the status of a missing rank: a line that begins with a key follows a
 * value. */
static void add_commas(char *text, size_t length)
{
    char before = '{';

    for (size_t i = 0; i < length; i++) {
        size_t next = i;
        while (text[i] == '\n' && next < length && (text[next] == '\n' || text[next] == ' '))
            next++;
        if (text[i] == '\n' && next < length && text[next] == '"' && !strchr(",{[:", before))
            text[i] = ',';
        if (text[i] != ' ' && text[i] != '\n')
            before = text[i];
    }
}

int pb_ras_parse(const char *answer, size_t length, struct pb_ras *ret, struct pb_err *err)
{
    _cleanup_free_ char *text = malloc(length + 1);
    if (!text)
        return pb_fail(err, -ENOMEM, "out of memory");
    memcpy(text, answer, length);
    text[length] = '\0';
    add_commas(text, length);
    const char *begin = memchr(text, '{', length);
    struct pb_json j;

    memset(ret, 0, sizeof(*ret));
    if (!begin || pb_json_parse(begin, length - (size_t)(begin - text), &j) < 0)
        return pb_fail(err, -EBADMSG, "NCCL's RAS answered something that is not JSON");
    if (pb_json_text(&j, pb_json_get(&j, 1, "nccl_version"), ret->version, sizeof(ret->version)) < 0)
        ret->version[0] = '\0';
    uint32_t list = pb_json_get(&j, 1, "communicators");
    for (uint32_t at = list ? j.nodes[list].child : 0; at && ret->ncomms < PB_RAS_COMMS;
         at = j.nodes[at].next) {
        struct pb_ras_comm *comm = &ret->comms[ret->ncomms++];
        if (pb_json_text(&j, pb_json_get(&j, at, "hash"), comm->hash, sizeof(comm->hash)) < 0)
            comm->hash[0] = '\0';
        comm->size = (int)number_of(&j, at, "size");
        take_ranks(&j, pb_json_get(&j, at, "ranks"), false, ret, comm);
        take_ranks(&j, pb_json_get(&j, at, "missing_ranks"), true, ret, comm);
    }
    pb_json_done(&j);
    return 0;
}

void pb_ras_done(struct pb_ras *ras)
{
    for (size_t i = 0; i < ras->ncomms; i++)
        free(ras->comms[i].ranks);
    memset(ras, 0, sizeof(*ras));
}

/* --- two of them ----------------------------------------------------------------------------------- */

static const struct pb_ras_comm *same_comm(const struct pb_ras *ras, const struct pb_ras_comm *as)
{
    for (size_t i = 0; i < ras->ncomms; i++)
        if (strcmp(ras->comms[i].hash, as->hash) == 0 && ras->comms[i].size == as->size)
            return &ras->comms[i];
    return NULL;
}

static const struct pb_ras_rank *same_rank(const struct pb_ras_comm *comm, int rank)
{
    for (size_t i = 0; i < comm->nranks; i++)
        if (comm->ranks[i].rank == rank)
            return &comm->ranks[i];
    return NULL;
}

static bool stands(const struct pb_ras_comm *first, const struct pb_ras_comm *second)
{
    for (size_t i = 0; i < second->nranks; i++) {
        const struct pb_ras_rank *was = same_rank(first, second->ranks[i].rank);
        if (!was || was->missing != second->ranks[i].missing ||
            memcmp(was->counts, second->ranks[i].counts, sizeof(was->counts)) != 0)
            return false;
    }
    return true;
}

static void add_rank(char *ret, size_t size, size_t *at, const char *lead, const struct pb_ras_rank *rank)
{
    int n = *at < size ? snprintf(ret + *at, size - *at, "%srank %d (process %ld on %s)", lead, rank->rank,
                                  rank->pid, rank->host)
                       : 0;
    *at += n > 0 ? (size_t)n : 0;
}

/* "; rank 1 (..) has launched 6 AllReduce, others 7". */
static void add_behind(const struct pb_ras *ras, const struct pb_ras_comm *comm, char *ret, size_t size,
                       size_t *at)
{
    for (size_t kind = 0; kind < ras->nkinds; kind++) {
        long most = 0;
        for (size_t i = 0; i < comm->nranks; i++)
            if (!comm->ranks[i].missing && comm->ranks[i].counts[kind] > most)
                most = comm->ranks[i].counts[kind];
        for (size_t i = 0, named = 0; i < comm->nranks && named < 4; i++) {
            const struct pb_ras_rank *rank = &comm->ranks[i];
            if (rank->missing || rank->counts[kind] >= most)
                continue;
            named++;
            add_rank(ret, size, at, *at ? "; " : "", rank);
            if (*at < size)
                *at += (size_t)snprintf(ret + *at, size - *at, " has launched %ld %s, others %ld",
                                        rank->counts[kind], ras->kinds[kind], most);
        }
    }
}

bool pb_ras_judge(const struct pb_ras *first, const struct pb_ras *second, char *ret, size_t size)
{
    size_t at = 0;

    ret[0] = '\0';
    for (size_t i = 0; i < second->ncomms && !at; i++) {
        const struct pb_ras_comm *comm = &second->comms[i], *was = same_comm(first, comm);
        if (!was || !stands(was, comm))
            continue;
        for (size_t k = 0; k < comm->nranks; k++)
            if (comm->ranks[k].missing) {
                add_rank(ret, size, &at, at ? "; " : "", &comm->ranks[k]);
                if (at < size)
                    at += (size_t)snprintf(ret + at, size - at, " does not answer");
            }
        add_behind(second, comm, ret, size, &at);
    }
    return at > 0;
}
