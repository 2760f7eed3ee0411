/* stack: the frames of one thread.
 *
 * Up to 3.10 frames are objects on the heap. From 3.11 on they are on a stack of the interpreter's own, in
 * chunks that are copied whole, except those of generators (in the generator) and those that mark an entry
 * from C (on the C stack). Frames that were outside of the chunk the last time are fetched with it in one
 * call, on the guess that they are still there; a wrong guess only costs a read.
 *
 * A thread may have been stopped between two stores that belong together. The known cases are detected here
 * and answered with -EAGAIN: the caller reads again a moment later. */
#include <errno.h>
#include <stdlib.h>

#include "base/vector.h"
#include "remote/python/reader_impl.h"

#define CHUNK_MAX  (1 << 20) /* of a chunk that is copied; CPython's are 16 KiB unless a frame is larger */
#define OWNER_SHIM 3         /* this and above: no Python code, an entry from C */
#define OLDER_MAX                                                                                            \
    (64 << 20) /* of all older chunks of a stack: a frame of the largest takes some hundred bytes */
#define CFRAME_LEN  24
#define STEPS_MAX   (3 * PB_PY_FRAMES_MAX)
#define NO_FRAME_AT (-1)

enum { CO_GENERATORS = 0x20 | 0x80 | 0x200 };

struct block {
    uint64_t addr;
    size_t len;
    const uint8_t *at;
};

struct stack_walk {
    struct pb_py *py;
    struct guess *guess;
    struct pb_py_stack *stack;
    uint8_t tstate[TSTATE_MAX];
    uint64_t tstate_at;
    uint8_t cframe[CFRAME_LEN];
    uint64_t cframe_at; /* 0: the guess did not fetch it */
    struct block chunk, older;
    uint64_t chunk_end;  /* of the newest chunk, used or not */
    uint64_t next_older; /* the next chunk that has not been read */
    size_t older_bytes;  /* copied of older chunks */
    size_t prefetched;   /* frames that the guess fetched */
    size_t hint;
    struct guess next;   /* the guess for the next time */
    uint64_t entry_back; /* 3.11, 3.12: what the outermost frame of the innermost entry returns to */
    bool entry_seen, rooted;
};

void pb_py_stack_done(struct pb_py_stack *s)
{
    free(s->at);
    *s = (struct pb_py_stack){0};
}

static int reserve(struct bytes *b, size_t len)
{
    if (b->cap >= len)
        return 0;
    size_t cap = len < 32768 ? 32768 : len;
    uint8_t *more = realloc(b->at, cap);
    if (!more)
        return -ENOMEM;
    b->at = more;
    b->cap = cap;
    return 0;
}

static struct guess *guess_of(struct pb_py *py, const struct pb_py_thread *t)
{
    struct guess *g = &py->guesses[(t->tstate >> 6) * 0x9e3779b97f4a7c15ull >> 58];

    if (g->tstate != t->tstate)
        *g = (struct guess){
            .tstate = t->tstate, .cframe = t->cframe, .chunk = t->chunk, .chunk_len = t->chunk_len};
    return g;
}

static size_t cframe_len(const struct pb_py *py)
{
    return py->layout.cframe_frame + 16;
}

/* Fetches the thread state, and with it the guess. Only the former must succeed. */
static int fetch_state(struct stack_walk *w)
{
    struct pb_py *py = w->py;
    struct guess *g = w->guess;
    struct pb_piece pieces[4 + GUESS_FRAMES];
    size_t n = 0;

    py->chunk_len = 0;
    pieces[n++] = (struct pb_piece){w->tstate_at, w->tstate, py->tstate_len};
    if (py->current)
        pieces[n++] = (struct pb_piece){py->current, &w->stack->holder, sizeof(w->stack->holder)};
    size_t chunk_at = n;
    if (g->chunk_len) {
        int r = reserve(&py->chunk, g->chunk_len);
        if (r < 0)
            return r;
        pieces[n++] = (struct pb_piece){g->chunk, py->chunk.at, g->chunk_len};
    }
    if (g->cframe)
        pieces[n++] = (struct pb_piece){g->cframe, w->cframe, cframe_len(py)};
    size_t frames_from = n;
    for (size_t i = 0; i < g->n; i++)
        pieces[n++] = (struct pb_piece){g->frames[i], py->prefetched + i * py->frame_len, py->frame_len};
    ssize_t have = pb_source_readv(py->source, pieces, n);
    if (have < 1)
        return have < 0 ? (int)have : -ESRCH;
    w->stack->holder_known = py->current && have > 1;
    if (g->chunk_len && (size_t)have > chunk_at)
        w->chunk = (struct block){g->chunk, g->chunk_len, py->chunk.at};
    if (g->cframe && (size_t)have >= frames_from)
        w->cframe_at = g->cframe;
    w->prefetched = (size_t)have > frames_from ? (size_t)have - frames_from : 0;
    return 0;
}

