/* glance: copies the stack of a running thread within one interrupt of its CPU (remote/bpf.h).
 *
 * The BPF program is generated for the layout of one process. It copies the thread state, the holder of the
 * GIL, the newest chunk of the data stack, and frame by frame outwards each frame with the head of its code.
 * It decides nothing. The copy is then read like the memory of a process, by pb_py_stack with all its checks;
 * memory that was not copied counts as not mapped. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "remote/bpf.h"
#include "remote/python/reader_impl.h"

#define DEPTH      96 /* frames; a deeper stack is read by another way */
#define FRAME_COPY 128
#define CHUNK_COPY 16384
#define GIL_COPY   64
#define CFRAME_LEN 24
#define CODE_MAX   192 /* instructions */

enum { TAKEN = 1, NOT_THERE, UNREADABLE, TOO_DEEP };

struct glance_slot {
    uint64_t addr, code; /* code 0: it could not be read */
    uint8_t frame[FRAME_COPY];
    uint8_t head[CODE_HEAD_MAX];
};

/* Our request, and the program's answer. */
struct area {
    uint64_t ns_dev, ns_ino, tid, tstate_addr;
    uint64_t gil_at, gil_addr, cframe_addr, cframe_before, chunk_addr, chunk_len, n;
    uint8_t tstate[TSTATE_MAX];
    uint8_t gil_pointer[8];
    uint8_t gil[GIL_COPY];
    uint8_t cframe[2][CFRAME_LEN];
    struct glance_slot slots[DEPTH];
    uint8_t chunk[CHUNK_COPY];
};

struct pb_py_glance {
    struct pb_py *py;
    struct pb_source source; /* the copy */
    struct pb_bpf_memory memory;
    int program;
    size_t hint;
};

struct writer {
    struct bpf_insn at[CODE_MAX];
    size_t n;
};

static void put_insn(struct writer *w, struct bpf_insn insn)
{
    if (w->n < CODE_MAX)
        w->at[w->n] = insn;
    w->n++;
}

#define PUT(w, ...) put_insn((w), (struct bpf_insn)__VA_ARGS__)
#define AT(field)   ((int)offsetof(struct area, field))

/* Register 6 points to the area from here on. */
static void put_area(struct writer *w, int fd)
{
    PUT(w, {.code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 6, .src_reg = BPF_PSEUDO_MAP_VALUE, .imm = fd});
    PUT(w, {.imm = 0});
}

/* The instruction before this jumps over it. */
static void put_answer(struct writer *w, int answer)
{
    PUT(w, PB_BPF_SET(0, answer));
    PUT(w, PB_BPF_EXIT);
}

/* Copies len bytes from the address in register 3 to a place in the area. */
static void put_copy(struct writer *w, int to, size_t len)
{
    PUT(w, PB_BPF_MOVE(1, 6));
    PUT(w, PB_BPF_ADD(1, to));
    PUT(w, PB_BPF_SET(2, len));
    PUT(w, PB_BPF_CALL(BPF_FUNC_probe_read_user));
    PUT(w, PB_BPF_IF_EQ(0, 0, 2));
    put_answer(w, UNREADABLE);
}

/* A forward jump whose target is not known yet. */
static size_t put_jump_if_zero(struct writer *w, int reg)
{
    PUT(w, PB_BPF_IF_EQ(reg, 0, 0));
    return w->n - 1;
}

static void land(struct writer *w, size_t jump)
{
    if (jump < CODE_MAX)
        w->at[jump].off = (short)(w->n - jump - 1);
}

/* Checks that the thread on this CPU is the requested one. */
static void put_thread_check(struct writer *w)
{
    PUT(w, PB_BPF_LOAD(1, 6, AT(ns_dev)));
    PUT(w, PB_BPF_LOAD(2, 6, AT(ns_ino)));
    PUT(w, PB_BPF_MOVE(3, 10));
    PUT(w, PB_BPF_ADD(3, -(int)sizeof(struct bpf_pidns_info)));
    PUT(w, PB_BPF_SET(4, sizeof(struct bpf_pidns_info)));
    PUT(w, PB_BPF_CALL(BPF_FUNC_get_ns_current_pid_tgid));
    PUT(w, PB_BPF_IF_EQ(0, 0, 2));
    put_answer(w, NOT_THERE);
    PUT(w, PB_BPF_LOAD32(1, 10, -(int)sizeof(struct bpf_pidns_info)));
    PUT(w, PB_BPF_LOAD(2, 6, AT(tid)));
    PUT(w, PB_BPF_IF_EQ_REG(1, 2, 2));
    put_answer(w, NOT_THERE);
}

