/* resident: the agent's entry point and its resident thread.
 *
 * pb_agent_start is called in a borrowed thread of the target, so it only starts a thread, which stays in the
 * program's descriptor table to start others there (spawn.h) and first starts the resident thread. The
 * resident thread leaves the table (fds.h), sets up the run directory, the tables and the control socket,
 * serves clients, and gives each part (part.h) its turn, until a client asks it to detach. It
 * never takes the GIL and never waits for a client: it answers whatever Python does. Its progress is in the
 * status struct, whose address the entry point returns. fork waits for nothing here: its child resets the
 * state. */
#include "agent/core/agent.h"
#include "agent/core/agent_clock.h"
#include "agent/core/fds.h"
#include "agent/core/fork_gate.h"
#include "agent/core/futex.h"
#include "agent/core/last.h"
#include "agent/core/lock.h"
#include "agent/core/part.h"
#include "agent/core/recorder.h"
#include "agent/core/small_files.h"
#include "agent/core/spawn.h"
#include "agent/core/thread_start.h"
#include "agent/core/wake.h"
#include "control/message.h"
#include "control/status.h"
#include "table/arena.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define OPTIONS_SIZE 4096

#define RESET_ON_FORK 0x40000000l /* SCHED_RESET_ON_FORK: a flag in a policy */
/* How often rows are copied to the file that outlives the process; and how often when a turn could not copy
 * all. */
#define COPY_NS (150 * PB_NS_PER_MS)
#define MORE_NS (20 * PB_NS_PER_MS)

#define LONGEST_MS 1000 /* that the resident thread waits, whatever its parts say */

/* A child of fork finds it open or closed, never in between. */
static struct pb_arena *current_arena;
/* Retired arenas in which a thread still held a row: released later. Used by the resident thread only. */
#define RETIRED       16
#define RELEASE_TRIES 20 /* a millisecond each */
static struct pb_arena *retired[RETIRED];
static uint32_t residents; /* 1 until the resident thread has closed everything */
static char options[OPTIONS_SIZE];
/* Exported: a tool finds it by name if the agent could write no file. */
__attribute__((visibility("default"))) struct pb_agent_status pb_agent_status = {
    .magic = PB_STATUS_MAGIC, .version = PB_CONTROL_VERSION, .release = PROBING_VERSION};

static void set_state(enum pb_agent_state state)
{
    __atomic_store_n(&pb_agent_status.state, state, __ATOMIC_RELEASE);
}

const char *pb_agent_option(const char *name, char *ret, size_t size)
{
    size_t n = strlen(name);

    ret[0] = '\0';
    for (const char *line = options; *line;) {
        size_t len = strcspn(line, "\n");
        if (len > n && line[n] == '=' && memcmp(line, name, n) == 0)
            snprintf(ret, size, "%.*s", (int)(len - n - 1), line + n + 1);
        line += len + (line[len] == '\n');
    }
    return ret;
}

static int open_tables(struct pb_agent *a, char *why, size_t why_size)
{
    const struct pb_arena_options how = {.bound = a->run.bound, .wake = pb_wake_word()};
    int in_dir = a->run.dir_fd >= 0;

    int r = pb_arena_create(in_dir ? a->run.dir_fd : PB_ARENA_MEMFD, "arena", &how, &a->arena);
    if (r < 0) {
        snprintf(why, why_size, "no room for the tables in %s: %s", in_dir ? a->run.dir : "memory",
                 strerror(-r));
    }
    return r;
}

static int rename_our_object(struct dl_phdr_info *info, size_t size, void *unused)
{
    static const char opened_by[] = "/proc/", name[] = "libprobing.so";
    uintptr_t us = (uintptr_t)&pb_agent_status;
    (void)size;
    (void)unused;

    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || us - (info->dlpi_addr + p->p_vaddr) >= p->p_memsz)
            continue;
        if (strncmp(info->dlpi_name, opened_by, strlen(opened_by)) == 0)
            memcpy((char *)(uintptr_t)info->dlpi_name, name, sizeof(name));
        return 1;
    }
    return 0;
}

/* The loader's list names our library by the path it was opened by, /proc/self/fd/N. That descriptor is
 * closed by now, or belongs to another file. A debugger, or a program that prints its own stack, opens the
 * files of that list: gdb would read one of its own pipes there, and hang. So the name in the list is
 * overwritten in place: only the loader keeps that string, and it is long enough. */
static void hide_our_path(void)
{
    pb_fork_gate_each_object(rename_our_object, NULL);
}