/* Fetches the newest chunk up to its top, unless the guess did. */
static int fetch_chunk(struct stack_walk *w)
{
    struct pb_py *py = w->py;
    const struct pb_py_layout *l = &py->layout;
    uint64_t chunk = u64_at(w->tstate, l->tstate.chunk), top = u64_at(w->tstate, l->tstate.chunk_top);

    if (!chunk) {
        w->chunk = (struct block){0};
        return 0;
    }
    if (top < chunk || top - chunk < l->chunk.data || top - chunk > CHUNK_MAX)
        return -EAGAIN;
    size_t len = top - chunk;
    if (w->chunk.addr != chunk || w->chunk.len < len) {
        int r = reserve(&py->chunk, len);
        if (r == 0)
            r = pb_source_read(py->source, chunk, py->chunk.at, len);
        if (r < 0)
            return r == -EFAULT ? -EAGAIN : r;
    }
    w->chunk = (struct block){chunk, len, py->chunk.at};
    py->chunk_addr = chunk;
    py->chunk_len = len;
    w->chunk_end = chunk + u64_at(w->chunk.at, l->chunk.size);
    w->next_older = u64_at(w->chunk.at, l->chunk.previous);
    w->next.chunk = chunk;
    /* Some room above the top: the stack's height changes until the next time. */
    w->next.chunk_len = (uint32_t)(len + 1024);
    if (w->next.chunk_len > w->chunk_end - chunk)
        w->next.chunk_len = (uint32_t)len;
    return 0;
}

static bool holds(const struct block *b, uint64_t addr, size_t len)
{
    return addr >= b->addr && addr - b->addr < b->len && b->len - (addr - b->addr) >= len;
}

/* Steps to the next older chunk if the frame is on it. */
static bool step_to_older(struct stack_walk *w, uint64_t addr)
{
    struct pb_py *py = w->py;
    uint8_t head[32];
    uint64_t size;

    if (!w->next_older || pb_source_read(py->source, w->next_older, head, sizeof(head)) < 0)
        return false;
    size = u64_at(head, py->layout.chunk.size);
    if (addr < w->next_older || addr - w->next_older >= size || size > CHUNK_MAX ||
        size > OLDER_MAX - w->older_bytes)
        return false;
    w->older_bytes += size;
    if (reserve(&py->older, size) < 0 || pb_source_read(py->source, w->next_older, py->older.at, size) < 0)
        return false;
    w->older = (struct block){w->next_older, size, py->older.at};
    w->next_older = u64_at(head, py->layout.chunk.previous);
    return true;
}

static const uint8_t *find_prefetched(struct stack_walk *w, uint64_t addr)
{
    for (size_t k = 0; k < w->prefetched; k++) {
        size_t i = (w->hint + k) % w->prefetched;
        if (w->guess->frames[i] == addr) {
            w->hint = i + 1;
            return w->py->prefetched + i * w->py->frame_len;
        }
    }
    return NULL;
}

/* The bytes of a frame, in one of the copies or, read now, in tmp. NULL: it cannot be read. */
static const uint8_t *frame_at(struct stack_walk *w, uint64_t addr, uint8_t *tmp)
{
    size_t len = w->py->frame_len;

    if (addr % 8)
        return NULL;
    if (holds(&w->chunk, addr, len))
        return w->chunk.at + (addr - w->chunk.addr);
    if (holds(&w->older, addr, len))
        return w->older.at + (addr - w->older.addr);
    if (w->next.n < GUESS_FRAMES)
        w->next.frames[w->next.n++] = addr;
    const uint8_t *known = find_prefetched(w, addr);
    if (known)
        return known;
    if (step_to_older(w, addr) && holds(&w->older, addr, len)) {
        w->next.n--;
        return w->older.at + (addr - w->older.addr);
    }
    return pb_source_read(w->py->source, addr, tmp, len) < 0 ? NULL : tmp;
}

static int push_frame(struct stack_walk *w, uint64_t addr, uint64_t code, int32_t at, unsigned flags)
{
    struct pb_py_stack *s = w->stack;
    struct pb_py *py = w->py;

    if (pb_grow((void **)&s->at, &s->cap, s->n, sizeof(*s->at), NULL) < 0)
        return -ENOMEM;
    if (py->raw_cap < s->cap) {
        uint64_t *more = reallocarray(py->raw, s->cap, sizeof(*more));
        if (more)
            py->raw = more;
        struct copy *copies = reallocarray(py->copies, s->cap, sizeof(*copies));
        if (copies)
            py->copies = copies;
        if (!more || !copies)
            return -ENOMEM;
        py->raw_cap = s->cap;
    }
    py->raw[s->n] = code;
    py->copies[s->n] = (struct copy){0};
    s->at[s->n++] = (struct pb_py_frame){.addr = addr, .at = at, .flags = flags};
    return 0;
}

