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

enum {
    GPUS_MAX = 64,
    PROCESSES_MAX = 1024,
    NVML_TEMPERATURE_GPU = 0,
    NVML_CLOCK_SM = 1,
    NVML_UNCORRECTED = 1,
    NVML_VOLATILE = 0
};

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

/* Of two samples (GPM: Hopper and later), metrics by their numbers. NVML has room for more of them. */
struct nvml_metric {
    unsigned id;
    int result;
    double value;
    const char *names[3];
};
enum {
    GPM_ACTIVE = 1,
    GPM_SM = 2,
    GPM_OCCUPANCY = 3,
    GPM_TENSOR = 5,
    GPM_DRAM = 10,
    GPM_PCIE_TX = 20,
    GPM_PCIE_RX = 21,
    GPM_NVLINK_RX = 60,
    GPM_NVLINK_TX = 61,
    GPM_METRICS = 9,
    GPM_ROOM = 400 /* NVML's own type has some hundred */
};
struct nvml_metrics {
    unsigned version, n;
    void *before, *now;
    struct nvml_metric at[GPM_ROOM];
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
    int (*power_limit)(device, unsigned *);
    int (*slowed)(device, unsigned long long *);
    int (*ecc)(device, int, int, unsigned long long *);
    int (*sample_new)(void **);
    int (*sample_free)(void *);
    int (*sample)(device, void *);
    int (*metrics)(struct nvml_metrics *);
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
    {"nvmlDeviceGetEnforcedPowerLimit", NULL},
    {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"},
    {"nvmlDeviceGetTotalEccErrors", NULL},
    {"nvmlGpmSampleAlloc", NULL},
    {"nvmlGpmSampleFree", NULL},
    {"nvmlGpmSampleGet", NULL},
    {"nvmlGpmMetricsGet", NULL},
};
_Static_assert(sizeof(struct nvml) == sizeof(names) / sizeof(names[0]) * sizeof(void *), "a name a function");

struct pb_gpus {
    void *library;
    struct nvml nvml;
    unsigned n;
    device devices[GPUS_MAX];
    void *samples[GPUS_MAX][2]; /* of activity: the last one, and room for the next; NULL: not supported */
    struct nvml_process processes[PROCESSES_MAX];
    struct nvml_metrics metrics;
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
    for (unsigned i = 0; i < 2 * g->n; i++)
        if (g->samples[i / 2][i % 2] && g->nvml.sample_free)
            g->nvml.sample_free(g->samples[i / 2][i % 2]);
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

/* Activity between two samples. */
static void take_activity(struct pb_gpus *g, unsigned i, struct pb_gpu_sample *s)
{
    static const unsigned ids[GPM_METRICS] = {GPM_ACTIVE,  GPM_SM,      GPM_OCCUPANCY, GPM_TENSOR,   GPM_DRAM,
                                              GPM_PCIE_TX, GPM_PCIE_RX, GPM_NVLINK_RX, GPM_NVLINK_TX};
    const struct nvml *nvml = &g->nvml;
    void **samples = g->samples[i], *held = samples[0];
    struct nvml_metrics *m = &g->metrics;
    double value[GPM_METRICS];

    if (!nvml->sample_new || !nvml->sample_free || !nvml->sample || !nvml->metrics)
        return;
    if ((!samples[1] && nvml->sample_new(&samples[1]) != 0) || nvml->sample(g->devices[i], samples[1]) != 0)
        return;
    samples[0] = samples[1];
    samples[1] = held;
    if (!held)
        return;
    *m = (struct nvml_metrics){.version = 1, .n = GPM_METRICS, .before = held, .now = samples[0]};
    for (unsigned k = 0; k < GPM_METRICS; k++)
        m->at[k].id = ids[k];
    if (nvml->metrics(m) != 0)
        return;
    for (unsigned k = 0; k < GPM_METRICS; k++)
        value[k] = m->at[k].result == 0 ? m->at[k].value : NAN;
    s->active = value[0];
    s->sm = value[1];
    s->occupancy = value[2];
    s->tensor = value[3];
    s->dram = value[4];
    s->pcie = value[5] + value[6];
    s->nvlink = value[7] + value[8];
}

/* By thresholds that docs/gpu.md states. A kernel that polls for its peers keeps the GPU active, but
 * nearly none of its processors, and moves hardly any data. */
static const char *what_it_does(const struct pb_gpu_sample *s)
{
    double link = isnan(s->nvlink) ? 0 : s->nvlink, bus = isnan(s->pcie) ? 0 : s->pcie;

    if (isnan(s->active) || isnan(s->sm))
        return NULL;
    if (s->active < 5)
        return bus + link >= 1000 ? "copying" : "idle";
    if (s->active >= 50 && s->sm < 5 && (isnan(s->dram) || s->dram < 2))
        return link >= 500 || bus >= 4000 ? "communicating" : "waiting";
    return s->active >= 50 && s->sm < 20 && link >= 500 ? "communicating" : "computing";
}

static void put_reasons(unsigned long long why, char *ret, size_t size)
{
    static const struct {
        unsigned long long bit;
        const char *name;
    } reasons[] = {{0x2, "clock set"},       {0x4, "power cap"},    {0x8, "hardware"},    {0x20, "heat"},
                   {0x40, "heat, hardware"}, {0x80, "power brake"}, {0x10, "sync boost"}, {0x100, "display"}};
    size_t at = 0;

    ret[0] = '\0';
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]) && at < size; i++)
        if (why & reasons[i].bit)
            at += (size_t)snprintf(ret + at, size - at, "%s%s", at ? "; " : "", reasons[i].name);
}

int pb_gpus_sample(struct pb_gpus *g, unsigned i, struct pb_gpu_sample *ret)
{
    const struct nvml *nvml = &g->nvml;
    struct nvml_utilization utilization;
    struct nvml_memory memory;
    unsigned long long wide;
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
                              .clock = NAN,
                              .active = NAN,
                              .sm = NAN,
                              .occupancy = NAN,
                              .tensor = NAN,
                              .dram = NAN,
                              .pcie = NAN,
                              .nvlink = NAN,
                              .power_limit = NAN,
                              .ecc = NAN};
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
    s.power_limit = number(nvml->power_limit, d, 1e-3);
    if (nvml->ecc && nvml->ecc(d, NVML_UNCORRECTED, NVML_VOLATILE, &wide) == 0)
        s.ecc = (double)wide;
    if (nvml->slowed && nvml->slowed(d, &wide) == 0)
        put_reasons(wide, s.slowed, sizeof(s.slowed));
    take_activity(g, i, &s);
    s.doing = what_it_does(&s);
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