/* Releases retired arenas, if possible. A writer holds a row for nanoseconds, unless its thread is
 * preempted. */
static void release_retired(void)
{
    for (int i = 0; i < RETIRED; i++)
        if (retired[i] && pb_arena_release(retired[i]))
            retired[i] = NULL;
}

static void retire_tables(struct pb_arena *arena)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    int place = 0;

    pb_arena_retire(arena);
    for (int i = 0; i < RELEASE_TRIES; i++) {
        if (pb_arena_release(arena))
            return;
        nanosleep(&pause, NULL);
    }
    while (place < RETIRED && retired[place])
        place++;
    if (place < RETIRED) /* else it stays mapped for ever */
        retired[place] = arena;
}

static void close_tables(struct pb_agent *a)
{
    /* A child forked at this moment must not touch memory that is being unmapped. */
    __atomic_store_n(&current_arena, NULL, __ATOMIC_SEQ_CST);
    /* A thread of the program may be inside the recorder: for 50 ns, unless it is preempted. */
    int inside = pb_recorder_close() < 0;
    if (a->arena && inside)
        retire_tables(a->arena);
    else
        pb_arena_close(a->arena);
    a->arena = NULL;
}

static int start_serving(struct pb_agent *a, char *why, size_t why_size)
{
    int r = pb_wake_start();
    if (r < 0) {
        snprintf(why, why_size, "the process cannot start a thread or open a pipe: %s", strerror(-r));
        return r;
    }
    const struct pb_server_ways ways = {.listen_fd = a->run.listen_fd,
                                        .abstract_fd = a->run.abstract_fd,
                                        .door_fd = a->run.door[0],
                                        .wake_fd = pb_wake_fd()};
    pb_server_init(&a->server, &ways);
    return 0;
}

static int begin_parts(struct pb_agent *a, char *why, size_t why_size)
{
    int r = 0;

    for (int i = 0; pb_parts[i] && r == 0; i++)
        if (pb_parts[i]->begin)
            r = pb_parts[i]->begin(a, why, why_size);
    return r;
}

static void end_parts(struct pb_agent *a)
{
    for (int i = 0; pb_parts[i]; i++)
        if (pb_parts[i]->end)
            pb_parts[i]->end(a);
}

static int set_up(struct pb_agent *a, char *why, size_t why_size)
{
    char dir[192], value[64], host_pid[16];
    struct pb_block environment;

    hide_our_path();
    pb_file_slurp("/proc/self/environ", &environment);
    pb_settings_init(&a->settings, environment.data, environment.size);
    pb_block_done(&environment);
    if (pb_agent_option("max_memory", value, sizeof(value))[0] &&
        pb_settings_set(&a->settings, pb_setting_info[PB_SET_MAX_MEMORY].name, value, why, why_size) < 0)
        return -EINVAL;

    const struct pb_run_options how = {
        .dir = pb_agent_option("dir", dir, sizeof(dir))[0] ? dir : NULL,
        .settings = &a->settings,
        .host_pid = pb_agent_option("host_pid", host_pid, sizeof(host_pid)),
    };
    int r = pb_run_open(&how, &a->run, why, why_size);
    if (r < 0)
        return r;
    r = open_tables(a, why, why_size);
    if (r == 0)
        r = begin_parts(a, why, why_size);
    if (r == 0)
        r = start_serving(a, why, why_size);
    if (r < 0) {
        end_parts(a);
        close_tables(a);
        pb_run_remove(&a->run);
        pb_run_close(&a->run);
    }
    return r;
}

static void client_gone(void *owner, pb_client_id client)
{
    (void)owner;
    for (int i = 0; pb_parts[i]; i++)
        if (pb_parts[i]->gone)
            pb_parts[i]->gone(client);
}

static int client_busy(void *owner, pb_client_id client)
{
    int busy = 0;
    (void)owner;

    for (int i = 0; pb_parts[i] && !busy; i++)
        busy = pb_parts[i]->busy && pb_parts[i]->busy(client);
    return busy;
}

/* Gives each part its turn. Returns for how many ms none has anything to do, at most LONGEST_MS. */
static int take_turns(struct pb_agent *a, uint64_t now)
{
    int wait = LONGEST_MS;

    for (int i = 0; pb_parts[i]; i++)
        if (pb_parts[i]->after_poll)
            pb_parts[i]->after_poll(a);
    for (int i = 0; pb_parts[i]; i++) {
        int ms = pb_parts[i]->turn ? pb_parts[i]->turn(a, now) : -1;
        wait = ms >= 0 && ms < wait ? ms : wait;
    }
    for (int i = 0; pb_parts[i]; i++)
        if (pb_parts[i]->before_poll)
            pb_parts[i]->before_poll(a);
    return wait;
}

