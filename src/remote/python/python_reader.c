/* python_reader: opening, and the lists of interpreters and threads; see python_reader.h. */
#include "remote/python/python_reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/vector.h"
#include "control/settings.h"
#include "remote/python/reader_impl.h"
#include "remote/threads.h"

#define INTERPRETERS_MAX 4096
#define LIST_TRIES       5
#define GIL_LEN          256 /* its two condition variables and mutexes are in it */

static size_t max_of(const uint32_t *offsets, size_t n)
{
    size_t max = 0;
    for (size_t i = 0; i < n; i++)
        max = offsets[i] > max ? offsets[i] : max;
    return max;
}

/* How much of each structure must be read. -EBADMSG: more than any version has. */
static int measure_structures(struct pb_py *py)
{
    const struct pb_py_layout *l = &py->layout;
    const uint32_t frame[] = {l->frame.back,     l->frame.code,  l->frame.instr,
                              l->frame.is_entry, l->frame.owner, l->frame.tlbc};
    const uint32_t code[] = {l->code.file,
                             l->code.name,
                             l->code.qualname,
                             l->code.lines,
                             l->code.first_line,
                             l->code.flags,
                             l->code.argcount,
                             l->code.kwonly,
                             l->code.bytes,
                             l->code.varnames,
                             l->code.cellvars,
                             l->code.freevars,
                             l->code.kinds,
                             l->code.nlocals,
                             l->code.stacksize,
                             l->code.tlbc,
                             l->code.first_traceable,
                             l->object.type,
                             l->bytes.size};
    const uint32_t tstate[] = {l->tstate.next,      l->tstate.interp,    l->tstate.frame, l->tstate.thread_id,
                               l->tstate.native_id, l->tstate.chunk_top, l->tstate.chunk};

    py->frame_len = max_of(frame, sizeof(frame) / sizeof(frame[0])) + 8;
    py->code_len = max_of(code, sizeof(code) / sizeof(code[0])) + 8;
    py->tstate_len = max_of(tstate, sizeof(tstate) / sizeof(tstate[0])) + 8;
    /* With its outermost cframe, which is among its last members. */
    if (l->frames == PB_PY_FRAMES_CFRAME)
        py->tstate_len += 56;
    if (py->frame_len > FRAME_MAX || py->code_len > CODE_HEAD_MAX || py->tstate_len > TSTATE_MAX)
        return -EBADMSG;
    return 0;
}

static int make_room(struct pb_py *py, struct pb_err *err)
{
    if (measure_structures(py) < 0)
        return pb_fail(err, -EBADMSG, "its CPython stores impossible offsets");
    pb_py_redact(py, pb_setting_info[PB_SET_REDACT].fallback);
    py->budget = (struct budget){.names = NAMES_MAX, .tables = TABLES_MAX};
    py->guesses = calloc(GUESSES, sizeof(*py->guesses));
    py->prefetched = malloc(GUESS_FRAMES * py->frame_len);
    return py->guesses && py->prefetched ? 0 : pb_fail(err, -ENOMEM, "out of memory");
}

int pb_py_open(struct pb_source *source, bool force, struct pb_py **ret, struct pb_err *err)
{
    struct pb_py *py = calloc(1, sizeof(*py));
    if (!py)
        return pb_fail(err, -ENOMEM, "out of memory");
    py->source = source;
    py->tid_offset = -1;
    int r = pb_py_find(py, force, err);
    if (r == 0)
        r = make_room(py, err);
    if (r < 0) {
        pb_py_close(py);
        return r;
    }
    *ret = py;
    return 0;
}

int pb_py_open_at(struct pb_source *source, const struct pb_py_layout *layout, uint64_t interp_head,
                  struct pb_py **ret)
{
    struct pb_py *py = calloc(1, sizeof(*py));
    if (!py)
        return -ENOMEM;
    py->source = source;
    py->tid_offset = -1;
    py->layout = *layout;
    py->version = (uint32_t)layout->version << 8 | 0xff;
    py->interp_head = interp_head;
    int r = make_room(py, NULL);
    if (r < 0) {
        pb_py_close(py);
        return r;
    }
    *ret = py;
    return 0;
}