static void put_gil(struct writer *w, const struct pb_py *py)
{
    const struct pb_py_layout *l = &py->layout;

    if (py->current) {
        PUT(w, PB_BPF_LOAD(3, 6, AT(gil_addr)));
        put_copy(w, AT(gil), 8);
    } else if (l->interp.gil) {
        PUT(w, PB_BPF_LOAD(3, 6, AT(tstate) + (int)l->tstate.interp));
        PUT(w, PB_BPF_ADD(3, l->interp.gil));
        PUT(w, PB_BPF_STORE(6, AT(gil_at), 3));
        put_copy(w, AT(gil_pointer), 8);
        PUT(w, PB_BPF_LOAD(3, 6, AT(gil_pointer)));
        PUT(w, PB_BPF_STORE(6, AT(gil_addr), 3));
        put_copy(w, AT(gil), GIL_COPY);
    }
}

static void put_chunk(struct writer *w, const struct pb_py_layout *l)
{
    PUT(w, PB_BPF_LOAD(3, 6, AT(tstate) + (int)l->tstate.chunk));
    PUT(w, PB_BPF_STORE(6, AT(chunk_addr), 3));
    size_t none = put_jump_if_zero(w, 3);
    PUT(w, PB_BPF_LOAD(2, 6, AT(tstate) + (int)l->tstate.chunk_top));
    PUT(w, PB_BPF_SUB_REG(2, 3));
    PUT(w, PB_BPF_IF_LE(2, CHUNK_COPY, 2));
    put_answer(w, TOO_DEEP);
    PUT(w, PB_BPF_STORE(6, AT(chunk_len), 2));
    PUT(w, PB_BPF_MOVE(1, 6));
    PUT(w, PB_BPF_ADD(1, AT(chunk)));
    PUT(w, PB_BPF_CALL(BPF_FUNC_probe_read_user));
    PUT(w, PB_BPF_IF_EQ(0, 0, 2));
    put_answer(w, UNREADABLE);
    land(w, none);
}

/* Register 7: the innermost frame. */
static void put_head(struct writer *w, const struct pb_py_layout *l)
{
    PUT(w, PB_BPF_LOAD(7, 6, AT(tstate) + (int)l->tstate.frame));
    if (l->frames != PB_PY_FRAMES_CFRAME)
        return;
    PUT(w, PB_BPF_STORE(6, AT(cframe_addr), 7));
    size_t none = put_jump_if_zero(w, 7);
    PUT(w, PB_BPF_MOVE(3, 7));
    put_copy(w, AT(cframe[0]), CFRAME_LEN);
    PUT(w, PB_BPF_LOAD(7, 6, AT(cframe[0]) + (int)l->cframe_frame));
    PUT(w, PB_BPF_LOAD(3, 6, AT(cframe[0]) + (int)l->cframe_frame + 8));
    PUT(w, PB_BPF_STORE(6, AT(cframe_before), 3));
    size_t first = put_jump_if_zero(w, 3);
    put_copy(w, AT(cframe[1]), CFRAME_LEN);
    land(w, first);
    land(w, none);
}

