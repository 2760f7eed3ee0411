/* ring: reads of a file by io_uring, made by the kernel's worker threads, which are threads of this process.
 * A read gives the same bytes each time, and waiting for it never ends with EINTR: there is no signal
 * handler. */
#include "kit.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { BYTES = 4096, READS = 20 };

static struct io_uring_sqe *entries;
static struct io_uring_cqe *results;
static unsigned *tail, *mask, *array, *head, *result_tail, *result_mask;

static int make_ring(void)
{
    struct io_uring_params p = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &p);
    if (ring < 0)
        return -1; /* not allowed here: nothing is read then */
    size_t submit = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    size_t complete = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    char *rings = mmap(NULL, submit > complete ? submit : complete, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
                       IORING_OFF_SQ_RING);
    entries = mmap(NULL, p.sq_entries * sizeof(*entries), PROT_READ | PROT_WRITE, MAP_SHARED, ring,
                   IORING_OFF_SQES);
    tail = (unsigned *)(rings + p.sq_off.tail);
    mask = (unsigned *)(rings + p.sq_off.ring_mask);
    array = (unsigned *)(rings + p.sq_off.array);
    head = (unsigned *)(rings + p.cq_off.head);
    result_tail = (unsigned *)(rings + p.cq_off.tail);
    result_mask = (unsigned *)(rings + p.cq_off.ring_mask);
    results = (struct io_uring_cqe *)(rings + p.cq_off.cqes);
    return ring;
}

static void read_once(int ring, int file)
{
    static char bytes[BYTES];
    unsigned at = *tail & *mask;
    memset(bytes, 0, sizeof(bytes));
    entries[at] = (struct io_uring_sqe){.opcode = IORING_OP_READ,
                                        .flags = IOSQE_ASYNC, /* by a worker */
                                        .fd = file,
                                        .addr = (unsigned long)bytes,
                                        .len = BYTES};
    array[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
        kit_complain("io_uring_enter gave errno %d", errno);
    while (__atomic_load_n(result_tail, __ATOMIC_ACQUIRE) == *head)
        ;
    if (results[*head & *result_mask].res != BYTES || memcmp(bytes, "\177ELF", 4) != 0)
        kit_complain("a read gave %d", results[*head & *result_mask].res);
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
}

int main(void)
{
    void *volatile first = malloc(1); /* a heap of its own, as every program of some size has one */
    free(first);
    int ring = make_ring(), file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    while (kit_going())
        for (int i = 0; ring >= 0 && i < READS; i++)
            read_once(ring, file);
    return 0;
}