void pb_py_close(struct pb_py *py)
{
    if (!py)
        return;
    pb_py_codes_done(py);
    free(py->threads);
    free(py->tids);
    free(py->raw);
    free(py->copies);
    free(py->guesses);
    free(py->prefetched);
    free(py->chunk.at);
    free(py->older.at);
    free(py);
}

uint32_t pb_py_version(const struct pb_py *py)
{
    return py->version;
}

bool pb_py_free_threaded(const struct pb_py *py)
{
    return py->layout.free_threaded;
}

bool pb_py_verified(const struct pb_py *py)
{
    return py->layout.verified && py->layout.version == py->version >> 8;
}

const char *pb_py_note(const struct pb_py *py)
{
    return py->note[0] ? py->note
           : py->budget.cut
               ? "it has more code, frames or values than are read of a process: some are left out"
           : py->threads_made ? "it has more thread states than threads can have: some are left out"
                              : "";
}

void pb_py_until(struct pb_py *py, uint64_t time_ns)
{
    py->budget.until = time_ns;
}

/* The thread state that holds the GIL of an interpreter; 0: none does. */
static uint64_t gil_holder(struct pb_py *py, uint64_t interp)
{
    const struct pb_py_layout *l = &py->layout;
    uint64_t gil, holder = 0;
    uint8_t bytes[64];

    if (py->current)
        return read_u64(py, py->current, &holder) == 0 ? holder : 0;
    if (!l->interp.gil || l->gil.holder + 8 > sizeof(bytes) || l->gil.locked + 4 > sizeof(bytes) ||
        l->gil.enabled + 4 > sizeof(bytes))
        return 0;
    if (read_u64(py, interp + l->interp.gil, &gil) < 0 ||
        pb_source_read(py->source, gil, bytes, sizeof(bytes)) < 0)
        return 0;
    if (l->free_threaded && u32_at(bytes, l->gil.enabled) == 0)
        return 0;
    return u32_at(bytes, l->gil.locked) == 1 ? u64_at(bytes, l->gil.holder) : 0;
}

bool pb_py_waits_for_gil(struct pb_py *py, const struct pb_py_thread *t, uint64_t futex)
{
    uint64_t gil = py->runtime_gil, interp;

    if (!gil && py->layout.interp.gil &&
        (read_u64(py, t->tstate + py->layout.tstate.interp, &interp) < 0 ||
         read_u64(py, interp + py->layout.interp.gil, &gil) < 0))
        return false;
    return gil && futex >= gil && futex - gil < GIL_LEN;
}

/* Some thread states have no thread any more, and interpreters may share one: no process has many more. */
static size_t most_threads(const struct pb_native_threads *native)
{
    size_t most = native && native->n ? 4 * native->n + 256 : PB_PY_THREADS_MAX;
    return most < PB_PY_THREADS_MAX ? most : PB_PY_THREADS_MAX;
}

static struct pb_py_thread *new_thread(struct pb_py *py)
{
    if (pb_grow((void **)&py->threads, &py->threads_cap, py->nthreads, sizeof(*py->threads), NULL) < 0)
        return NULL;
    return &py->threads[py->nthreads++];
}

/* Notices a circular list (Brent's algorithm): an element seen again after a power of two of steps. */
struct lap {
    uint64_t seen;
    size_t steps, until;
};

static bool goes_round(struct lap *lap, uint64_t at)
{
    if (at == lap->seen)
        return true;
    if (lap->steps++ >= lap->until) {
        lap->seen = at;
        lap->until = 2 * lap->steps;
    }
    return false;
}

static void note_stack(const struct pb_py_layout *l, const uint8_t *tstate, struct pb_py_thread *t)
{
    if (l->frames == PB_PY_FRAMES_HEAP)
        return;
    if (l->frames == PB_PY_FRAMES_CFRAME)
        t->cframe = u64_at(tstate, l->tstate.frame);
    uint64_t chunk = u64_at(tstate, l->tstate.chunk), len = u64_at(tstate, l->tstate.chunk_top) - chunk;
    if (len <= GUESS_CHUNK_MAX) {
        t->chunk = chunk;
        t->chunk_len = (uint32_t)len;
    }
}

