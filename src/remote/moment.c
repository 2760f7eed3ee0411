/* moment: see moment.h. */
#include "remote/moment.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/retry.h"
#include "remote/interrupted.h"
#include "remote/source.h"
#include "remote/trace.h"

#define STOP_WITHIN_NS (2 * PB_NS_PER_S) /* on a busy machine a thread may get no CPU for long */
#define LOOKS          10                /* tries for a thread that runs: see `looks` */
#define COMPARISONS    16                /* comparisons of counts until they were equal once */

const char *pb_way_name(enum pb_way way)
{
    switch (way) {
    case PB_WAY_ASLEEP:
        return "asleep";
    case PB_WAY_PINNED:
        return "pinned";
    case PB_WAY_STOPPED:
        return "stopped";
    case PB_WAY_INTERRUPTED:
        return "interrupted";
    case PB_WAY_DEAD:
        return "dead";
    }
    return "?";
}

/* Relative to the folder of threads if that is open: it saves half a microsecond. */
static int open_thread_file(const struct pb_moment *m, const char *name)
{
    char path[64];

    if (m->tasks >= 0)
        snprintf(path, sizeof(path), "%d/%s", (int)m->tid, name);
    else
        snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", (int)m->pid, (int)m->tid, name);
    int fd = openat(m->tasks, path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 ? fd : errno == ENOENT ? -ESRCH : -errno;
}

#define FEW_FDS 64

static atomic_uint kept; /* descriptors of all moments */

/* The other half is for files of the caller, who needs all of a few. */
static unsigned most_kept(void)
{
    static atomic_uint most;
    struct rlimit limit;
    unsigned n = atomic_load(&most);

    if (!n && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        n = limit.rlim_cur < UINT_MAX ? (unsigned)limit.rlim_cur : UINT_MAX;
        n = n > FEW_FDS ? n / 2 + 1 : 1; /* 0: not looked at yet */
        atomic_store(&most, n);
    }
    return n;
}

/* Keeps a descriptor in *at if there may be one more, else closes it. */
static void keep_or_close(int fd, int *at)
{
    if (atomic_fetch_add(&kept, 1) < most_kept()) {
        *at = fd;
        return;
    }
    atomic_fetch_sub(&kept, 1);
    close(fd);
}

static void close_kept(int *at)
{
    if (*at < 0)
        return;
    close(*at);
    atomic_fetch_sub(&kept, 1);
    *at = -1;
}

int pb_moment_open_in(int tasks, pid_t pid, pid_t tid, struct pb_moment *ret)
{
    struct pb_moment m = {.pid = pid,
                          .tid = tid,
                          .tasks = tasks,
                          .schedstat_fd = -1,
                          .syscall_fd = -1,
                          .stat_fd = -1,
                          .status_fd = -1,
                          .known_waits = UINT64_MAX,
                          .pinned_cpu = -1,
                          .looks = LOOKS,
                          .within_ns = STOP_WITHIN_NS};

    int fd = open_thread_file(&m, "schedstat");
    if (fd == -EMFILE || fd == -ENFILE)
        return fd;
    m.no_schedstat = fd < 0; /* not every kernel has schedstat; every kernel has status: */
    if (m.no_schedstat && (fd = open_thread_file(&m, "status")) < 0)
        return fd;
    keep_or_close(fd, m.no_schedstat ? &m.status_fd : &m.schedstat_fd);
    fd = open_thread_file(&m, "syscall");
    /* Without the right to read that file the thread can still be stopped. */
    m.no_syscall = fd == -EACCES || fd == -EPERM;
    if (fd < 0 && !m.no_syscall) {
        pb_moment_close(&m);
        return fd;
    }
    if (fd >= 0)
        keep_or_close(fd, &m.syscall_fd);
    *ret = m;
    return 0;
}

int pb_moment_open(pid_t pid, pid_t tid, struct pb_moment *ret)
{
    return pb_moment_open_in(-1, pid, tid, ret);
}

static int read_file(struct pb_moment *m, int *at, const char *name, char *buf, size_t size)
{
    int fd = *at >= 0 ? *at : open_thread_file(m, name);
    if (fd < 0)
        return fd;
    ssize_t n = pread(fd, buf, size - 1, 0);
    int r = n < 0 ? -errno : (int)n;
    if (fd != *at)
        keep_or_close(fd, at);
    buf[n > 0 ? n : 0] = '\0';
    return r;
}

int pb_moment_stat(struct pb_moment *m, char *buf, size_t size)
{
    return read_file(m, &m->stat_fd, "stat", buf, size);
}

/* How often it gave up its CPU to wait, and how often it was taken away. */
static bool read_switches(struct pb_moment *m, uint64_t *ret_waits, uint64_t *ret_all)
{
    static const char key[] = "\nvoluntary_ctxt_switches:\t", other[] = "\nnonvoluntary_ctxt_switches:\t";
    char text[4096];

    if (read_file(m, &m->status_fd, "status", text, sizeof(text)) <= 0)
        return false;
    const char *waits = strstr(text, key), *taken = strstr(text, other);
    if (!waits || !taken)
        return false;
    *ret_waits = strtoull(waits + sizeof(key) - 1, NULL, 10);
    *ret_all = *ret_waits + strtoull(taken + sizeof(other) - 1, NULL, 10);
    return true;
}

/* Parses "run_ns wait_ns slices"; the last counts how often it was given a CPU. Without that file, or where
 * the kernel leaves it at 0: how often it lost one, and no time. */
static int read_schedule(struct pb_moment *m, uint64_t *ret_run_ns, uint64_t *ret_slices)
{
    char text[96], *end;
    uint64_t waits;

    if (m->no_schedstat) {
        *ret_run_ns = 0;
        return read_switches(m, &waits, ret_slices) ? 0 : -ESRCH;
    }
    int r = read_file(m, &m->schedstat_fd, "schedstat", text, sizeof(text));
    if (r <= 0)
        return r < 0 ? r : -ESRCH;
    *ret_run_ns = strtoull(text, &end, 10);
    strtoull(end, &end, 10);
    *ret_slices = strtoull(end, &end, 10);
    if (*ret_slices || !*ret_run_ns)
        return 0;
    /* It has run without a time slice: this kernel does not count them. */
    close_kept(&m->schedstat_fd);
    m->no_schedstat = true;
    return read_schedule(m, ret_run_ns, ret_slices);
}

bool pb_moment_knows_sleep(const struct pb_moment *m)
{
    return m->through || !m->no_syscall;
}

bool pb_moment_without_slices(const struct pb_moment *m)
{
    return m->no_schedstat;
}

/* For a thread that is certainly off its CPU, and whose slices were read before: whether the kernel counts as
 * many slices as switches. It does unless it began to count one of them late. */
static void compare_counts(struct pb_moment *m)
{
    uint64_t waits, all;

    if (!m->counts_agree && !m->no_schedstat && m->comparisons < COMPARISONS &&
        read_switches(m, &waits, &all)) {
        m->counts_agree = all == m->slices;
        m->comparisons++;
    }
}

bool pb_moment_ready(struct pb_moment *m)
{
    uint64_t waits, all;

    /* On its CPU it would have one slice more than switches. A thread that got a CPU after the slices were
     * read has more slices at the end of the moment. */
    if (!m->counts_agree || !read_switches(m, &waits, &all) || all != m->slices)
        return false;
    m->way = PB_WAY_PINNED;
    return true;
}

/* Keeps the call that it waits in. False: it runs, or the text is not valid. */
static bool note_waiting(struct pb_moment *m, bool waits, const struct pb_waiting *w)
{
    if (!waits)
        return false;
    m->syscall = (int)w->number;
    memcpy(m->syscall_args, w->args, sizeof(m->syscall_args));
    m->sp = w->sp;
    m->pc = w->pc;
    return true;
}

static bool parse_syscall(struct pb_moment *m, const char *text)
{
    struct pb_waiting w;
    return note_waiting(m, pb_waiting_parse(&w, text), &w);
}

/* The kernel answers with numbers only if the thread was off its CPU during the whole answer. False: it runs,
 * or we may not know. */
static bool read_syscall(struct pb_moment *m)
{
    struct pb_waiting w;
    return !m->no_syscall && note_waiting(m, pb_waiting_read(m->pid, m->tid, m->syscall_fd, &w) == 1, &w);
}

/* The same, without keeping the call that it waits in. */
static bool is_off_cpu(const struct pb_moment *m)
{
    struct pb_waiting w;
    return !m->no_syscall && pb_waiting_read(m->pid, m->tid, m->syscall_fd, &w) == 1;
}

static int end_by_clock(struct pb_moment *m)
{
    char call[256];
    uint64_t ran_ns;

    int r = m->through->ops->look(m->through, m->ns_tid, &ran_ns, call, sizeof(call));
    return r < 0 ? r : ran_ns == m->clock_ns ? 0 : -EAGAIN;
}

/* The CPU it runs on, ran on last, or waits for: field 39 of stat, counted from the end of the name. */
static int read_cpu(struct pb_moment *m)
{
    char text[1024];

    if (pb_moment_stat(m, text, sizeof(text)) <= 0)
        return -ESRCH;
    char *p = strrchr(text, ')');
    for (int field = 2; p && field < 39; field++)
        p = strchr(p + 1, ' ');
    return p ? (int)strtol(p, NULL, 10) : -EBADMSG;
}

static bool pin_to(struct pb_moment *m, int cpu)
{
    cpu_set_t set;

    if (m->pinned_cpu == cpu)
        return true;
    if (cpu < 0 || cpu >= CPU_SETSIZE)
        return false;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set) < 0)
        return false;
    m->pinned_cpu = cpu;
    return true;
}

