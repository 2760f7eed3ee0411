/* A hostile process: whatever is in its memory, the reader of Python stacks ends, stays within its bounds and
 * gives strings that are strings. The input is the memory: every address has bytes, over and over, so that
 * every chain of pointers can be endless. The first byte chooses the version, the second where the list of
 * interpreters begins. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote/maps.h"
#include "remote/python/heap.h"
#include "remote/python/internal.h"
#include "remote/python/lines.h"
#include "remote/python/place.h"
#include "remote/threads.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define READS_MAX 400000 /* of one input: more would be a hang */

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

    /* Low addresses are nobody's, so that lists can end. */
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
    char name[PB_PY_NAME_MAX];

    if (pb_py_stack(py, t, &stack) == 0) {
        must(stack.n <= PB_PY_FRAMES_MAX, "more frames than promised");
        for (size_t i = 0; i < stack.n && i < 8; i++) {
            must(pb_py_line(py, &stack.at[i]) >= 0, "a negative line");
            must(strlen(stack.at[i].code->file) < 4096, "a file name too long");
            char *text = pb_py_locals(py, &stack.at[i]);
            must(!text || strlen(text) < 65536, "locals too long");
            free(text);
            pb_py_frame_locks(py, &stack.at[i], locks, 8);
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

static void try_offsets(const uint8_t *data, size_t size)
{
    static uint8_t told[PB_PY_OFFSETS_SIZE];
    struct pb_py_layout layout;
    uint32_t version;

    memset(told, 0, sizeof(told));
    memcpy(told, data, size < sizeof(told) ? size : sizeof(told));
    memcpy(told, "xdebugpy", 8);
    pb_py_layout_told(told, true, &layout, &version);
}

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

    if (size < 64)
        return 0;
    while (pb_py_layouts[nlayouts])
        nlayouts++;
    try_offsets(data, size);
    for (int kind = 0; kind < 4; kind++)
        pb_py_line_at((enum pb_py_lines)kind, data, size, data[2], data[3] * 2);

    struct memory memory = {data + 2, size - 2, 0};
    struct pb_source source = {.ops = &ops, .fd = -1, .extra = &memory};
    if (pb_py_open_at(&source, pb_py_layouts[data[0] % nlayouts], 4096 + data[1], &py) < 0)
        return 0;
    int n = pb_py_threads(py, &none, &threads, NULL);
    for (int i = 0; i < n && i < 3; i++)
        look_at(py, &threads[i]);
    read_values(py, 4096 + data[1]);
    read_heap(py);
    pb_py_told_version(py);
    search(py, size); /* by other layouts: last */
    pb_py_close(py);
    return 0;
}
