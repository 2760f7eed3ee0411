/* torch_observe: observers of the marks that torch makes for profilers (at::RecordFunction).
 *
 * The functions are C++: they are called only where their ABI is known, on x86-64, with torch 2.0 to 2.13. */
#include "agent/probes/torch/torch.h"
#include "agent/python/imported.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* at::RecordFunctionCallback of torch 2. */
struct observer {
    pb_torch_mark_begins begins;
    pb_torch_mark_ends ends;
    double share;
    uint8_t scopes[10], inputs, outputs, ids;
};
_Static_assert(sizeof(struct observer) == 40, "as torch passes it");

static uint64_t (*add_observer)(struct observer);
static uint64_t (*remove_observer)(uint64_t);
static const char *(*name_of)(const void *mark);

/* "2.13.0+cpu": the verified versions are 2.0 to 2.13. */
static int is_known_version(const struct pb_python *py)
{
    pb_pyobject *version = pb_imported(py, "torch", "__version__");
    const char *text = version ? py->utf8_of(version) : NULL;
    int known = text && strncmp(text, "2.", 2) == 0 && strtol(text + 2, NULL, 10) <= 13;

    if (version)
        py->decref(version);
    py->err_clear();
    return known;
}

int pb_torch_observers_known(const struct pb_python *py)
{
#if defined(__x86_64__)
    if (name_of)
        return 1;
    void *torch = is_known_version(py) ? dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (!torch)
        return 0;
    void *found[] = {dlsym(torch, "_ZN2at17addGlobalCallbackENS_22RecordFunctionCallbackE"),
                     dlsym(torch, "_ZN2at14removeCallbackEm"),
                     dlsym(torch, "_ZNK2at14RecordFunction4nameEv")};
    dlclose(torch);
    if (!found[0] || !found[1] || !found[2])
        return 0;
    memcpy(&add_observer, &found[0], sizeof(found[0]));
    memcpy(&remove_observer, &found[1], sizeof(found[1]));
    memcpy(&name_of, &found[2], sizeof(found[2]));
    return 1;
#else
    (void)is_known_version;
    (void)py; /* how a std::unique_ptr comes back is known for x86-64 only */
    return 0;
#endif
}

uint64_t pb_torch_observe(enum pb_torch_scope scope, pb_torch_mark_begins begins, pb_torch_mark_ends ends)
{
    struct observer observer = {.begins = begins, .ends = ends, .share = 1};

    observer.scopes[scope] = 1;
    return add_observer ? add_observer(observer) : 0;
}

void pb_torch_observe_no_more(uint64_t observer)
{
    remove_observer(observer);
}

const char *pb_torch_mark_name(const void *mark)
{
    return name_of(mark);
}
