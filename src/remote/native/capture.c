/* capture: the part of unwind.h that touches a live thread: stop it, copy registers and stack, release it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/procfs.h"
#include "base/time.h"
#include "remote/native/process_code.h"
#include "remote/native/unwind_arch.h"
#include "remote/trace.h"
#include "remote/transfer.h"

enum {
    FIRST_ROOM = 64 << 10,
    RED_ZONE = 128, /* what a leaf may keep below its stack pointer */
};

void pb_capture_done(struct pb_capture *c)
{
    for (unsigned i = 0; i < PB_CAPTURE_PARTS; i++)
        free(c->part[i].data);
}

/* The end of the mapping that holds addr. A stack that has grown starts below its listed start. */
static uint64_t end_of_memory(struct pb_native *n, uint64_t addr)
{
    const struct pb_maps *m = &n->maps;
    size_t low = 0, high = m->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (addr >= m->at[mid].end)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == m->n)
        return 0;
    if (addr < m->at[low].start && strcmp(m->at[low].path, "[stack]") != 0)
        return 0;
    return m->at[low].end;
}

static int copy_part(struct pb_native *n, struct pb_capture *c, struct pb_capture_part *p, uint64_t addr)
{
    p->len = 0;
    uint64_t end = end_of_memory(n, addr);
    /* A stack that is newer than our list: the next list has it. Its length is not known: one page. */
    size_t len = end ? (size_t)(end - addr) : 4096 - addr % 4096;
    if (len > n->options.stack_max) {
        len = n->options.stack_max;
        c->cut = true;
    }
    if (len > p->room) {
        size_t room = len > FIRST_ROOM ? len : FIRST_ROOM;
        unsigned char *more = realloc(p->data, room);
        if (!more)
            return -ENOMEM;
        p->data = more;
        p->room = room;
    }
    ssize_t got = pb_source_read_some(n->source, addr, p->data, len);
    if (got < 0)
        return (int)got;
    p->addr = addr;
    p->len = (size_t)got;
    return 0;
}

/* A thread that finishes a transfer for us is shown where its program is. */
static void leave_our_code(struct pb_native *n, struct pb_capture *c)
{
    uint64_t words[PB_TRANSFER_WORDS];
    struct pb_transfer_place place;
    unsigned char code[PB_TRANSFER_CODE];

    if (c->part[0].len < RED_ZONE + sizeof(words))
        return;
    memcpy(words, c->part[0].data + RED_ZONE, sizeof(words));
    for (unsigned before = 0; before <= PB_TRANSFER_BEFORE; before += PB_TRANSFER_BEFORE) {
        if (!pb_transfer_is_state(words) ||
            pb_source_read(n->source, c->pc - before, code, sizeof(code)) < 0 ||
            !pb_transfer_place_of(words, code, &place))
            continue;
        c->sp = c->reg[n->arch->sp] = place.sp;
        c->pc = c->reg[n->arch->pc] = place.pc;
        return;
    }
}

/* Copies the stack, and the part that the last unwinding missed. An invalid stack pointer gives a capture
 * without a stack, which is a valid result. */
static int copy_stack(struct pb_native *n, struct pb_capture *c)
{
    c->cut = false;
    for (unsigned i = 0; i < PB_CAPTURE_PARTS; i++)
        c->part[i].len = 0;
    int r = copy_part(n, c, &c->part[0], c->sp - RED_ZONE);
    if (r == 0)
        leave_our_code(n, c);
    if (r == 0 && c->wanted)
        copy_part(n, c, &c->part[1], c->wanted);
    return r == -EFAULT ? 0 : r;
}

/* Forgets what the last unwinding missed if that was another thread. */
static void begin_capture(struct pb_capture *c, pid_t tid)
{
    if (c->tid != tid)
        c->wanted = 0;
    c->tid = tid;
    c->held_ns = 0;
}

int pb_native_copy(struct pb_native *n, pid_t tid, struct pb_capture *c)
{
    begin_capture(c, tid);
    int r = n->source->ops->registers ? n->source->ops->registers(n->source, tid, c)
                                      : pb_native_registers(tid, c);
    return r < 0 ? r : copy_stack(n, c);
}

/* Parses "7 0x.. 0x.. 0x.. 0x.. 0x.. 0x.. SP PC" in a system call, "-1 SP PC" outside of one, "running". */
static int where_it_waits(pid_t pid, pid_t tid, uint64_t *ret_sp, uint64_t *ret_pc)
{
    char name[64], text[256];
    snprintf(name, sizeof(name), "task/%d/syscall", tid);
    int r = pb_proc_read(pid, name, text, sizeof(text));
    if (r < 0)
        return r;
    char *pc = strrchr(text, ' ');
    if (!pc || strncmp(text, "running", 7) == 0)
        return -EBUSY;
    *pc = '\0';
    char *sp = strrchr(text, ' ');
    if (!sp)
        return -EBUSY;
    *ret_sp = strtoull(sp, NULL, 16);
    *ret_pc = strtoull(pc + 1, NULL, 16);
    return *ret_pc ? 0 : -EBUSY;
}

/* How long it ran, and how often: equal before and after proves that it did not run in between. */
static int run_time(pid_t pid, pid_t tid, char text[64])
{
    char name[64];
    snprintf(name, sizeof(name), "task/%d/schedstat", tid);
    return pb_proc_read(pid, name, text, 64);
}

int pb_native_copy_asleep(struct pb_native *n, pid_t tid, uint64_t pc, uint64_t sp, struct pb_capture *c)
{
    begin_capture(c, tid);
    c->known = 1ull << n->arch->sp | 1ull << n->arch->pc;
    c->sp = c->reg[n->arch->sp] = sp;
    c->pc = c->reg[n->arch->pc] = pc;
    return copy_stack(n, c);
}

int pb_native_peek(struct pb_native *n, pid_t tid, struct pb_capture *c)
{
    char before[64], after[64];
    uint64_t sp, pc;
    int r = run_time(n->source->pid, tid, before);
    if (r >= 0)
        r = where_it_waits(n->source->pid, tid, &sp, &pc);
    if (r >= 0)
        r = pb_native_copy_asleep(n, tid, pc, sp, c);
    if (r >= 0)
        r = run_time(n->source->pid, tid, after);
    if (r < 0)
        return r;
    return strcmp(before, after) == 0 ? 0 : -EBUSY;
}