static int push_heap(struct stack_walk *w, uint64_t addr, const uint8_t *frame)
{
    const struct pb_py_layout *l = &w->py->layout;
    int32_t at = (int32_t)u32_at(frame, l->frame.instr);

    if (at > INT32_MAX / 2)
        return -EAGAIN;
    at = at < 0 ? NO_FRAME_AT : l->lasti_units ? at * 2 : at;
    w->rooted = true;
    return push_frame(w, addr, u64_at(frame, l->frame.code), at, PB_PY_ENTRY);
}

/* An entry from C is between the last frame and `back`: the innermost entry is compared with the C stack's
 * own record. */
static void note_entry(struct stack_walk *w, uint64_t back)
{
    if (!w->entry_seen)
        w->entry_back = back;
    w->entry_seen = true;
}

static int push_chunked(struct stack_walk *w, uint64_t addr, const uint8_t *frame)
{
    const struct pb_py_layout *l = &w->py->layout;
    uint64_t code = untag(w->py, u64_at(frame, l->frame.code)), back = u64_at(frame, l->frame.back);
    int64_t at = (int64_t)(u64_at(frame, l->frame.instr) - (code + l->code.adaptive));
    bool entry = l->frame.is_entry && frame[l->frame.is_entry];

    w->rooted = entry;
    if (!l->frame.is_entry && frame[l->frame.owner] >= OWNER_SHIM) {
        if (w->stack->n)
            w->stack->at[w->stack->n - 1].flags |= PB_PY_ENTRY;
        note_entry(w, back);
        w->rooted = true;
        return 0;
    }
    if (entry)
        note_entry(w, back);
    struct copy copy = {.instr = u64_at(frame, l->frame.instr),
                        .index = l->frame.tlbc ? u32_at(frame, l->frame.tlbc) : 0};
    if (copy.index) {
        int r = push_frame(w, addr, code, NO_FRAME_AT, 0);
        if (r == 0)
            w->py->copies[w->stack->n - 1] = copy;
        return r;
    }
    /* One unit before the first instruction: the frame is about to begin. */
    if (at < -2 || at > INT32_MAX)
        return -EAGAIN;
    return push_frame(w, addr, code, at < 0 ? NO_FRAME_AT : (int32_t)at, entry ? PB_PY_ENTRY : 0);
}

static int walk_frames(struct stack_walk *w, uint64_t addr)
{
    const struct pb_py_layout *l = &w->py->layout;
    uint8_t tmp[FRAME_MAX];
    uint64_t last_in_chunk = UINT64_MAX;

    for (int steps = 0; addr; steps++) {
        if (w->stack->n == PB_PY_FRAMES_MAX || steps == STEPS_MAX ||
            (steps % 1024 == 1023 && is_late(&w->py->budget))) {
            w->stack->truncated = true;
            return 0;
        }
        const uint8_t *frame = frame_at(w, addr, tmp);
        if (!frame)
            return -EAGAIN;
        /* Frames on a chunk are older the lower they lie. */
        if (addr >= w->chunk.addr && addr < w->chunk_end) {
            if (addr >= last_in_chunk)
                return -EAGAIN;
            last_in_chunk = addr;
        }
        int r = l->frames == PB_PY_FRAMES_HEAP ? push_heap(w, addr, frame) : push_chunked(w, addr, frame);
        if (r < 0)
            return r;
        addr = u64_at(frame, l->frame.back);
    }
    return w->rooted || w->stack->n == 0 ? 0 : -EAGAIN;
}

/* 3.11 and 3.12 keep the current frame in a struct on the C stack, one per entry, which is linked before it
 * is filled: its frame must return to that of the struct before. */
static int find_head(struct stack_walk *w, uint64_t *ret_head, uint64_t *ret_before)
{
    struct pb_py *py = w->py;
    const struct pb_py_layout *l = &py->layout;
    uint64_t head = u64_at(w->tstate, l->tstate.frame), before = 0;

    if (l->frames == PB_PY_FRAMES_CFRAME && head) {
        int r = w->cframe_at == head ? 0 : pb_source_read(py->source, head, w->cframe, cframe_len(py));
        if (r < 0)
            return r == -EFAULT ? -EAGAIN : r;
        w->next.cframe = head;
        uint64_t previous = u64_at(w->cframe, l->cframe_frame + 8), in = previous - w->tstate_at;
        head = u64_at(w->cframe, l->cframe_frame);
        if (in < py->tstate_len && py->tstate_len - in >= cframe_len(py))
            before = u64_at(w->tstate, in + l->cframe_frame);
        else if (previous && read_u64(py, previous + l->cframe_frame, &before) < 0)
            return -EAGAIN;
    }
    *ret_head = head;
    *ret_before = before;
    return 0;
}