/* True: we run on the thread's CPU, so it does not run. It may have moved away while we moved there. */
static bool is_preempted(struct pb_moment *m)
{
    int cpu = read_cpu(m);
    return cpu >= 0 && pin_to(m, cpu) && read_cpu(m) == cpu;
}

/* We stay awake on the thread's CPU while the agent reads on another. */
static int begin_pinned_through(struct pb_moment *m)
{
    m->by_clock = false;
    int r = !m->no_schedstat ? read_schedule(m, &m->run_ns, &m->slices) : -EAGAIN;
    if (r < 0 || !is_preempted(m))
        return r < 0 ? r : -EAGAIN;
    m->through->spin = true;
    return m->way = PB_WAY_PINNED;
}

/* Through a source (the agent), whose answers are too slow to catch a thread at the first look that only
 * sleeps now and then. Its time slices, which may be read without a right, prove that it did not run. If
 * these cannot be read, or the source does not know the thread's system call, the thread's CPU clock decides
 * at the end. */
static int begin_through(struct pb_moment *m, unsigned ways)
{
    char call[256];

    if (ways == PB_WAY_PINNED)
        return begin_pinned_through(m);

    m->by_clock = false;
    for (unsigned i = 0; i < m->looks; i++) {
        if (i)
            pb_sleep_ns(PB_NS_PER_MS);
        int r = !m->no_schedstat ? read_schedule(m, &m->run_ns, &m->slices) : 0;
        if (r == 0 && !(ways & PB_WAY_ASLEEP))
            return -EAGAIN;
        if (r == 0)
            r = m->through->ops->look(m->through, m->ns_tid, &m->clock_ns, call, sizeof(call));
        if (r < 0)
            return r;
        m->syscall = -1;
        m->pc = m->sp = 0;
        if (parse_syscall(m, call)) {
            m->by_clock = m->no_schedstat;
            compare_counts(m);
            return m->way = PB_WAY_ASLEEP;
        }
        if (!call[0]) {
            m->by_clock = true;
            return m->way = PB_WAY_ASLEEP;
        }
    }
    return -EAGAIN;
}

