/* stub: see stub.h. This file is compiled with its own flags (cmake/options.cmake) into a section that is
 * copied into the target unchanged: no relocations, no constants in other sections, calls only through struct
 * pb_stub. A test checks the object file for that. */
#include "inject/stub.h"

#include <sys/syscall.h>

#if defined(__x86_64__)
#include "inject/arch/stub_x86_64.h"
#elif defined(__aarch64__)
#include "inject/arch/stub_aarch64.h"
#endif
#include "table/system_calls.h"

#define HERE   __attribute__((section("pb_stub_code"), used, noinline)) static
#define INLINE static inline __attribute__((always_inline))

enum {
    CLOSE_RANGE_UNSHARE_TABLE = 2,
    CLONE_FILES_FLAG = 0x400,
    DONT_FORK = 10, /* madvise */
    MEMFD_CLOEXEC = 1,
    MEMFD_EXEC = 0x10,
    DETACHED = 1, /* PTHREAD_CREATE_DETACHED, in glibc and musl */
    NO_SUCH_FLAG = -22,
    NOTHING_MADE = -38,
    WAIT_FIRST = 50000, /* ns between looks at a word that another thread sets, growing to the last */
    WAIT_LAST = 1000000,
    GO_MS = 2000,
    SEEN_MS = 1000,
    LEFT_MS = 10000,
    FOR_EVER = 0x7fffffff,
};

typedef int *errno_function(void);
typedef int create_function(uint64_t *thread, void *attributes, uint64_t code, const struct pb_stub *s);
typedef int attr_function(void *attributes);
typedef int set_function(void *attributes, size_t value);
typedef size_t minstack_function(const void *attributes);
typedef void *open_function(const char *path, int flags);
typedef void *sym_function(void *handle, const char *name);
typedef int close_function(void *handle);
typedef char *error_function(void);
typedef void *entry_function(const char *options);

#define FUNCTION(type, address) ((type *)(uintptr_t)(address))

INLINE struct pb_stub_answer *answer_of(const struct pb_stub *s)
{
    return (struct pb_stub_answer *)(uintptr_t)s->answer;
}

/* With release order: a thread that sees the word sees what was written before it. */
INLINE void tell(struct pb_stub_answer *a, uint32_t state)
{
    __atomic_store_n(&a->state, state, __ATOMIC_RELEASE);
}

/* Waits for a word to be set, by short sleeps: a private futex cannot be woken from another process. 0: not
 * in time. volatile: an initializer would be a constant in another section. */
HERE int wait_for(const void *word, int limit_ms)
{
    volatile int64_t pause[2]; /* struct timespec */
    int64_t waited = 0, limit = (int64_t)limit_ms * 1000000, step = WAIT_FIRST;
    while (!__atomic_load_n((const uint32_t *)word, __ATOMIC_ACQUIRE)) {
        if (waited >= limit)
            return 0;
        pause[0] = 0;
        pause[1] = step;
        kernel(SYS_nanosleep, (uint64_t)(uintptr_t)pause, 0, 0, 0);
        waited += step;
        if (step < WAIT_LAST)
            step += step / 4;
    }
    return 1;
}

/* Detached, and with room for the program's static TLS if the C library does not add it. */
INLINE int start_thread(const struct pb_stub *s, struct pb_stub_answer *a, uint64_t code)
{
    void *attributes = a->attributes;
    if (FUNCTION(attr_function, s->attr_init)(attributes) != 0 ||
        FUNCTION(set_function, s->attr_setdetachstate)(attributes, DETACHED) != 0)
        return 12; /* ENOMEM */
    if (s->attr_setstacksize) {
        size_t size = s->stack_size;
        if (s->get_minstack)
            size += FUNCTION(minstack_function, s->get_minstack)(attributes);
        FUNCTION(set_function, s->attr_setstacksize)(attributes, size);
    }
    return FUNCTION(create_function, s->pthread_create)(&a->thread, attributes, code, s);
}

/* Gives this thread an empty descriptor table of its own. On an old kernel the descriptors of the copy are
 * closed one by one; where a filter forbids both, the table stays the program's. */
INLINE void unshare_descriptors(const struct pb_stub *s)
{
    if (kernel(SYS_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE_TABLE, 0) == 0)
        return;
    if (kernel(SYS_unshare, CLONE_FILES_FLAG, 0, 0, 0) == 0)
        for (uint32_t fd = 0; fd < s->fd_limit; fd++)
            kernel(SYS_close, fd, 0, 0, 0);
}

INLINE int make_memfd(const struct pb_stub *s)
{
    uint64_t name = (uint64_t)(uintptr_t)s->name;
    if (!s->memfd)
        return NOTHING_MADE;
    long fd = kernel(SYS_memfd_create, name, MEMFD_CLOEXEC | MEMFD_EXEC, 0, 0);
    if (fd == NO_SUCH_FLAG) /* a kernel before 6.3 does not know MFD_EXEC */
        fd = kernel(SYS_memfd_create, name, MEMFD_CLOEXEC, 0, 0);
    return (int)fd;
}

/* volatile: otherwise the compiler would call memcpy. */
INLINE void copy_text(volatile char *to, const char *from)
{
    for (int i = 0; i < PB_STUB_TEXT - 1 && from[i]; i++)
        to[i] = from[i];
}

INLINE void open_library(const struct pb_stub *s, struct pb_stub_answer *a)
{
    tell(a, PB_STUB_LOADING);
    void *handle = FUNCTION(open_function, s->dlopen)(a->path, (int)s->dlopen_flags);
    a->loaded = handle != 0;
    a->handle = (uint64_t)(uintptr_t)handle;
    if (handle)
        a->entry = (uint64_t)(uintptr_t)FUNCTION(sym_function, s->dlsym)(handle, s->symbol);
    if (a->entry)
        return;
    const char *why = s->dlerror ? FUNCTION(error_function, s->dlerror)() : 0;
    if (why)
        copy_text(a->text, why);
}