/* -EAGAIN: the list changed during the read; -E2BIG: there are more than there can be. */
static int list_threads(struct pb_py *py, const struct pb_native_threads *native, uint64_t interp, int64_t id)
{
    const struct pb_py_layout *l = &py->layout;
    uint64_t tstate, holder = gil_holder(py, interp);
    uint8_t bytes[TSTATE_MAX];
    struct lap lap = {0};

    int r = read_u64(py, interp + l->interp.tstate_head, &tstate);
    while (r == 0 && tstate) {
        if (goes_round(&lap, tstate))
            return -ELOOP;
        r = pb_source_read(py->source, tstate, bytes, py->tstate_len);
        if (r < 0 || u64_at(bytes, l->tstate.interp) != interp)
            return r == 0 || r == -EFAULT ? -EAGAIN : r;
        /* Of no thread: the agent keeps some for threads to come (agent/python/states.c). */
        if (u64_at(bytes, l->tstate.thread_id) == 0) {
            tstate = u64_at(bytes, l->tstate.next);
            continue;
        }
        if (py->nthreads >= most_threads(native))
            return -E2BIG;
        struct pb_py_thread *t = new_thread(py);
        if (!t)
            return -ENOMEM;
        *t = (struct pb_py_thread){
            .tstate = tstate,
            .ident = u64_at(bytes, l->tstate.thread_id),
            .interp = id,
            .gil = tstate == holder,
        };
        note_stack(l, bytes, t);
        pb_py_find_tid(py, native, l->tstate.native_id ? u64_at(bytes, l->tstate.native_id) : 0, t);
        tstate = u64_at(bytes, l->tstate.next);
    }
    return r;
}

static int list_all(struct pb_py *py, const struct pb_native_threads *native)
{
    const struct pb_py_layout *l = &py->layout;
    uint64_t interp, id = 0;
    struct lap lap = {0};

    py->nthreads = 0;
    int r = read_u64(py, py->interp_head, &interp);
    for (int n = 0; r == 0 && interp && n < INTERPRETERS_MAX; n++) {
        if (goes_round(&lap, interp))
            return -ELOOP;
        if (l->interp.id)
            r = read_u64(py, interp + l->interp.id, &id);
        if (r == 0)
            r = list_threads(py, native, interp, (int64_t)id);
        if (r == 0)
            r = read_u64(py, interp + l->interp.next, &interp);
    }
    return r == -EFAULT ? -EAGAIN : r;
}

int pb_py_threads(struct pb_py *py, const struct pb_native_threads *native, const struct pb_py_thread **ret,
                  struct pb_err *err)
{
    int r = -EAGAIN;

    /* Thread states are close together, and each is read once: read by pages. */
    int indexed = pb_py_index_tids(py, native);
    if (indexed < 0)
        return pb_fail(err, indexed, "out of memory");
    for (int i = 0; i < LIST_TRIES && r == -EAGAIN; i++) {
        pb_source_keep(py->source, 0);
        r = list_all(py, native);
    }
    pb_source_forget(py->source);
    py->threads_made = r == -E2BIG;
    if (r == -E2BIG)
        r = 0;
    if (r == -ESRCH)
        return pb_fail(err, r, "the process ended while it was read");
    if (r < 0)
        return pb_fail(err, r, "its list of threads cannot be read: %s", strerror(-r));
    *ret = py->threads;
    return (int)py->nthreads;
}

bool pb_py_holds_gil(struct pb_py *py, const struct pb_py_thread *t)
{
    uint64_t interp = 0;
    return (py->current || read_u64(py, t->tstate + py->layout.tstate.interp, &interp) == 0) &&
           gil_holder(py, interp) == t->tstate;
}

/* Threads of the threading module run Thread._bootstrap outermost, whose first local is the Thread. */
int pb_py_thread_name(struct pb_py *py, const struct pb_py_thread *t, const struct pb_py_stack *stack,
                      char *ret, size_t size)
{
    uint64_t thread, name;

    if (t->tid && t->tid == py->source->main && t->interp == 0) {
        snprintf(ret, size, "MainThread");
        return 0;
    }
    if (stack->n == 0 || stack->truncated || strcmp(stack->at[stack->n - 1].code->name, "_bootstrap") != 0)
        return -ENOENT;
    int r = pb_py_word_of_stack(py, stack->at[stack->n - 1].addr + py->layout.frame.locals, &thread);
    if (r == 0)
        r = pb_py_attribute(py, untag(py, thread), "_name", &name);
    if (r == 0)
        r = pb_py_text(py, name, ret, size, NULL);
    return r < 0 ? -ENOENT : 0;
}