int pb_py_word_of_stack(struct pb_py *py, uint64_t addr, uint64_t *ret)
{
    struct block newest = {py->chunk_addr, py->chunk_len, py->chunk.at};

    if (holds(&newest, addr, sizeof(*ret))) {
        *ret = u64_at(newest.at, addr - newest.addr);
        return 0;
    }
    /* Not from a kept page: that may be older than the frame. */
    ssize_t got = pb_source_read_some(py->source, addr, ret, sizeof(*ret));
    return got < 0 ? (int)got : got == sizeof(*ret) ? 0 : -EFAULT;
}

/* Removes the interpreter's internal frames, as Python does. */
static void drop_hidden(struct pb_py_stack *s)
{
    size_t kept = 0;

    for (size_t i = 0; i < s->n; i++) {
        if (!((const struct code *)s->at[i].code)->hidden)
            s->at[kept++] = s->at[i];
        else if (kept)
            s->at[kept - 1].flags |= s->at[i].flags & PB_PY_ENTRY;
    }
    s->n = kept;
}

static int check_codes(struct stack_walk *w)
{
    const struct pb_py_layout *l = &w->py->layout;
    struct pb_py_stack *s = w->stack;

    int r = pb_py_codes(w->py, w->py->raw, s->at, s->n);
    if (r == 0 && l->code.tlbc)
        r = pb_py_at_of_copies(w->py, w->py->copies, s->at, s->n);
    for (size_t i = 0; r == 0 && i < s->n; i++) {
        const struct code *code = (const struct code *)s->at[i].code;
        if (code->flags & CO_GENERATORS)
            s->at[i].flags |= PB_PY_GENERATOR;
        if (l->frames != PB_PY_FRAMES_HEAP && s->at[i].at >= 0 && (uint64_t)s->at[i].at >= 2 * code->id.size)
            r = -EAGAIN;
    }
    if (r == 0 && l->code.first_traceable)
        drop_hidden(s);
    return r;
}

int pb_py_stack(struct pb_py *py, const struct pb_py_thread *t, struct pb_py_stack *stack)
{
    const struct pb_py_layout *l = &py->layout;
    struct stack_walk w = {.py = py, .stack = stack, .guess = guess_of(py, t), .tstate_at = t->tstate};
    uint64_t head = 0, before = 0;

    stack->n = 0;
    stack->truncated = false;
    w.next.tstate = t->tstate;
    int r = fetch_state(&w);
    if (r < 0)
        return r;
    if (u64_at(w.tstate, l->tstate.thread_id) != t->ident)
        return -ESRCH;
    if (l->frames != PB_PY_FRAMES_HEAP)
        r = fetch_chunk(&w);
    if (r == 0)
        r = find_head(&w, &head, &before);
    if (r < 0)
        return r;
    /* Above the top there are only frames that have ended. */
    if (l->frames != PB_PY_FRAMES_HEAP && head >= w.chunk.addr + w.chunk.len && head < w.chunk_end)
        return -EAGAIN;
    r = walk_frames(&w, head);
    if (r == 0 && l->frames == PB_PY_FRAMES_CFRAME && w.entry_seen && w.entry_back != before)
        r = -EAGAIN;
    if (r == 0)
        r = check_codes(&w);
    if (r == 0)
        *w.guess = w.next;
    return r;
}

/* One stack, and the state of its thread at the same moment. */
struct sample {
    struct pb_py *py;
    const struct pb_py_thread *thread;
    struct pb_py_stack *stack;
    int (*more)(void *arg);
    void *arg;
};

static int read_sample(void *arg)
{
    const struct sample *s = arg;

    if (is_late(&s->py->budget))
        return -ETIMEDOUT;
    int r = pb_py_stack(s->py, s->thread, s->stack);
    return r == 0 && s->more ? s->more(s->arg) : r;
}

int pb_py_sample(struct pb_py *py, const struct pb_py_thread *t, struct pb_moment *m, unsigned ways,
                 struct pb_py_stack *stack, int (*more)(void *arg), void *arg)
{
    struct sample s = {py, t, stack, more, arg};

    /* Do not begin a moment: it would stop the thread in vain. */
    if (is_late(&py->budget))
        return -ETIMEDOUT;
    return pb_moment_read(m, ways, read_sample, &s, &stack->way);
}