/* Returns how many ms there are until the next copy. */
static int tend_tables(struct pb_agent *a, uint64_t now)
{
    pb_arena_tend(a->arena);
    release_retired();
    if (now >= a->copy_ns)
        a->copy_ns = now + (pb_arena_mirror(a->arena) > 0 ? MORE_NS : COPY_NS);
    return (int)((a->copy_ns - now) / PB_NS_PER_MS) + 1;
}

/* Returns when a client asked to detach, or when the program has closed or replaced a descriptor of ours:
 * then no client can connect. 1: no thread of the program is left. */
static int serve_clients(struct pb_agent *a)
{
    a->copy_ns = pb_now_ns();
    a->server.handle = pb_agent_request;
    a->server.gone = client_gone;
    a->server.busy = client_busy;
    a->server.owner = a;
    for (;;) {
        uint64_t now = pb_now_ns();
        if (!pb_fds_ours())
            return 0;
        if (pb_last_look(now))
            return 1;
        pb_wake_drain();
        if (pb_server_read_events(&a->server) < 0 || a->detach)
            return 0;
        int wait = take_turns(a, now), copy = tend_tables(a, now);
        pb_server_wait(&a->server, copy < wait ? copy : wait);
    }
}

/* The client that asked to detach is answered when tables and files are gone, so that the next inject may
 * begin, and before its connection is closed. */
static void tear_down(struct pb_agent *a)
{
    end_parts(a);
    pb_wake_stop();
    close_tables(a); /* copies what is left into the directory */
    pb_run_end(&a->run);
    pb_agent_status.run_dir[0] = pb_agent_status.abstract[0] = '\0';
    pb_agent_status.door_fd = pb_agent_status.arena_fd = -1;
    set_state(PB_AGENT_IDLE);
    for (int i = 0; i < PB_SERVER_CLIENTS; i++)
        if (a->server.clients[i].id && a->server.clients[i].detach)
            pb_server_send_done(&a->server, a->server.clients[i].id, a->server.clients[i].detach, 0);
    pb_server_done(&a->server);
}

static void publish(struct pb_agent *a)
{
    snprintf(pb_agent_status.run_dir, sizeof(pb_agent_status.run_dir), "%s", a->run.dir);
    memcpy(pb_agent_status.secret, a->run.secret, sizeof(pb_agent_status.secret));
    memcpy(pb_agent_status.abstract, a->run.abstract, sizeof(pb_agent_status.abstract));
    pb_agent_status.tid = (int32_t)syscall(SYS_gettid);
    pb_agent_status.door_fd = a->run.door[1];
    pb_agent_status.arena_fd = pb_arena_fd(a->arena);
    __atomic_store_n(&current_arena, a->arena, __ATOMIC_SEQ_CST);
    pb_recorder_open(a->arena);
    set_state(PB_AGENT_READY);
}

static void report_failure(int error, const char *why)
{
    pb_agent_status.error = -error;
    snprintf(pb_agent_status.text, sizeof(pb_agent_status.text), "%s", why);
    set_state(PB_AGENT_FAILED);
}

static void *resident(void *starter)
{
    char why[sizeof(pb_agent_status.text)] = "";
    struct pb_agent agent = {0};

    pb_thread_name("probing");
    int r = pb_fds_begin(why, sizeof(why));
    if (r == 0)
        r = set_up(&agent, why, sizeof(why));
    if (r == 0) {
        publish(&agent);
        for (int i = 0; pb_parts[i]; i++)
            if (pb_parts[i]->ready)
                pb_parts[i]->ready(&agent);
        if (serve_clients(&agent)) {
            pb_arena_mirror(agent.arena); /* its files stay, as those of any process that ends */
            for (int i = 0; pb_parts[i]; i++)
                if (pb_parts[i]->abandon)
                    pb_parts[i]->abandon();
            pb_last_end((uint32_t)(uintptr_t)starter);
            return NULL;
        }
        tear_down(&agent);
    } else {
        report_failure(r, why);
    }
    pb_spawn_end((uint32_t)(uintptr_t)starter);
    __atomic_store_n(&residents, 0, __ATOMIC_SEQ_CST);
    pb_futex_wake(&residents);
    return NULL;
}

