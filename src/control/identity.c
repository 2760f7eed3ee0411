/* identity: see identity.h. */
#include "control/identity.h"

#include <stdint.h>
#include <string.h>

static const char *const names[PB_ID_FIELDS] = {
    [PB_ID_JOB] = "job",
    [PB_ID_NODE] = "node",
    [PB_ID_RANK] = "rank",
    [PB_ID_LOCAL_RANK] = "local_rank",
    [PB_ID_WORLD_SIZE] = "world_size",
    [PB_ID_ROLE] = "role",
    [PB_ID_TP_RANK] = "tp_rank",
    [PB_ID_PP_RANK] = "pp_rank",
    [PB_ID_DP_RANK] = "dp_rank",
};

/* Earlier rows win: first a variable set for Probing, then the innermost launcher (torchrun inside SLURM),
 * then the outer one. */
static const struct source {
    const char *variable;
    enum pb_identity_field field;
    const char *launcher;
} sources[] = {
    {"PROBING_JOB", PB_ID_JOB, "probing"},
    {"PROBING_NODE", PB_ID_NODE, "probing"},
    {"PROBING_RANK", PB_ID_RANK, "probing"},
    {"PROBING_ROLE", PB_ID_ROLE, "probing"},
    {"TORCHELASTIC_RUN_ID", PB_ID_JOB, "torchrun"},
    {"RANK", PB_ID_RANK, "torchrun"},
    {"LOCAL_RANK", PB_ID_LOCAL_RANK, "torchrun"},
    {"WORLD_SIZE", PB_ID_WORLD_SIZE, "torchrun"},
    {"ROLE_NAME", PB_ID_ROLE, "torchrun"},
    {"RAY_JOB_ID", PB_ID_JOB, "ray"},
    {"RAY_NODE_ID", PB_ID_NODE, "ray"},
    {"RAY_TRAIN_WORLD_RANK", PB_ID_RANK, "ray"},
    {"RAY_TRAIN_LOCAL_RANK", PB_ID_LOCAL_RANK, "ray"},
    {"RAY_TRAIN_WORLD_SIZE", PB_ID_WORLD_SIZE, "ray"},
    {"OMPI_COMM_WORLD_RANK", PB_ID_RANK, "openmpi"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", PB_ID_LOCAL_RANK, "openmpi"},
    {"OMPI_COMM_WORLD_SIZE", PB_ID_WORLD_SIZE, "openmpi"},
    {"MV2_COMM_WORLD_RANK", PB_ID_RANK, "mvapich"},
    {"MV2_COMM_WORLD_LOCAL_RANK", PB_ID_LOCAL_RANK, "mvapich"},
    {"MV2_COMM_WORLD_SIZE", PB_ID_WORLD_SIZE, "mvapich"},
    {"MPI_LOCALRANKID", PB_ID_LOCAL_RANK, "mpich"},
    {"PMIX_RANK", PB_ID_RANK, "pmix"},
    {"PMI_RANK", PB_ID_RANK, "mpich"},
    {"PMI_SIZE", PB_ID_WORLD_SIZE, "mpich"},
    {"SLURM_JOB_ID", PB_ID_JOB, "slurm"},
    {"SLURM_PROCID", PB_ID_RANK, "slurm"},
    {"SLURM_LOCALID", PB_ID_LOCAL_RANK, "slurm"},
    {"SLURM_NTASKS", PB_ID_WORLD_SIZE, "slurm"},
    {"SLURMD_NODENAME", PB_ID_NODE, "slurm"},
    {"JOB_COMPLETION_INDEX", PB_ID_RANK, "kubernetes"},
    {"JOB_NAME", PB_ID_JOB, "kubernetes"},
    {"NODE_NAME", PB_ID_NODE, "kubernetes"},
    {"POD_NAME", PB_ID_NODE, "kubernetes"},
    {"TENSOR_PARALLEL_RANK", PB_ID_TP_RANK, ""},
    {"TP_RANK", PB_ID_TP_RANK, ""},
    {"PIPELINE_PARALLEL_RANK", PB_ID_PP_RANK, ""},
    {"PP_RANK", PB_ID_PP_RANK, ""},
    {"DATA_PARALLEL_RANK", PB_ID_DP_RANK, ""},
    {"DP_RANK", PB_ID_DP_RANK, ""},
};
#define SOURCES (sizeof(sources) / sizeof(sources[0]))

/* Job, node and role are names. "none", as some launchers leave it, is no rank: atoi would make it rank 0. */
static int may_be(enum pb_identity_field field, const char *value, size_t len)
{
    if (field == PB_ID_JOB || field == PB_ID_NODE || field == PB_ID_ROLE)
        return len > 0;
    for (size_t i = 0; i < len; i++)
        if (value[i] < '0' || value[i] > '9')
            return 0;
    return len > 0 && len < 10;
}

static void consider(const char *entry, size_t len, uint8_t best[PB_ID_FIELDS], struct pb_identity *id)
{
    const char *equals = memchr(entry, '=', len);
    if (!equals)
        return;
    size_t name_len = (size_t)(equals - entry);
    size_t value_len = len - name_len - 1;

    for (size_t i = 0; i < SOURCES; i++) {
        const struct source *s = &sources[i];
        if (strlen(s->variable) != name_len || memcmp(s->variable, entry, name_len) != 0 ||
            !may_be(s->field, equals + 1, value_len))
            continue;
        if (i + 1 > best[s->field] && best[s->field] != 0)
            return;
        if (value_len >= sizeof(id->value[0]))
            value_len = sizeof(id->value[0]) - 1;
        memcpy(id->value[s->field], equals + 1, value_len);
        id->value[s->field][value_len] = '\0';
        best[s->field] = (uint8_t)(i + 1);
        if (s->field == PB_ID_RANK)
            id->launcher = s->launcher;
        return;
    }
}

void pb_identity_read(const char *block, size_t len, struct pb_identity *ret)
{
    uint8_t best[PB_ID_FIELDS] = {0};

    memset(ret, 0, sizeof(*ret));
    ret->launcher = "";
    while (len > 0) {
        size_t entry = strnlen(block, len);
        consider(block, entry, best, ret);
        size_t step = entry < len ? entry + 1 : entry;
        block += step;
        len -= step;
    }
}

const char *pb_identity_name(enum pb_identity_field field)
{
    return names[field];
}
