/* torch_profiler: whether torch's profiler (Kineto, a part of libtorch_cpu.so) uses CUPTI just now.
 *
 * CUPTI gives records to one user, and says nothing about another one. Kineto's profiler is an object with
 * virtual functions; whether it is active is one of them, which reads a word. It is called only if the
 * object is Kineto's own class and the functions before and after it are those of the names that torch
 * exports. */
#include "agent/probes/gpu/cupti.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define CLASS "_ZN9libkineto21ActivityProfilerProxy"

enum { CLASS_FIRST = 2, SLOT_INIT = 2, SLOT_IS_INITIALIZED = 3, SLOT_IS_ACTIVE = 4, API_PROFILER = 1 };

struct kineto_names {
    void *(*api)(void);
    void **table; /* of the class: two words, then its functions */
    void *init, *is_active;
};

static int find_names(void *torch, struct kineto_names *ret)
{
    void *api = dlsym(torch, "_ZN9libkineto3apiEv");

    memcpy(&ret->api, &api, sizeof(api));
    ret->table = dlsym(torch, "_ZTVN9libkineto21ActivityProfilerProxyE");
    ret->init = dlsym(torch, CLASS "4initEv");
    ret->is_active = dlsym(torch, CLASS "8isActiveEv");
    return api && ret->table && ret->init && ret->is_active &&
           ret->table[CLASS_FIRST + SLOT_INIT] == ret->init &&
           ret->table[CLASS_FIRST + SLOT_IS_ACTIVE] == ret->is_active;
}

/* bool f(this) */
static int ask(void **object, int slot)
{
    void **functions = *object;
    _Bool (*function)(void *self);

    memcpy(&function, &functions[slot], sizeof(function));
    return function(object);
}

static void *read_place(void **place)
{
    return __atomic_load_n(place, __ATOMIC_ACQUIRE);
}

int pb_torch_profiler_find(struct pb_torch_profiler *ret, char *why, size_t why_size)
{
    struct kineto_names names;
    void *torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);

    if (!torch) {
        snprintf(
            why, why_size,
            "only processes of PyTorch are recorded: of others it is not known which profiler uses CUPTI");
        return -ENOENT;
    }
    int known = find_names(torch, &names);
    dlclose(torch); /* it stays loaded: Python never unloads an extension */
    if (known) {
        /* Makes Kineto's settings, as any use of the profiler does, where it was not used yet. */
        void **api = names.api();
        *ret =
            (struct pb_torch_profiler){.place = &api[API_PROFILER], .functions = names.table + CLASS_FIRST};
        void **object = read_place(ret->place);
        known = !object || *object == ret->functions;
    }
    if (known)
        return 0;
    snprintf(why, why_size, "of this version of torch it is not known whether torch.profiler uses CUPTI");
    return -ENOTSUP;
}

int pb_torch_profiler_is_active(const struct pb_torch_profiler *profiler)
{
    void **object = read_place(profiler->place);

    return object && *object == profiler->functions && ask(object, SLOT_IS_INITIALIZED) &&
           ask(object, SLOT_IS_ACTIVE);
}