/* A library that we loaded but cannot use is unloaded. */
INLINE void call_entry(const struct pb_stub *s, struct pb_stub_answer *a)
{
    uint64_t entry = s->entry ? s->entry : a->entry;
    tell(a, PB_STUB_CALLING);
    if (entry)
        a->result = (uint64_t)(uintptr_t)FUNCTION(entry_function, entry)(s->options);
    if (!a->result && a->handle)
        FUNCTION(close_function, s->dlclose)((void *)(uintptr_t)a->handle);
}

/* In the borrowed thread: a living tracer serves the request while this signal has the thread stopped. */
INLINE void ask_tracer(const struct pb_stub *s, struct pb_stub_answer *a)
{
    uint64_t set = (uint64_t)(uintptr_t)&s->unblock;
    tell(a, PB_STUB_READY);
    long pid = kernel(SYS_getpid, 0, 0, 0, 0), tid = kernel(SYS_gettid, 0, 0, 0, 0);
    kernel(SYS_tgkill, (uint64_t)pid, (uint64_t)tid, s->signal, 0);
    kernel(SYS_rt_sigprocmask, 1, set, 0, 8);
    kernel(SYS_rt_sigprocmask, 0, set, 0, 8);
}

INLINE void load_here(const struct pb_stub *s, struct pb_stub_answer *a)
{
    a->fd = s->entry ? NOTHING_MADE : make_memfd(s);
    ask_tracer(s, a);
    if (__atomic_load_n(&a->go, __ATOMIC_ACQUIRE) == 1) {
        if (!s->entry)
            open_library(s, a);
        call_entry(s, a);
    }
    if (a->fd >= 0)
        kernel(SYS_close, (uint64_t)a->fd, 0, 0, 0);
    tell(a, PB_STUB_DONE);
}

/* In the borrowed thread. During setuid another thread holds a lock that pthread_create needs, and waits
 * until each thread has run the handler of the C library's signal: that signal is unblocked meanwhile, also
 * in the threads started here. Not before or after: the end must not be interrupted. */
INLINE int start_first_thread(const struct pb_stub *s, struct pb_stub_answer *a)
{
    uint64_t set = (uint64_t)(uintptr_t)&s->libc_signal;
    kernel(SYS_rt_sigprocmask, 1, set, 0, 8);
    int error = start_thread(s, a, s->caller_code);
    kernel(SYS_rt_sigprocmask, 0, set, 0, 8);
    return error;
}

/* Last, so that the cleaner takes no CPU while the borrowed thread is held. Without it the borrowed thread
 * unmaps the memory. */
INLINE int start_cleaner(const struct pb_stub *s, struct pb_stub_answer *a)
{
    kernel(SYS_madvise, s->memory, s->size, DONT_FORK, 0);
    a->cleaning = start_first_thread(s, a) == 0;
    return a->cleaning != 0;
}

/* The borrowed thread. Returns the stack pointer for its way back. MADV_DONTFORK: a child of fork does not
 * need our memory and has no thread of ours to unmap it. */
HERE uint64_t stub_begin(const struct pb_stub *s)
{
    struct pb_stub_answer *a = answer_of(s);
    int *error = FUNCTION(errno_function, s->errno_location)(), before = *error;
    uint64_t next = s->undo_sp;
    if (s->direct) {
        load_here(s, a);
        if (s->cleaner && a->result && start_cleaner(s, a))
            next = s->frame_sp;
    } else {
        kernel(SYS_madvise, s->memory, s->size, DONT_FORK, 0);
        a->error = start_first_thread(s, a);
        if (a->error == 0)
            next = s->frame_sp;
    }
    *error = before;
    return next;
}

/* The caller thread. Returns 1 when no other thread runs in our memory. */
HERE int stub_call(const struct pb_stub *s)
{
    struct pb_stub_answer *a = answer_of(s);
    a->caller_tid = (int)kernel(SYS_gettid, 0, 0, 0, 0);
    if (s->direct) {
        wait_for(&a->seen, SEEN_MS);
        return wait_for(&a->left, LEFT_MS);
    }
    if (s->entry) {
        a->fd = NOTHING_MADE;
        tell(a, PB_STUB_READY);
        a->late = !wait_for(&a->go, GO_MS);
    } else {
        a->error = start_thread(s, a, s->loader_code);
        if (a->error == 0)
            wait_for(&a->loader_left, FOR_EVER);
    }
    int call = a->error == 0 && __atomic_load_n(&a->go, __ATOMIC_ACQUIRE) == 1;
    /* dlopen may have waited long for the loader's lock. An agent must not start after its tool has died:
     * another agent may be there by then, or the user has detached. */
    if (call && a->entry) {
        tell(a, PB_STUB_LOADED);
        call = wait_for(&a->call, GO_MS);
        a->late = !call;
    }
    if (call)
        call_entry(s, a);
    tell(a, PB_STUB_DONE);
    wait_for(&a->seen, SEEN_MS);
    return wait_for(&a->left, LEFT_MS);
}

/* The loader thread. */
HERE void stub_load(const struct pb_stub *s)
{
    struct pb_stub_answer *a = answer_of(s);
    a->loader_tid = (int)kernel(SYS_gettid, 0, 0, 0, 0);
    unshare_descriptors(s);
    a->fd = make_memfd(s);
    tell(a, PB_STUB_READY);
    if (!wait_for(&a->go, GO_MS))
        a->late = 1;
    else if (a->go == 1)
        open_library(s, a);
    if (a->fd >= 0)
        kernel(SYS_close, (uint64_t)a->fd, 0, 0, 0);
}
