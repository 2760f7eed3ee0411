/* gpu: see gpu.h. Declares the NVML functions itself: they have not changed since 2013 except for the list of
 * processes, and a compiler would not find NVML's header. */
#include "profile/gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { GPUS_MAX = 64, PROCESSES_MAX = 1024, NVML_TEMPERATURE_GPU = 0, NVML_CLOCK_SM = 1 };

typedef struct nvml_device *device; /* opaque */

struct nvml_utilization {
    unsigned gpu, memory;
};

struct nvml_memory {
    unsigned long long total, free, used;
};

/* The entry of the second and third version of the call. */
struct nvml_process {
    unsigned pid;
    unsigned long long memory;
    unsigned instance, compute_instance;
};

/* Functions in the order of `names`; the first four must be there. */
struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *);
    int (*handle)(unsigned, device *);
    const char *(*error)(int);
    int (*utilization)(device, struct nvml_utilization *);
    int (*memory)(device, struct nvml_memory *);
    int (*temperature)(device, int, unsigned *);
    int (*power)(device, unsigned *);
    int (*clock)(device, int, unsigned *);
    int (*name)(device, char *, unsigned);
    int (*uuid)(device, char *, unsigned);
    int (*processes)(device, unsigned *, struct nvml_process *);
};

enum { NVML_NEEDED = 4 };

static const char *const names[][2] = {
    {"nvmlInit_v2", "nvmlInit"},
    {"nvmlShutdown", NULL},
    {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
    {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
    {"nvmlErrorString", NULL},
    {"nvmlDeviceGetUtilizationRates", NULL},
    {"nvmlDeviceGetMemoryInfo", NULL},
    {"nvmlDeviceGetTemperature", NULL},
    {"nvmlDeviceGetPowerUsage", NULL},
    {"nvmlDeviceGetClockInfo", NULL},
    {"nvmlDeviceGetName", NULL},
    {"nvmlDeviceGetUUID", NULL},
    {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"},
};
_Static_assert(sizeof(struct nvml) == sizeof(names) / sizeof(names[0]) * sizeof(void *), "a name a function");

struct pb_gpus {
    void *library;
    struct nvml nvml;
    unsigned n;
    device devices[GPUS_MAX];
    struct nvml_process processes[PROCESSES_MAX];
};

static int load_nvml(struct pb_gpus *g, struct pb_err *err)
{
    void *functions[sizeof(names) / sizeof(names[0])];

    g->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!g->library)
        return pb_fail(err, -ENOENT,
                       "there is no NVML (libnvidia-ml.so.1): no NVIDIA driver is installed here");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        functions[i] = dlsym(g->library, names[i][0]);
        if (!functions[i] && names[i][1])
            functions[i] = dlsym(g->library, names[i][1]);
        if (!functions[i] && i < NVML_NEEDED)
            return pb_fail(err, -EIO, "NVML has no %s", names[i][0]);
    }
    memcpy(&g->nvml, functions, sizeof(g->nvml));
    return 0;
}

static int fail_nvml(const struct pb_gpus *g, int error, struct pb_err *err)
{
    return pb_fail(err, -EIO, "NVML does not work: %s",
                   g->nvml.error ? g->nvml.error(error) : "unknown error");
}

static int open_devices(struct pb_gpus *g, struct pb_err *err)
{
    unsigned n = 0;

    int r = g->nvml.init();
    if (r != 0) {
        dlclose(g->library);
        g->library = NULL; /* nothing to shut down */
        return pb_fail(err, -EIO, "NVML cannot be started (error %d): is the driver loaded?", r);
    }
    r = g->nvml.count(&n);
    if (r != 0)
        return fail_nvml(g, r, err);
    for (unsigned i = 0; i < n && g->n < GPUS_MAX; i++) {
        /* One that is not ours to use keeps its number. */
        if (g->nvml.handle(i, &g->devices[i]) != 0)
            g->devices[i] = NULL;
        g->n = i + 1;
    }
    return g->n ? 0 : pb_fail(err, -ENODEV, "NVML finds no GPU");
}

int pb_gpus_open(struct pb_gpus **ret, struct pb_err *err)
{
    struct pb_gpus *g = calloc(1, sizeof(*g));

    if (!g)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = load_nvml(g, err);
    if (r < 0) {
        if (g->library)
            dlclose(g->library);
        g->library = NULL;
    } else {
        r = open_devices(g, err);
    }
    if (r < 0) {
        pb_gpus_close(g);
        return r;
    }
    *ret = g;
    return 0;
}

void pb_gpus_close(struct pb_gpus *g)
{
    if (!g)
        return;
    if (g->library) {
        g->nvml.shutdown();
        dlclose(g->library);
    }
    free(g);
}

unsigned pb_gpus_count(const struct pb_gpus *g)
{
    return g->n;
}

static double number(int (*get)(device, unsigned *), device d, double scale)
{
    unsigned value;
    return get && get(d, &value) == 0 ? value * scale : NAN;
}

int pb_gpus_sample(struct pb_gpus *g, unsigned i, struct pb_gpu_sample *ret)
{
    const struct nvml *nvml = &g->nvml;
    struct nvml_utilization utilization;
    struct nvml_memory memory;
    unsigned value;

    device d = i < g->n ? g->devices[i] : NULL;
    if (!d)
        return -EIO;
    struct pb_gpu_sample s = {.util = NAN,
                              .memory_util = NAN,
                              .memory_used = NAN,
                              .memory_total = NAN,
                              .temperature = NAN,
                              .power = NAN,
                              .clock = NAN};
    if (nvml->utilization && nvml->utilization(d, &utilization) == 0) {
        s.util = utilization.gpu;
        s.memory_util = utilization.memory;
    }
    if (nvml->memory && nvml->memory(d, &memory) == 0) {
        s.memory_used = (double)memory.used;
        s.memory_total = (double)memory.total;
    }
    if (nvml->temperature && nvml->temperature(d, NVML_TEMPERATURE_GPU, &value) == 0)
        s.temperature = value;
    s.power = number(nvml->power, d, 1e-3);
    if (nvml->clock && nvml->clock(d, NVML_CLOCK_SM, &value) == 0)
        s.clock = value;
    if (!nvml->name || nvml->name(d, s.name, sizeof(s.name) - 1) != 0)
        s.name[0] = '\0';
    if (!nvml->uuid || nvml->uuid(d, s.uuid, sizeof(s.uuid) - 1) != 0)
        s.uuid[0] = '\0';
    *ret = s;
    return isnan(s.util) && isnan(s.memory_used) && isnan(s.temperature) && isnan(s.power) ? -EIO : 0;
}

int64_t pb_gpus_memory_of(struct pb_gpus *g, unsigned i, pid_t pid)
{
    unsigned n = PROCESSES_MAX;
    int64_t sum = -1;

    if (i >= g->n || !g->devices[i] || !g->nvml.processes ||
        g->nvml.processes(g->devices[i], &n, g->processes) != 0)
        return -1;
    for (unsigned k = 0; k < n && k < PROCESSES_MAX; k++)
        /* "Not available" is all ones. */
        if (g->processes[k].pid == (unsigned)pid && g->processes[k].memory <= INT64_MAX)
            sum = (sum < 0 ? 0 : sum) + (int64_t)g->processes[k].memory;
    return sum;
}
