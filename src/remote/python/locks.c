/* locks: the locks that a frame waits for or has entered, found on its stack of operands; see
 * python_reader.h.
 *
 * `with lock:` keeps the bound exit method there until the block ends, and a call of acquire keeps its method
 * or the lock itself. */
#include <errno.h>

#include "remote/python/reader_impl.h"

#define SLOTS_MAX   128
#define METHOD_SELF 8 /* after the head: pointer to the definition, then self */

static bool has_type(struct pb_py *py, uint64_t object, char *name, size_t size)
{
    uint64_t type, at;

    memset(name, 0, size);
    return object && read_u64(py, object + py->layout.object.type, &type) == 0 &&
           read_u64(py, type + py->layout.type.name, &at) == 0 &&
           pb_source_read(py->source, at, name, size - 1) == 0;
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with) + 1) == 0;
}

/* Up to 3.13 a lock has a pointer to its semaphore, from 3.14 on it is a byte: bit 0 locked, bit 1 waited
 * for. */
static bool read_lock(struct pb_py *py, uint64_t object, const char *type, struct pb_py_lock *ret)
{
    uint64_t words[3]; /* lock; owner or weak references; count or locked */
    bool bytes = py->layout.version >= 0x030e;
    struct pb_py_lock lock = {.addr = object, .recursive = begins(type, "_thread.RLock")};

    if (!lock.recursive && !begins(type, "_thread.lock"))
        return false;
    size_t len = bytes && !lock.recursive ? 8 : sizeof(words);
    if (pb_source_read(py->source, object + py->layout.object.size, words, len) < 0)
        return false;
    lock.futex = bytes ? 0 : words[0];
    lock.wanted = bytes && words[0] & 2;
    lock.locked = bytes ? words[0] & 1 : lock.recursive ? words[2] > 0 : true;
    lock.owner = lock.recursive && lock.locked ? words[1] : 0;
    *ret = lock;
    return true;
}

static bool is_exit(struct pb_py *py, uint64_t method)
{
    uint64_t definition, name;
    char text[9] = "";

    return read_u64(py, method + py->layout.object.size, &definition) == 0 &&
           read_u64(py, definition, &name) == 0 &&
           pb_source_read(py->source, name, text, sizeof(text)) == 0 &&
           memcmp(text, "__exit__", sizeof(text)) == 0;
}

static bool lock_in_slot(struct pb_py *py, uint64_t bits, struct pb_py_lock *ret)
{
    char type[32];
    uint64_t object = untag(py, bits), self;

    if (!has_type(py, object, type, sizeof(type)))
        return false;
    if (read_lock(py, object, type, ret))
        return true;
    if (!begins(type, "builtin_function_or_method") ||
        read_u64(py, object + py->layout.object.size + METHOD_SELF, &self) < 0 ||
        !has_type(py, self, type, sizeof(type)) || !read_lock(py, self, type, ret))
        return false;
    ret->entered = is_exit(py, object);
    return true;
}

enum { BLOCKS_MAX = 20, BLOCK_LEN = 12, BLOCK_LEVEL = 8 };

/* How many slots of the stack are certainly in use; if not known, all of them. Up to 3.10 the innermost open
 * block tells: the exit method of a `with` is right below its block. */
static size_t slots_in_use(struct pb_py *py, uint64_t frame, uint64_t nlocals, size_t all)
{
    const struct pb_py_layout *l = &py->layout;
    int32_t count, level = 0;

    if (!l->frame.blocks && !l->frame.stacktop)
        return all;
    if (pb_source_read(py->source, frame + (l->frame.blocks ? l->frame.iblock : l->frame.stacktop), &count,
                       sizeof(count)) < 0)
        return all;
    if (!l->frame.blocks)
        return count >= (int64_t)nlocals && count - nlocals < all ? count - nlocals : all;
    if (count > BLOCKS_MAX ||
        (count > 0 &&
         pb_source_read(py->source, frame + l->frame.blocks + (uint64_t)(count - 1) * BLOCK_LEN + BLOCK_LEVEL,
                        &level, sizeof(level)) < 0))
        return all;
    return level >= 0 && (size_t)level < all ? (size_t)level : all;
}

int pb_py_frame_locks(struct pb_py *py, const struct pb_py_frame *f, struct pb_py_lock *ret, size_t max)
{
    const struct code *code = (const struct code *)f->code;
    uint64_t slots[SLOTS_MAX], nlocals;
    size_t n = code->stacksize < SLOTS_MAX ? code->stacksize : SLOTS_MAX, found = 0;

    int r = pb_py_nlocals(py, f->code, &nlocals);
    if (r == 0)
        r = pb_source_read(py->source, f->addr + py->layout.frame.locals + 8 * nlocals, slots, 8 * n);
    size_t used = r == 0 ? slots_in_use(py, f->addr, nlocals, n) : 0;
    for (size_t i = 0; r == 0 && i < n && found < max; i++) {
        if (!lock_in_slot(py, slots[i], &ret[found]))
            continue;
        ret[found].in_use = i < used;
        found++;
    }
    return r < 0 ? r : (int)found;
}
