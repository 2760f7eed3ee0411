/* A stand-in for libnvidia-ml.so.1 on machines without a GPU, for the ways NVML can disappoint: what STAND_IN
 * says. "two": two GPUs, of which the second knows nothing but its temperature; "none": no GPU; "broken": it
 * does not start; "hangs": some calls never come back. Without -DWHOLE most functions are missing, as in a
 * driver of long ago. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNKNOWN = 999, NOT_SUPPORTED = 3, NOT_LOADED = 9 };
static int gpus[2] = {0, 1};

static int is(const char *mode)
{
    const char *set = getenv("STAND_IN");
    return set && strcmp(set, mode) == 0;
}

int nvmlInit_v2(void)
{
    return is("broken") ? NOT_LOADED : OK;
}
int nvmlShutdown(void)
{
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *n)
{
    return *n = is("none") ? 0 : 2, OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, int **ret)
{
    return *ret = &gpus[i], OK;
}
const char *nvmlErrorString(int error)
{
    return "stand-in error";
}
int nvmlDeviceGetTemperature(int *gpu, int sensor, unsigned *ret)
{
    return *ret = 41 + (unsigned)*gpu, OK;
}

#ifdef WHOLE
struct utilization {
    unsigned gpu, memory;
};
struct memory {
    unsigned long long total, free, used;
};
struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned instance, compute;
};

int nvmlDeviceGetUtilizationRates(int *gpu, struct utilization *ret)
{
    if (is("hangs"))
        pause();
    *ret = (struct utilization){75, 30};
    return *gpu ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetMemoryInfo(int *gpu, struct memory *ret)
{
    *ret = (struct memory){80ull << 30, 79ull << 30, 1ull << 30};
    return *gpu ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetPowerUsage(int *gpu, unsigned *ret)
{
    return *ret = 312500, *gpu ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetName(int *gpu, char *ret, unsigned size)
{
    return strncpy(ret, "Stand-in", size), OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(int *gpu, unsigned *n, struct process *ret)
{
    if (is("hangs"))
        pause();
    if (*gpu || *n < 2)
        return UNKNOWN;
    ret[0] = (struct process){1, ~0ull, 0, 0}; /* not available */
    ret[1] = (struct process){(unsigned)atoi(getenv("STAND_IN_PID")), 512ull << 20, 0, 0};
    *n = 2;
    return OK;
}

/* Activity as on an H200 on which a collective waits for a peer; STAND_IN_DOES has other figures. */
struct metric {
    unsigned id;
    int result;
    double value;
    const char *names[3];
};
struct metrics {
    unsigned version, n;
    void *before, *now;
    struct metric at[400];
};

static double activity(unsigned id)
{
    static const double waits[] = {[1] = 99.9, [2] = 0.7, [3] = 0.04, [20] = 167, [21] = 1462},
                        copies[] = {[1] = 0.006, [10] = 1.1, [20] = 30087, [21] = 27872},
                        computes[] = {[1] = 99.8, [2] = 96.4, [3] = 14.2, [5] = 93.5, [10] = 16.1};
    const char *set = getenv("STAND_IN_DOES");
    const double *all = set && strcmp(set, "copies") == 0     ? copies
                        : set && strcmp(set, "computes") == 0 ? computes
                                                              : waits;
    size_t n = all == copies ? 22 : all == computes ? 11 : 22;

    return id < n ? all[id] : 0;
}

int nvmlGpmSampleAlloc(void **ret)
{
    return *ret = malloc(8), OK;
}
int nvmlGpmSampleFree(void *sample)
{
    return free(sample), OK;
}
int nvmlGpmSampleGet(int *gpu, void *sample)
{
    return *gpu || !sample ? NOT_SUPPORTED : OK;
}
int nvmlGpmMetricsGet(struct metrics *m)
{
    for (unsigned i = 0; i < m->n; i++) {
        m->at[i].value = activity(m->at[i].id);
        m->at[i].result = m->at[i].id == 60 ? NOT_SUPPORTED : OK;
    }
    return m->version == 1 ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetEnforcedPowerLimit(int *gpu, unsigned *ret)
{
    return *ret = 700000, *gpu ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(int *gpu, unsigned long long *ret)
{
    return *ret = 0x4 | 0x20, *gpu ? NOT_SUPPORTED : OK;
}
#endif