/* Register 8 counts frames, 9 is the slot. */
static void put_frames(struct writer *w, const struct pb_py *py)
{
    const struct pb_py_layout *l = &py->layout;
    int frame = offsetof(struct glance_slot, frame), head = offsetof(struct glance_slot, head),
        code = offsetof(struct glance_slot, code);

    PUT(w, PB_BPF_SET(8, 0));
    PUT(w, PB_BPF_MOVE(9, 6));
    PUT(w, PB_BPF_ADD(9, AT(slots)));
    size_t loop = w->n, outermost = put_jump_if_zero(w, 7);
    PUT(w, PB_BPF_IF_LE(8, DEPTH - 1, 2));
    put_answer(w, TOO_DEEP);
    PUT(w, PB_BPF_STORE(9, offsetof(struct glance_slot, addr), 7));
    PUT(w, PB_BPF_MOVE(1, 9));
    PUT(w, PB_BPF_ADD(1, frame));
    PUT(w, PB_BPF_SET(2, py->frame_len));
    PUT(w, PB_BPF_MOVE(3, 7));
    PUT(w, PB_BPF_CALL(BPF_FUNC_probe_read_user));
    PUT(w, PB_BPF_IF_EQ(0, 0, 2));
    put_answer(w, UNREADABLE);
    PUT(w, PB_BPF_LOAD(3, 9, frame + (int)l->frame.code));
    if (l->tagged)
        PUT(w, PB_BPF_AND(3, ~3));
    PUT(w, PB_BPF_STORE(9, code, 3));
    PUT(w, PB_BPF_MOVE(1, 9));
    PUT(w, PB_BPF_ADD(1, head));
    PUT(w, PB_BPF_SET(2, py->code_len));
    PUT(w, PB_BPF_CALL(BPF_FUNC_probe_read_user));
    PUT(w, PB_BPF_IF_EQ(0, 0, 2)); /* an entry from C may have no code */
    PUT(w, PB_BPF_SET(3, 0));
    PUT(w, PB_BPF_STORE(9, code, 3));
    PUT(w, PB_BPF_LOAD(7, 9, frame + (int)l->frame.back));
    PUT(w, PB_BPF_ADD(9, sizeof(struct glance_slot)));
    PUT(w, PB_BPF_ADD(8, 1));
    PUT(w, PB_BPF_JUMP((int)loop - (int)w->n - 1));
    land(w, outermost);
    PUT(w, PB_BPF_STORE(6, AT(n), 8));
    put_answer(w, TAKEN);
}

static int load_program(struct pb_py_glance *g)
{
    const struct pb_py *py = g->py;
    struct writer w = {.n = 0};

    put_area(&w, g->memory.fd);
    put_thread_check(&w);
    PUT(&w, PB_BPF_LOAD(3, 6, AT(tstate_addr)));
    put_copy(&w, AT(tstate), py->tstate_len);
    put_gil(&w, py);
    if (py->layout.frames != PB_PY_FRAMES_HEAP)
        put_chunk(&w, &py->layout);
    put_head(&w, &py->layout);
    put_frames(&w, py);
    return w.n > CODE_MAX ? -E2BIG : pb_bpf_load(w.at, w.n);
}

/* How many bytes from addr on are in a part of the copy. */
static size_t bytes_within(uint64_t addr, uint64_t start, size_t len)
{
    return start && addr >= start && addr - start < len ? len - (size_t)(addr - start) : 0;
}

static ssize_t copy_overlap(uint64_t addr, uint64_t start, const uint8_t *piece, size_t have, void *buf,
                            size_t len)
{
    size_t n = have < len ? have : len;

    memcpy(buf, piece + (addr - start), n);
    return (ssize_t)n;
}

/* Frames and codes are requested in the order in which they are stored. */
static ssize_t read_slots(struct pb_py_glance *g, uint64_t addr, void *buf, size_t len)
{
    const struct area *a = g->memory.at;
    size_t n = a->n < DEPTH ? (size_t)a->n : DEPTH, have;

    for (size_t k = 0; k < n; k++) {
        const struct glance_slot *s = &a->slots[(g->hint + k) % n];
        if ((have = bytes_within(addr, s->addr, g->py->frame_len)))
            return copy_overlap(addr, s->addr, s->frame, have, buf, len);
        if ((have = bytes_within(addr, s->code, g->py->code_len))) {
            g->hint = (size_t)(s - a->slots) + 1;
            return copy_overlap(addr, s->code, s->head, have, buf, len);
        }
    }
    return -EFAULT;
}

static ssize_t read_copy(struct pb_source *source, uint64_t addr, void *buf, size_t len)
{
    struct pb_py_glance *g = source->extra;
    const struct pb_py *py = g->py;
    const struct area *a = g->memory.at;
    size_t chunk_len = a->chunk_len < CHUNK_COPY ? (size_t)a->chunk_len : CHUNK_COPY;
    const struct {
        uint64_t addr;
        const uint8_t *at;
        size_t len;
    } pieces[] = {{a->tstate_addr, a->tstate, py->tstate_len},
                  {a->chunk_addr, a->chunk, chunk_len},
                  {a->cframe_addr, a->cframe[0], CFRAME_LEN},
                  {a->cframe_before, a->cframe[1], CFRAME_LEN},
                  {a->gil_at, a->gil_pointer, 8},
                  {a->gil_addr, a->gil, py->current ? 8 : GIL_COPY}};
    size_t have;

    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++)
        if ((have = bytes_within(addr, pieces[i].addr, pieces[i].len)))
            return copy_overlap(addr, pieces[i].addr, pieces[i].at, have, buf, len);
    return read_slots(g, addr, buf, len);
}