/* The child of a fork has none of our threads: it gets no agent, and must not touch its parent's files. */
static void in_forked_child(void)
{
    struct pb_arena *arena = __atomic_exchange_n(&current_arena, NULL, __ATOMIC_SEQ_CST);

    if (arena) {
        pb_arena_after_fork_in_child(arena);
        pb_arena_close_fds(arena); /* which it has only if the table is the program's */
    }
    pb_recorder_forget();
    pb_fds_forget();
    pb_locks_forget();
    pb_threads_forget();
    pb_spawn_forget();
    pb_fork_gate_forget();
    for (int i = 0; pb_parts[i]; i++)
        if (pb_parts[i]->forget)
            pb_parts[i]->forget();
    memset(retired, 0, sizeof(retired));
    residents = 0;
    pb_agent_status.door_fd = pb_agent_status.arena_fd = -1;
    set_state(PB_AGENT_IDLE);
}

/* The borrowed thread may have real-time priority, which threads inherit: code that a person runs would keep
 * the program from its CPU. System calls, since musl's functions refuse. */
static void leave_real_time(void)
{
    static const struct sched_param none = {.sched_priority = 0};
    long policy = syscall(SYS_sched_getscheduler, 0);

    if (policy >= 0 && ((policy & ~RESET_ON_FORK) == SCHED_FIFO || (policy & ~RESET_ON_FORK) == SCHED_RR))
        syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &none);
}

/* In the program's descriptor table: opens nothing. It ends at once, so that glibc reuses its stack and the
 * blocks that belong to it for the thread that the resident starts later. Otherwise that thread would
 * allocate them from a new heap, for the resident alone (64 MB of address space). */
static void *starter(void *number)
{
    static int fork_handlers_set;
    char why[sizeof(pb_agent_status.text)];
    const char *what = "start a thread";
    int r = 0;

    pb_thread_name("probing-start");
    leave_real_time();
    /* A detaching resident thread reports IDLE before it has closed everything. */
    for (uint32_t before; (before = __atomic_load_n(&residents, __ATOMIC_SEQ_CST));)
        pb_futex_wait(&residents, before);
    __atomic_store_n(&residents, 1, __ATOMIC_SEQ_CST);
    if (!fork_handlers_set) {
        r = -pthread_atfork(pb_fork_gate_close, pb_fork_gate_open, in_forked_child);
        fork_handlers_set = r == 0;
        what = r < 0 ? "register a handler of fork" : what;
    }
    if (r == 0)
        r = pb_spawn_start((uint32_t)(uintptr_t)number);
    if (r == 0)
        r = pb_thread_start(resident, number, 0);
    if (r < 0) {
        __atomic_store_n(&residents, 0, __ATOMIC_SEQ_CST);
        snprintf(why, sizeof(why), "the process cannot %s: %s", what, strerror(-r));
        report_failure(r, why);
        pb_spawn_end((uint32_t)(uintptr_t)number);
    }
    return NULL;
}

/* Called by the injector. Returns the address of the status struct. A second call while an agent runs changes
 * nothing. */
void *pb_agent_start(const char *text)
{
    char why[sizeof(pb_agent_status.text)];
    uint32_t state = __atomic_load_n(&pb_agent_status.state, __ATOMIC_ACQUIRE);

    /* A child made by clone() without fork's handlers. */
    if (state != PB_AGENT_IDLE && pb_agent_status.pid != getpid())
        in_forked_child();
    state = __atomic_load_n(&pb_agent_status.state, __ATOMIC_ACQUIRE);
    if (state == PB_AGENT_STARTING || state == PB_AGENT_READY)
        return &pb_agent_status;
    if (!__atomic_compare_exchange_n(&pb_agent_status.state, &state, PB_AGENT_STARTING, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return &pb_agent_status;

    snprintf(options, sizeof(options), "%s", text ? text : "");
    pb_agent_status.pid = getpid();
    pb_agent_status.error = 0;
    pb_agent_status.text[0] = pb_agent_status.run_dir[0] = pb_agent_status.abstract[0] = '\0';
    pb_agent_status.door_fd = pb_agent_status.arena_fd = -1;
    uint32_t number = pb_spawn_begin();
    /* A small stack: if the process locks its memory, this thread of the program would wait until a large one
     * is filled. */
    int r = pb_thread_start(starter, (void *)(uintptr_t)number, 0);
    if (r < 0) {
        snprintf(why, sizeof(why), "the process cannot start a thread: %s", strerror(-r));
        report_failure(r, why);
    }
    return &pb_agent_status;
}
