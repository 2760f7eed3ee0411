/* resident: the agent's entry point and its one thread.
 *
 * pb_agent_start is called in a borrowed thread of the target, so it does no more than start the resident
 * thread, which then sets up the run directory, the tables and the control socket, serves clients, and
 * records memory_usage once a second, until a client asks it to detach. It never takes the GIL and never
 * waits for a client: whatever Python does, it answers. How far it got is in the status struct, whose address
 * the entry point returns. */
#include "agent/agent.h"
#include "agent/clock.h"
#include "agent/embed.h"
#include "agent/files.h"
#include "agent/job.h"
#include "agent/thread.h"
#include "agent/usage.h"
#include "control/message.h"
#include "control/status.h"
#include "table/arena.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OPTIONS_SIZE 4096

/* Held by whoever opens or closes what a child of fork would inherit, and by fork itself: a child finds all
 * of it or none. */
static pthread_mutex_t fork_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pb_agent *current; /* on the resident thread's stack, while it serves */
static char options[OPTIONS_SIZE];
/* Exported: a tool finds it by name where the agent could leave no file. */
__attribute__((visibility("default"))) struct pb_agent_status pb_agent_status = {
    .magic = PB_STATUS_MAGIC, .version = PB_CONTROL_VERSION, .release = PROBING_VERSION};

static void set_state(enum pb_agent_state state)
{
    __atomic_store_n(&pb_agent_status.state, state, __ATOMIC_RELEASE);
}

/* The value of "name=value" among the lines of the options, copied to ret; "" when it is not there. */
static const char *option(const char *name, char *ret, size_t size)
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
    struct pb_arena_options how = {.bound = a->run.bound};
    int in_dir = a->run.dir_fd >= 0;

    int r = pb_arena_create(in_dir ? a->run.dir_fd : PB_ARENA_MEMFD, "arena", &how, &a->arena);
    if (r == 0)
        r = pb_usage_init(a->arena, &a->memory_usage);
    if (r < 0)
        snprintf(why, why_size, "no room for the tables in %s: %s", in_dir ? a->run.dir : "memory",
                 strerror(-r));
    return r;
}

