/* tids: the native thread of a Python thread; see python_reader.h.
 *
 * From 3.11 on the thread state has the kernel's tid; before, it is in the struct pthread that the thread's
 * ident points at; a core taken from outside a container knows its threads by their thread pointers. A sorted
 * index, made once per list, finds a number: a process may have many threads, and claim to have many more. */
#include <errno.h>
#include <stdlib.h>

#include "remote/python/reader_impl.h"
#include "remote/threads.h"

#define PTHREAD_LEN 768

/* Offsets of the tid in a struct pthread: glibc on x86-64 and on aarch64 (before the thread pointer there),
 * musl. The result must be a thread of the process. */
static const int tid_offsets[] = {720, 208, 48, 56};

/* A thread's number in its own namespace, or its thread pointer, and which of the native threads it is. */
struct tid_key {
    uint64_t key;
    size_t thread;
};

static int by_key(const void *a, const void *b)
{
    const struct tid_key *x = a, *y = b;
    return (x->key > y->key) - (x->key < y->key);
}

/* Thread pointers are known of all threads of a core, or of none. */
static bool has_tls(const struct pb_native_threads *native)
{
    return native->at[0].tls != 0;
}

int pb_py_index_tids(struct pb_py *py, const struct pb_native_threads *native)
{
    size_t n = native ? native->n : 0;

    if (n == 0)
        return 0;
    struct tid_key *keys = reallocarray(py->tids, 2 * n, sizeof(*keys));
    if (!keys)
        return -ENOMEM;
    py->tids = keys;
    for (size_t i = 0; i < n; i++) {
        keys[i] = (struct tid_key){(uint64_t)native->at[i].ns_tid, i};
        keys[n + i] = (struct tid_key){native->at[i].tls, i};
    }
    qsort(keys, n, sizeof(*keys), by_key);
    if (has_tls(native))
        qsort(keys + n, n, sizeof(*keys), by_key);
    return 0;
}

static const struct pb_native_thread *find_key(const struct tid_key *keys,
                                               const struct pb_native_threads *native, uint64_t key)
{
    const struct tid_key wanted = {.key = key},
                         *found = bsearch(&wanted, keys, native->n, sizeof(*keys), by_key);
    return found ? &native->at[found->thread] : NULL;
}

static const struct pb_native_thread *
native_by_pthread(struct pb_py *py, const struct pb_native_threads *native, uint64_t pthread)
{
    uint8_t bytes[PTHREAD_LEN];

    if (pb_source_read(py->source, pthread, bytes, sizeof(bytes)) < 0)
        return NULL;
    if (py->tid_offset >= 0)
        return find_key(py->tids, native, u32_at(bytes, (size_t)py->tid_offset));
    for (size_t i = 0; i < sizeof(tid_offsets) / sizeof(tid_offsets[0]); i++) {
        const struct pb_native_thread *t = find_key(py->tids, native, u32_at(bytes, (size_t)tid_offsets[i]));
        if (t) {
            py->tid_offset = tid_offsets[i];
            return t;
        }
    }
    return NULL;
}

/* A forked child of 3.11 may still have its parent's tid in the thread state. */
void pb_py_find_tid(struct pb_py *py, const struct pb_native_threads *native, uint64_t native_id,
                    struct pb_py_thread *t)
{
    const struct pb_native_thread *found = NULL;

    if (!native || native->n == 0)
        return;
    if (has_tls(native) && t->ident)
        found = find_key(py->tids + native->n, native, t->ident);
    if (!found && native_id)
        found = find_key(py->tids, native, (uint32_t)native_id);
    if (!found)
        found = native_by_pthread(py, native, t->ident);
    if (found) {
        t->tid = found->tid;
        t->ns_tid = found->ns_tid;
    }
}