static const struct pb_source_ops copy_ops = {.name = "a copy", .read = read_copy};

/* The program gets the thread's tid in the process's own pid namespace, and that namespace. */
static int name_namespace(pid_t pid, struct area *a)
{
    char path[64];
    struct stat st;

    snprintf(path, sizeof(path), "/proc/%d/ns/pid", (int)pid);
    if (stat(path, &st) < 0)
        return -errno;
    a->ns_dev = (uint64_t)major(st.st_dev) << 20 | minor(st.st_dev); /* in the kernel's internal form */
    a->ns_ino = st.st_ino;
    return 0;
}

int pb_py_glance_new(struct pb_py *py, struct pb_py_glance **ret)
{
    struct pb_py_glance *g;

    /* For a thread that executes its own copy of the code, more would have to be copied to find its place. */
    if (py->frame_len > FRAME_COPY || py->source->pid <= 0 || py->layout.code.tlbc)
        return -ENOTSUP;
    g = calloc(1, sizeof(*g));
    if (!g)
        return -ENOMEM;
    g->py = py;
    g->program = -1;
    g->source = (struct pb_source){.ops = &copy_ops, .pid = py->source->pid, .fd = -1, .extra = g};
    int r = pb_bpf_memory_new(sizeof(struct area), &g->memory);
    if (r == 0)
        r = name_namespace(py->source->pid, g->memory.at);
    if (r == 0)
        r = g->program = load_program(g);
    if (r < 0) {
        pb_py_glance_free(g);
        return r;
    }
    ((struct area *)g->memory.at)->gil_addr = py->current;
    *ret = g;
    return 0;
}

void pb_py_glance_free(struct pb_py_glance *g)
{
    if (!g)
        return;
    if (g->program >= 0)
        close(g->program);
    pb_bpf_memory_done(&g->memory);
    free(g);
}

/* New code objects are read from the live process: they do not change, but may be freed. One was not freed if
 * it is the same after its names were read, and the same as in the copy (which pb_py_stack compares). */
static int read_new_codes(struct pb_py *py, struct pb_py_stack *stack)
{
    int r = pb_py_codes(py, py->raw, stack->at, stack->n);
    size_t known = py->nall;

    if (r == 0)
        r = pb_py_codes(py, py->raw, stack->at, stack->n);
    return r < 0 ? r : py->nall == known ? 0 : -EAGAIN;
}

static int read_stack(struct pb_py_glance *g, const struct pb_py_thread *t, struct pb_py_stack *stack,
                      bool *ret_gil)
{
    struct pb_source *live = g->py->source;

    g->py->source = &g->source;
    int r = pb_py_stack(g->py, t, stack);
    if (r == -EAGAIN && stack->n) {
        g->py->source = live;
        r = read_new_codes(g->py, stack);
        g->py->source = &g->source;
        if (r == 0)
            r = pb_py_stack(g->py, t, stack);
    }
    if (r == 0)
        *ret_gil = pb_py_holds_gil(g->py, t);
    g->py->source = live;
    return r;
}

int pb_py_glance(struct pb_py_glance *g, const struct pb_py_thread *t, int cpu, struct pb_py_stack *stack,
                 bool *ret_gil)
{
    struct area *a = g->memory.at;

    a->tid = (uint64_t)(t->ns_tid ? t->ns_tid : t->tid);
    a->tstate_addr = t->tstate;
    a->chunk_len = a->n = g->hint = 0;
    int r = pb_bpf_run_on(g->program, cpu);
    if (r != TAKEN)
        return r < 0 ? r : r == NOT_THERE ? -EAGAIN : -ENODATA;
    r = read_stack(g, t, stack, ret_gil);
    stack->way = PB_WAY_INTERRUPTED;
    return r == -EAGAIN ? -ENODATA : r;
}