static int rename_our_object(struct dl_phdr_info *info, size_t size, void *unused)
{
    static const char opened_by[] = "/proc/self/fd/", name[] = "libprobing.so";
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

/* The loader's list has us by the path that we were opened by: a descriptor that is closed by now, or is
 * anybody's. Who opens what is listed there (a debugger, a program that prints its own stack) would open
 * that; gdb reads a pipe of its own and hangs. The string is the loader's, but nobody else's, and long
 * enough. */
static void lose_our_path(void)
{
    dl_iterate_phdr(rename_our_object, NULL);
}

static int set_up(struct pb_agent *a, char *why, size_t why_size)
{
    char dir[192], value[64], host_pid[16], python_dir[256];
    struct pb_block environment;

    lose_our_path();
    pb_file_slurp("/proc/self/environ", &environment);
    pb_settings_init(&a->settings, environment.data, environment.size);
    pb_block_done(&environment);
    if (option("max_memory", value, sizeof(value))[0] &&
        pb_settings_set(&a->settings, pb_setting_info[PB_SET_MAX_MEMORY].name, value, why, why_size) < 0)
        return -EINVAL;
    pb_embed_override(option("python_dir", python_dir, sizeof(python_dir)));

    const struct pb_run_options how = {
        .dir = option("dir", dir, sizeof(dir))[0] ? dir : NULL,
        .settings = &a->settings,
        .host_pid = option("host_pid", host_pid, sizeof(host_pid)),
    };
    int r = pb_run_open(&how, &a->run, why, why_size);
    if (r < 0)
        return r;
    r = open_tables(a, why, why_size);
    if (r == 0) {
        r = pb_server_init(&a->server, a->run.listen_fd, a->run.door[0]);
        if (r < 0)
            snprintf(why, why_size, "no control socket: %s", strerror(-r));
    }
    if (r < 0) {
        pb_arena_close(a->arena);
        pb_run_remove(&a->run);
        pb_run_forget(&a->run);
    }
    return r;
}

static void client_gone(void *owner, pb_client_id client)
{
    (void)owner;
    pb_job_disown(client);
}

static void serve(struct pb_agent *a)
{
    uint64_t next_row = pb_now_ns();

    a->server.handle = pb_agent_request;
    a->server.gone = client_gone;
    a->server.owner = a;
    if (pb_arena_wake_fd(a->arena) >= 0)
        pb_server_watch(&a->server, pb_arena_wake_fd(a->arena));
    for (;;) {
        uint64_t now = pb_now_ns();
        pthread_mutex_lock(&fork_lock);
        pb_server_deal(&a->server);
        if (a->detach) /* the lock stays ours: what comes is the end */
            return;
        if (now >= next_row) {
            pb_usage_record(a->memory_usage);
            next_row += PB_NS_PER_S;
            if (next_row <= now) /* the process was stopped for a while: no rows to make up for */
                next_row = now + PB_NS_PER_S;
        }
        pb_arena_tend(a->arena);
        int wait = (int)((next_row - now) / PB_NS_PER_MS) + 1;
        int jobs = pb_job_turn(&a->server);
        pthread_mutex_unlock(&fork_lock);
        pb_server_wait(&a->server, jobs >= 0 && jobs < wait ? jobs : wait);
    }
}

/* Who asked is told when tables and files are gone and the next inject may begin, and before the connection
 * is. */
static void tear_down(struct pb_agent *a)
{
    pb_job_disown(0);
    pb_job_release_python();
    pb_arena_close(a->arena);
    pb_run_remove(&a->run);
    current = NULL;
    pb_agent_status.run_dir[0] = '\0';
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
    pb_agent_status.door_fd = a->run.door[1];
    pb_agent_status.arena_fd = pb_arena_fd(a->arena);
    current = a;
    set_state(PB_AGENT_READY);
}

static void *resident(void *unused)
{
    char why[sizeof(pb_agent_status.text)] = "";
    struct pb_agent agent = {0};
    (void)unused;

    pb_thread_name("probing");
    pthread_mutex_lock(&fork_lock);
    int r = set_up(&agent, why, sizeof(why));
    if (r == 0) {
        publish(&agent);
    } else {
        pb_agent_status.error = -r;
        memcpy(pb_agent_status.text, why, sizeof(why));
        set_state(PB_AGENT_FAILED);
    }
    pthread_mutex_unlock(&fork_lock);
    if (r == 0) {
        serve(&agent);
        tear_down(&agent);
        pthread_mutex_unlock(&fork_lock);
    }
    return NULL;
}

static void before_fork(void)
{
    pthread_mutex_lock(&fork_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&fork_lock);
}

/* The child of a fork has none of our threads: it gets no agent, and must not touch what is its parent's. */
static void in_forked_child(void)
{
    struct pb_agent *a = current;

    current = NULL;
    if (a) {
        pb_arena_after_fork_in_child(a->arena);
        close(a->server.epoll_fd);
        close(a->server.wake_fd);
        for (int i = 0; i < PB_SERVER_CLIENTS; i++)
            if (a->server.clients[i].id)
                close(a->server.clients[i].fd);
        close(pb_arena_fd(a->arena));
        if (pb_arena_wake_fd(a->arena) >= 0)
            close(pb_arena_wake_fd(a->arena));
        pb_run_forget(&a->run);
    }
    pb_job_forget_all();
    pthread_mutex_init(&fork_lock, NULL);
    set_state(PB_AGENT_IDLE);
}

/* Called by the injector. Returns the address of the status struct, NULL when not even a thread could be
 * started. A second call while an agent runs changes nothing. */
__attribute__((visibility("default"))) void *pb_agent_start(const char *text);

void *pb_agent_start(const char *text)
{
    static int fork_handler_set;
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
    pb_agent_status.text[0] = pb_agent_status.run_dir[0] = '\0';
    pb_agent_status.door_fd = pb_agent_status.arena_fd = -1;
    if (!fork_handler_set)
        fork_handler_set = pthread_atfork(before_fork, after_fork, in_forked_child) == 0;
    if (pb_thread_start(resident, NULL, 0) < 0) {
        set_state(PB_AGENT_IDLE);
        return NULL;
    }
    return &pb_agent_status;
}
