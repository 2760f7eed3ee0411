/* peek: see peek.h. */
#include "agent/core/peek.h"

#include "agent/core/own_memory.h"
#include "agent/core/server.h"
#include "control/message.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* One answer at a time, used by the resident thread only. */
static uint8_t data[PB_PEEK_MAX], reply[PB_PEEK_MAX + 64];

static void send_answer(struct pb_server *s, pb_client_id client, uint32_t request, size_t len)
{
    struct pb_frame_writer w;

    pb_frame_begin(&w, reply, sizeof(reply));
    pb_frame_put(&w, PB_TAG_DATA, data, len);
    int size = pb_frame_end(&w, PB_MSG_DONE, request);
    if (size < 0 || pb_server_send(s, client, reply, (size_t)size) == -EAGAIN)
        pb_server_send_error(s, client, request, ENOBUFS, "read the answers before asking more");
}

void pb_peek_memory(struct pb_server *s, struct pb_server_client *c, const struct pb_frame *frame)
{
    struct iovec there[PB_PEEK_PIECES];
    struct pb_field pieces;
    size_t n = 0, total = 0;

    if (pb_field_find(frame, PB_TAG_PIECES, &pieces) < 0 || pieces.size % 16 ||
        pieces.size / 16 > PB_PEEK_PIECES) {
        pb_server_send_error(s, c->id, frame->id, EINVAL, "which memory? at most 64 pieces of it");
        return;
    }
    for (; n < pieces.size / 16; n++) {
        uint64_t piece[2];
        memcpy(piece, pieces.data + n * 16, sizeof(piece));
        if (piece[1] > sizeof(data) - total) {
            pb_server_send_error(s, c->id, frame->id, EMSGSIZE, "more memory than one answer holds");
            return;
        }
        there[n] = (struct iovec){(void *)(uintptr_t)piece[0], (size_t)piece[1]};
        total += (size_t)piece[1];
    }
    ssize_t got = pb_own_memory_read(there, n, data);
    if (got < 0 && got != -EFAULT)
        pb_server_send_error(s, c->id, frame->id, (int)got, "the process may not read its own memory");
    else
        send_answer(s, c->id, frame->id, got < 0 ? 0 : (size_t)got);
}

/* Reads a file of /proc; an empty answer where it ends or may not be opened. */
static size_t read_proc(const char *path, uint64_t offset, uint8_t *buf, size_t size)
{
    size_t len = 0;

    int fd = offset < INT64_MAX - size ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return 0;
    while (len < size) {
        ssize_t n = pread(fd, buf + len, size - len, (off_t)(offset + len));
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    close(fd);
    return len;
}

void pb_peek_maps(struct pb_server *s, struct pb_server_client *c, const struct pb_frame *frame)
{
    uint64_t offset = pb_field_u64(frame, PB_TAG_OFFSET, 0);
    send_answer(s, c->id, frame->id, read_proc("/proc/self/maps", offset, data, sizeof(data)));
}

/* The CPU clock of a thread counts each nanosecond that it runs: the same value later proves that it did not
 * run. Only a thread of the same process may read it. */
static int thread_ns(int tid, uint64_t *ret)
{
    struct timespec ts;
    clockid_t clock = (clockid_t)((~(unsigned)tid << 3) | 6); /* CPUCLOCK_SCHED | CPUCLOCK_PERTHREAD */

    if (syscall(SYS_clock_gettime, clock, &ts) < 0)
        return -errno;
    *ret = (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
    return 0;
}

void pb_peek_thread(struct pb_server *s, struct pb_server_client *c, const struct pb_frame *frame)
{
    uint8_t buf[512], text[256];
    struct pb_frame_writer w;
    char path[64];
    uint64_t ns = 0, tid = pb_field_u64(frame, PB_TAG_TID, 0);

    int r = tid && tid <= INT32_MAX ? thread_ns((int)tid, &ns) : -EINVAL;
    if (r < 0) {
        pb_server_send_error(s, c->id, frame->id, ESRCH, "there is no such thread");
        return;
    }
    snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", (int)tid);
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_VALUE, ns);
    pb_frame_put(&w, PB_TAG_TEXT, text, read_proc(path, 0, text, sizeof(text)));
    pb_server_send(s, c->id, buf, (size_t)pb_frame_end(&w, PB_MSG_DONE, frame->id));
}