static int stop_moment(struct pb_moment *m)
{
    int r = pb_trace_stop(m->pid, m->tid, m->syscall_fd, m->within_ns, &m->signal);

    m->stopped = r == 0;
    return r;
}

static void let_go(struct pb_moment *m)
{
    if (m->stopped)
        pb_trace_let_go(m->pid, m->tid, m->signal);
    m->stopped = false;
}

#define LEAVE_FIRST_NS 50000
#define LEAVE_MAX_NS   500000

/* For pb_moment_read: a stop may hit a place between two stores, a few instructions long. */
#define READ_TRIES     20
#define LET_RUN_NS     1000
#define LET_RUN_MAX_NS 64000

/* CPU time of a thread in the units of stat, fields 14 and 15, for kernels that do not count slices. */
static uint64_t read_ticks(struct pb_moment *m)
{
    char text[1024];

    if (pb_moment_stat(m, text, sizeof(text)) <= 0)
        return 0;
    char *p = strrchr(text, ')');
    for (int field = 2; p && field < 14; field++)
        p = strchr(p + 1, ' ');
    uint64_t user = p ? strtoull(p, &p, 10) : 0;
    return p ? user + strtoull(p, NULL, 10) : 0;
}

/* How often a thread was given a CPU, or a number that grows when it has run. */
static uint64_t read_turns(struct pb_moment *m, uint64_t taken_away)
{
    return !m->no_schedstat ? m->slices : taken_away + read_ticks(m);
}

/* Waits until a thread that is not asleep is certainly not in a wait. A thread that has waited in accept,
 * say, for all of its time and was woken by that, but has no CPU yet, is runnable and still in the call: a
 * stop would begin the call again (accept, io_getevents and reads of Unix sockets check for signals before
 * their time). A thread is in no wait if it has not given up its CPU since it was last seen outside of one;
 * or if it was given the CPU more often than it lost it: then it has it now, and had it when the slices were
 * read, some 10 us ago: long enough to leave the call; or if it was given a CPU since the first look and did
 * not give it up.
 * 0: it may be stopped; 1: it is asleep; -ETIMEDOUT: it got no CPU. */
