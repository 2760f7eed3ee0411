/* A hostile process: whatever is in its memory, the reader of Python stacks ends, stays within its bounds and
 * gives strings that are strings. The input is the memory: every address has bytes, over and over, so that
 * every chain of pointers can be endless. It begins with the version, where the list of interpreters begins,
 * and words of the offsets that the process tells (3.13 on). The memory is what follows, or that of a small
 * honest process with the words changed that follow: a whole process is more than chance comes up with. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote/maps.h"
#include "remote/python/heap.h"
#include "remote/python/line_tables.h"
#include "remote/python/reader_impl.h"
#include "remote/python/runtime_place.h"
#include "remote/threads.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define READS_MAX 400000 /* of one input: more would be a hang */

#define LIES 2

/* How an input begins; what follows is the memory. */
struct input {
    uint8_t version;        /* which of the layouts; the highest bit: an honest process */
    uint8_t head;           /* where the list of interpreters begins */
    uint8_t word[LIES];     /* how many words of the process's own offsets are changed; 0: none */
    uint8_t value[LIES][8]; /* their values */
};

struct memory {
    const uint8_t *data;
    size_t size;
    unsigned long reads;
};

static void must(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static ssize_t read_input(struct pb_source *s, uint64_t addr, void *buf, size_t len)
{
    struct memory *m = s->extra;

    /* Low addresses are unmapped, so that lists can end. */
    if (addr < 4096 || ++m->reads > READS_MAX)
        return -EFAULT;
    for (size_t k = 0; k < len;) {
        size_t at = (addr + k) % m->size, part = m->size - at;
        if (part > len - k)
            part = len - k;
        memcpy((uint8_t *)buf + k, m->data + at, part);
        k += part;
    }
    return (ssize_t)len;
}

static int see_task(void *arg, const struct pb_py_task *task)
{
    (void)arg;
    must(strlen(task->name) < PB_PY_NAME_MAX && strlen(task->waits_for) < PB_PY_NAME_MAX, "a name too long");
    return 0;
}

static void look_at(struct pb_py *py, const struct pb_py_thread *t)
{
    struct pb_py_stack stack = {0};
    struct pb_py_lock locks[8];
    struct pb_py_group group;
    char name[PB_PY_NAME_MAX];

    if (pb_py_stack(py, t, &stack) == 0) {
        must(stack.n <= PB_PY_FRAMES_MAX, "more frames than promised");
        for (size_t i = 0; i < stack.n && i < 8; i++) {
            must(pb_py_line(py, &stack.at[i]) >= 0, "a negative line");
            must(strlen(stack.at[i].code->file) < 4096, "a file name too long");
            struct pb_py_locals *locals = pb_py_locals(py, &stack.at[i]);
            char *lines = locals ? pb_py_locals_lines(locals) : NULL;
            must(!lines || strlen(lines) < 65536, "locals too long");
            free(lines);
            free(locals);
            pb_py_frame_locks(py, &stack.at[i], locks, 8);
            if (pb_py_process_group(py, &stack.at[i], &group) == 0) {
                must(strlen(group.name) < PB_PY_NAME_MAX && group.n <= PB_PY_GROUP_RANKS,
                     "a group too large");
                free(group.ranks);
            }
        }
        pb_py_thread_name(py, t, &stack, name, sizeof(name));
        pb_py_tasks(py, t, &stack, 16, see_task, NULL);
    }
    pb_py_stack_done(&stack);
}

static void read_values(struct pb_py *py, uint64_t at)
{
    char text[64];
    int len = pb_py_text(py, at, text, sizeof(text), NULL);

    must(len < 0 || (len < (int)sizeof(text) && text[len] == '\0'), "a text without end");
}

/* With a place for the allocator's variables: finding it by mappings would read ours. */
static void read_heap(struct pb_py *py)
{
    struct pb_py_heap heap = {.searched = true, .variables = {4096 + 64}, .nvariables = 1};
    struct pb_py_memory memory;

    if (pb_py_memory(py, &heap, &memory) < 0)
        return;
    must(memory.heap_arenas >= PB_UNKNOWN && memory.heap_arenas <= 1 << 16, "more arenas than can be");
    must(memory.heap_blocks == PB_UNKNOWN || memory.heap_blocks <= memory.heap_arenas * 64 * 2048,
         "more blocks than fit");
    must(memory.gc[0] >= PB_UNKNOWN && memory.gc[2] >= PB_UNKNOWN, "a negative count");
}

/* What a process of a version that tells its offsets would tell, by its table. */
static void tell(const struct pb_py_layout *l, uint8_t told[PB_PY_OFFSETS_SIZE])
{
    uint64_t head[] = {0, (uint64_t)l->version << 16, l->free_threaded};

    memset(told, 0, PB_PY_OFFSETS_SIZE);
    memcpy(told, head, sizeof(head));
    memcpy(told, PB_PY_COOKIE, strlen(PB_PY_COOKIE));
    for (const struct pb_py_published *t = pb_py_published; t->theirs[0]; t++)
        memcpy(told + t->theirs[pb_py_published_column(l->version)], (const char *)l + t->ours,
               sizeof(uint32_t));
}

/* A layout as the process tells it: the true one, with some words as the input has them. Where it is refused
 * the table stays. */
static struct pb_py_layout take_layout(const struct pb_py_layout *table, const struct input *in)
{
    uint8_t told[PB_PY_OFFSETS_SIZE];
    struct pb_py_layout layout = *table, theirs;
    uint32_t version;

    if (table->version < 0x030d)
        return layout;
    tell(table, told);
    must(pb_py_layout_published(told, false, &theirs, &version, NULL) == 0, "true offsets are refused");
    must(pb_py_layout_is_known(&theirs), "true offsets are misread");
    for (int i = 0; i < LIES; i++) {
        uint64_t value;
        memcpy(&value, in->value[i], sizeof(value));
        if (in->word[i] && in->word[i] < PB_PY_OFFSETS_SIZE / 8)
            memcpy(told + 8 * in->word[i], &value, sizeof(value));
    }
    if (pb_py_layout_published(told, true, &theirs, &version, NULL) == 0)
        layout = theirs;
    return layout;
}

/* --- an honest process --- */

enum {
    IMAGE = 16384,
    INTERP = 0,
    TSTATE = 8192,
    CHUNK = 9216,
    CODE = 10240,
    TYPE = 11264,
    TEXT = 12544,
    BYTES = 13056,
    TUPLE = 13312,
    TYPE_NAME = 13568,
    SHIM = 14336,
    INNER = CHUNK + 192,
    OUTER = CHUNK + 64,
    TOP = CHUNK + 448,
    PATCH = 10, /* bytes of an input: which word, and what it is */
};

static uint8_t image[IMAGE];

/* Memory repeats: what is at x of the image is at every multiple of its size, and x. */
static uint64_t address(size_t at)
{
    return IMAGE + at;
}

static void put(size_t at, uint64_t value)
{
    if (at <= IMAGE - sizeof(value))
        memcpy(image + at, &value, sizeof(value));
}

static void put_frame(const struct pb_py_layout *l, size_t at, uint64_t back)
{
    put(at + l->frame.code, address(CODE));
    put(at + l->frame.back, back);
    put(at + l->frame.instr, address(CODE) + l->code.adaptive + 4);
}

/* One interpreter with one thread, which has two frames of one function. */
static void make_process(const struct pb_py_layout *l, uint8_t head)
{
    memset(image, 0, sizeof(image));
    put(4096 + head, address(INTERP));
    put(INTERP + l->interp.tstate_head, address(TSTATE));
    put(INTERP + l->interp.sysdict, address(TUPLE));
    put(TSTATE + l->tstate.interp, address(INTERP));
    put(TSTATE + l->tstate.thread_id, 7);
    put(TSTATE + l->tstate.frame, address(INNER));
    put(TSTATE + l->tstate.chunk, address(CHUNK));
    put(TSTATE + l->tstate.chunk_top, address(TOP));
    put(CHUNK + l->chunk.size, 1024);
    put_frame(l, INNER, address(OUTER));
    put_frame(l, OUTER, address(SHIM));
    memset(image + SHIM + l->frame.owner, 0xff, 1);
    put(CODE + l->bytes.size, 64);
    put(CODE + l->object.type, address(TYPE));
    put(CODE + l->code.name, address(TEXT));
    put(CODE + l->code.qualname, address(TEXT));
    put(CODE + l->code.file, address(TEXT));
    put(CODE + l->code.lines, address(BYTES));
    put(CODE + l->code.varnames, address(TUPLE));
    put(CODE + l->code.kinds, address(BYTES));
    put(TYPE + l->type.name, address(TYPE_NAME));
    memcpy(image + TYPE_NAME, "code", 5);
    put(TEXT + l->object.type, address(TYPE));
    put(TEXT + l->unicode.length, 4);
    put(TEXT + l->unicode.state, (uint64_t)(1 | 1 << 3 | 1 << 4) << l->kind_shift);
    memcpy(image + TEXT + l->unicode.ascii_size, "main", 4);
    put(BYTES + l->bytes.size, 8);
    memset(image + BYTES + l->bytes.data, 0x80, 8);
    put(TUPLE + l->tuple.size, 1);
    put(TUPLE + l->tuple.data, address(TEXT));
}

static void change_words(const uint8_t *patches, size_t size)
{
    for (; size >= PATCH; patches += PATCH, size -= PATCH) {
        uint16_t word;
        memcpy(&word, patches, sizeof(word));
        memcpy(image + word % (IMAGE / 8) * 8, patches + 2, 8);
    }
}

/* Checks that the honest process can be read: otherwise the fuzzer would silently start from nothing. */
static void check_honest(struct pb_py *py, const struct pb_py_thread *t)
{
    struct pb_py_stack stack = {0};

    must(pb_py_stack(py, t, &stack) == 0 && stack.n == 2, "the honest process has no stack");
    must(strcmp(stack.at[0].code->name, "main") == 0, "the honest process has no names");
    pb_py_stack_done(&stack);
}

/* --- */

/* Looks for a runtime in all of it, as among the variables of an object. */
static void search(struct pb_py *py, size_t size)
{
    struct pb_map map = {.start = 4096, .end = 4096 + size / 8 * 8, .inode = 1, .prot = 3, .path = ""};
    const struct pb_maps maps = {.at = &map, .n = 1};
    struct place p;

    if (pb_py_place_by_scan(py, &maps, &p) == 0)
        must(p.runtime || p.head, "a place that is nowhere");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct pb_source_ops ops = {.name = "input", .read = read_input};
    const struct pb_native_threads none = {0};
    const struct pb_py_thread *threads;
    struct pb_py *py;
    size_t nlayouts = 0;

    const struct input *in = (const struct input *)data;

    if (size < sizeof(*in))
        return 0;
    while (pb_py_layouts[nlayouts].version)
        nlayouts++;
    const struct pb_py_layout *table = &pb_py_layouts[(in->version & 127) % nlayouts];
    const struct pb_py_layout layout = take_layout(table, in);
    bool honest = in->version & 128 && table->version >= 0x030d;
    if (!honest && size < sizeof(*in) + 64)
        return 0;
    for (int kind = 0; kind < 4; kind++)
        pb_py_line_at((enum pb_py_lines)kind, data, size, data[2], data[3] * 2);

    struct memory memory = {data + sizeof(*in), size - sizeof(*in), 0};
    if (honest) {
        make_process(table, in->head);
        change_words(memory.data, memory.size);
        memory = (struct memory){image, sizeof(image), 0};
    }
    struct pb_source source = {.ops = &ops, .fd = -1, .extra = &memory};
    if (pb_py_open_at(&source, &layout, 4096 + in->head, &py) < 0)
        return 0;
    int n = pb_py_threads(py, &none, &threads, NULL);
    if (honest && size == sizeof(*in) && !in->word[0] && !in->word[1])
        must(n == 1, "the honest process has no thread"), check_honest(py, &threads[0]);
    for (int i = 0; i < n && i < 3; i++)
        look_at(py, &threads[i]);
    read_values(py, 4096 + in->head);
    read_heap(py);
    pb_py_sys_version(py);
    if (!honest)
        search(py, memory.size); /* by other layouts: last */
    pb_py_close(py);
    return 0;
}
