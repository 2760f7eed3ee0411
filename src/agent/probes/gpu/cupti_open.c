/* cupti_open: finds CUPTI in the program, and refuses where it may not be used. */
#include "agent/core/fork_gate.h"
#include "agent/core/small_files.h"
#include "agent/probes/gpu/cupti.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#define PATH_BYTES 512
#define RELAXED    2 /* CU_STREAM_CAPTURE_MODE_RELAXED */

struct found_libraries {
    char cupti[PATH_BYTES], other[PATH_BYTES];
    int has_cupti, has_driver, too_many;
};

/* Other profilers that use CUPTI, by the names of their libraries. */
static const char *const others[] = {"libToolsInjection", "libproton.so", "libcupti_trace_injection",
                                     "libnsys"};

static int look_at(struct dl_phdr_info *info, size_t size, void *ret)
{
    struct found_libraries *found = ret;
    const char *name = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    (void)size;

    if (!name)
        return 0;
    name++;
    if (strncmp(name, "libcupti.so", 11) == 0) {
        found->too_many += found->has_cupti;
        found->has_cupti = 1;
        snprintf(found->cupti, sizeof(found->cupti), "%s", info->dlpi_name);
    }
    found->has_driver |= strncmp(name, "libcuda.so", 10) == 0;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strncmp(name, others[i], strlen(others[i])) == 0)
            snprintf(found->other, sizeof(found->other), "%s", name);
    return 0;
}

/* Whether a profiler was named when the process was started: Nsight, for one. The variable is read from what
 * the kernel keeps, since the program may change its environment at any moment. */
static int is_injected(void)
{
    static const char name[] = "CUDA_INJECTION64_PATH=";
    struct pb_block environment;
    int yes = 0;

    pb_file_slurp("/proc/self/environ", &environment);
    for (size_t at = 0; at < environment.size; at += strlen(environment.data + at) + 1)
        if (strncmp(environment.data + at, name, sizeof(name) - 1) == 0)
            yes = environment.data[at + sizeof(name) - 1] != '\0';
    pb_block_done(&environment);
    return yes;
}

/* CUPTI would initialize CUDA, after which the program could not fork any more: it must have been already. */
static int uses_gpu(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void *count_symbol = driver ? dlsym(driver, "cuDeviceGetCount") : NULL;
    void *state_symbol = driver ? dlsym(driver, "cuDevicePrimaryCtxGetState") : NULL;
    int (*get_count)(int *ret), (*get_state)(int device, unsigned *flags, int *active);
    int n = 0, active = 0;
    unsigned flags;

    memcpy(&get_count, &count_symbol, sizeof(count_symbol));
    memcpy(&get_state, &state_symbol, sizeof(state_symbol));
    if (driver)
        dlclose(driver);
    if (!count_symbol || !state_symbol || get_count(&n) != 0) /* it is not initialized, say */
        return 0;
    for (int i = 0; i < n && !active; i++)
        if (get_state(i, &flags, &active) != 0)
            active = 0;
    return active;
}

void pb_cupti_relax_captures(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void *found = driver ? dlsym(driver, "cuThreadExchangeStreamCaptureMode") : NULL;
    int (*exchange)(int *mode), mode = RELAXED;

    memcpy(&exchange, &found, sizeof(found));
    if (found)
        exchange(&mode);
    if (driver)
        dlclose(driver);
}

static int find_functions(struct pb_cupti *c)
{
    const struct {
        const char *name;
        void *to;
    } wanted[] = {
        {"cuptiGetVersion", &c->get_version},
        {"cuptiGetTimestamp", &c->get_timestamp},
        {"cuptiGetResultString", &c->get_result_string},
        {"cuptiActivityRegisterCallbacks", &c->register_callbacks},
        {"cuptiActivityEnable", &c->enable},
        {"cuptiActivityDisable", &c->disable},
        {"cuptiActivityFlushAll", &c->flush_all},
        {"cuptiActivityGetNextRecord", &c->get_next_record},
        {"cuptiActivityGetNumDroppedRecords", &c->get_dropped},
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *found = dlsym(c->library, wanted[i].name);
        if (!found)
            return 0;
        memcpy(wanted[i].to, &found, sizeof(found));
    }
    return 1;
}

static int refuse(int error, char *why, size_t why_size, const char *text)
{
    snprintf(why, why_size, "%s", text);
    return error;
}

int pb_cupti_open(struct pb_cupti *ret, char *why, size_t why_size)
{
    struct found_libraries found = {.has_cupti = 0};
    struct pb_cupti c = {.library = NULL};

    pb_fork_gate_each_object(look_at, &found);
    if (!found.has_driver)
        return refuse(-ENODEV, why, why_size, "this process uses no GPU: libcuda.so.1 is not loaded");
    if (is_injected())
        return refuse(-EBUSY, why, why_size,
                      "another profiler (CUDA_INJECTION64_PATH) is in this process; only one can use CUPTI");
    if (found.other[0]) {
        snprintf(why, why_size, "another profiler (%.60s) is in this process; only one can use CUPTI",
                 found.other);
        return -EBUSY;
    }
    if (!found.has_cupti)
        return refuse(-ENOENT, why, why_size,
                      "no libcupti.so is loaded in this process: torch with CUDA brings it along");
    if (found.too_many)
        return refuse(-EBUSY, why, why_size, "two libraries libcupti.so are loaded in this process");
    if (!uses_gpu())
        return refuse(-ENODEV, why, why_size, "this process has not used a GPU yet");
    c.library = dlopen(found.cupti, RTLD_LAZY | RTLD_NOLOAD);
    if (!c.library || !find_functions(&c) || c.get_version(&c.version) != 0) {
        pb_cupti_close(&c);
        return refuse(-ENOTSUP, why, why_size, "libcupti.so lacks functions that are needed");
    }
    if (!pb_cupti_is_known(c.version)) {
        pb_cupti_close(&c);
        snprintf(why, why_size, "CUPTI has version %u; known are those of CUDA 11.7 to 13.4", c.version);
        return -ENOTSUP;
    }
    *ret = c;
    return 0;
}

void pb_cupti_close(struct pb_cupti *cupti)
{
    if (cupti->library)
        dlclose(cupti->library);
    cupti->library = NULL;
}