static int wait_until_outside_waits(struct pb_moment *m)
{
    struct pb_retry again = pb_retry_until(pb_now_ns() + m->within_ns, LEAVE_FIRST_NS, LEAVE_MAX_NS);
    uint64_t first_waits = 0, first_turns = 0, waits, all;

    for (bool first = true;; first = false) {
        if (!read_switches(m, &waits, &all)) /* a kernel that does not count at all */
            return 0;
        uint64_t turns = read_turns(m, all - waits);
        if (waits == m->known_waits || (!m->no_schedstat && m->slices > all) ||
            (!first && waits == first_waits && turns > first_turns)) {
            m->known_waits = waits;
            return 0;
        }
        if (first || waits != first_waits) {
            first_waits = waits;
            first_turns = turns;
        }
        if (!pb_retry_wait(&again))
            return -ETIMEDOUT;
        int r = read_schedule(m, &m->run_ns, &m->slices);
        if (r < 0)
            return r;
        if (read_syscall(m))
            return 1;
    }
}

int pb_moment_begin(struct pb_moment *m, unsigned ways)
{
    if (m->dead)
        return m->way = PB_WAY_DEAD;
    if (m->through)
        return begin_through(m, ways);
    int r = read_schedule(m, &m->run_ns, &m->slices);
    if (r < 0)
        return r;
    /* The order of reading is the proof: the count first, then that it is off its CPU, then the memory, and
     * the count again. */
    bool asleep = read_syscall(m);
    if (asleep)
        compare_counts(m);
    if (asleep && ways & PB_WAY_ASLEEP)
        return m->way = PB_WAY_ASLEEP;
    if (ways & PB_WAY_PINNED && !m->no_schedstat && is_preempted(m))
        return m->way = PB_WAY_PINNED;
    if (!(ways & PB_WAY_STOPPED))
        return -EAGAIN;
    if (!asleep)
        r = wait_until_outside_waits(m);
    if (r < 0 || (r == 1 && ways & PB_WAY_ASLEEP))
        return r < 0 ? r : (int)(m->way = PB_WAY_ASLEEP);
    uint64_t known = asleep || r == 1 ? UINT64_MAX : m->known_waits;
    r = stop_moment(m);
    /* A stop counts as one wait. */
    m->known_waits = r == 0 && known != UINT64_MAX ? known + 1 : UINT64_MAX;
    /* It went to wait, in a call that a stop would make longer: it can be read asleep. */
    if (r == -EINPROGRESS)
        return read_syscall(m) ? (int)(m->way = PB_WAY_ASLEEP) : -EAGAIN;
    if (r < 0)
        return r;
    /* A thread that never sleeps is certainly off its CPU only here. */
    if (!m->counts_agree && m->comparisons < COMPARISONS && is_off_cpu(m) &&
        read_schedule(m, &m->run_ns, &m->slices) == 0)
        compare_counts(m);
    return m->way = PB_WAY_STOPPED;
}

int pb_moment_end(struct pb_moment *m)
{
    uint64_t run_ns, slices;

    if (m->way == PB_WAY_STOPPED || m->way == PB_WAY_DEAD) {
        let_go(m);
        return 0;
    }
    if (m->through)
        m->through->spin = false;
    if (m->by_clock)
        return end_by_clock(m);
    /* Switches do not show that a thread was given a CPU and still has it. */
    if (m->no_schedstat && !is_off_cpu(m))
        return -EAGAIN;
    int r = read_schedule(m, &run_ns, &slices);
    if (r < 0)
        return r;
    return slices && slices == m->slices && run_ns == m->run_ns ? 0 : -EAGAIN;
}

int pb_moment_read(struct pb_moment *m, unsigned ways, int (*read)(void *arg), void *arg,
                   enum pb_way *ret_way)
{
    /* Stopped again at once, a thread would be at the same place: it runs on a little, longer each time. We
     * sleep, since it may need our CPU. */
    struct pb_retry again = pb_retry_until(0, LET_RUN_NS, LET_RUN_MAX_NS);
    int r = -EAGAIN;

    for (int i = 0; i < READ_TRIES && r == -EAGAIN; i++) {
        int way = pb_moment_begin(m, ways);
        if (way < 0)
            return way;
        r = read(arg);
        int ended = pb_moment_end(m);
        if (ended < 0 && ended != -EAGAIN)
            return ended;
        *ret_way = (enum pb_way)way;
        /* It ran during the read: neither the data nor an error in it counts, except that the time is
         * over. */
        if (ended == -EAGAIN && r != -ETIMEDOUT) {
            r = -EAGAIN;
            if (i > 1)
                ways &= ~(unsigned)way;
        }
        if (r == -EAGAIN && way != PB_WAY_ASLEEP)
            pb_retry_wait(&again);
    }
    return r;
}

void pb_moment_close(struct pb_moment *m)
{
    let_go(m);
    close_kept(&m->stat_fd);
    close_kept(&m->status_fd);
    close_kept(&m->syscall_fd);
    close_kept(&m->schedstat_fd);
}
