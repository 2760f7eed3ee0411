/* remote_debug: see remote_debug.h. */
#include "inject/remote_debug.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/retry.h"
#include "inject/place.h"
#include "remote/elf.h"
#include "remote/maps.h"
#include "remote/mem.h"
#include "remote/openin.h"
#include "remote/procinfo.h"
#include "remote/source.h"

#define PLEASE_STOP (1ull << 5) /* the eval breaker's bit that makes the main loop look */

/* The offset of debugger_support in _Py_DebugOffsets by version; everything before
 * interpreter_state.threads_main is the same in both. */
static const struct {
    int version;
    unsigned support;
} layouts[] = {{0x030e, 712}, {0x030f, 840}};

struct list_head {
    char cookie[8];
    uint64_t version, free_threaded;
    uint64_t runtime_size, finalizing, interpreters_head;
    uint64_t interp_size, id, next, threads_head, threads_main;
};

struct support {
    uint64_t eval_breaker, thread_part, enabled, pending_call, script_path, script_path_size;
};

struct door {
    pid_t pid;
    struct support offsets;
    uint64_t thread; /* the main thread's state */
    bool enabled;
};

static int find_runtime(pid_t pid, uint64_t *ret)
{
    _cleanup_(pb_maps_done) struct pb_maps maps = {0};
    struct pb_source memory = pb_source_of(pid);
    int r = pb_maps_read(pid, &maps, NULL);
    if (r < 0)
        return r;
    const char *last = "";
    for (size_t i = 0; i < maps.n; i++) {
        const struct pb_map *map = &maps.at[i];
        if (map->offset != 0 || !map->inode || !strstr(map->path, "python") || strcmp(map->path, last) == 0)
            continue;
        last = map->path;
        if (pb_elf_lookup(&memory, map->start, "_PyRuntime", ret) == 0)
            return 0;
    }
    return -ENOENT;
}

static int read_support(pid_t pid, uint64_t runtime, uint64_t version, struct support *ret)
{
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
        if (layouts[i].version == (int)(version >> 16 & 0xffff))
            return pb_mem_read(pid, runtime + layouts[i].support, ret, sizeof(*ret));
    return -ENOTSUP;
}

/* interpreters.head is the newest; the main one, with id 0, is at the end of the list. */
static int main_interpreter(pid_t pid, uint64_t runtime, const struct list_head *h, uint64_t *ret)
{
    uint64_t at;
    int r = pb_mem_read(pid, runtime + h->interpreters_head, &at, sizeof(at));
    for (int i = 0; r == 0 && at && i < 256; i++) {
        uint64_t id;
        r = pb_mem_read(pid, at + h->id, &id, sizeof(id));
        if (r == 0 && id == 0) {
            *ret = at;
            return 0;
        }
        if (r == 0)
            r = pb_mem_read(pid, at + h->next, &at, sizeof(at));
    }
    return r < 0 ? r : -ENOENT;
}

static int find_door(pid_t pid, struct door *ret)
{
    struct door d = {.pid = pid};
    struct list_head h;
    uint64_t runtime, interp;
    int32_t enabled;
    int r = find_runtime(pid, &runtime);
    if (r < 0)
        return r;
    r = pb_mem_read(pid, runtime, &h, sizeof(h));
    if (r < 0)
        return r;
    if (memcmp(h.cookie, "xdebugpy", sizeof(h.cookie)) != 0)
        return -ENOTSUP;
    r = read_support(pid, runtime, h.version, &d.offsets);
    if (r < 0)
        return r;
    r = main_interpreter(pid, runtime, &h, &interp);
    if (r < 0)
        return r;
    r = pb_mem_read(pid, interp + h.threads_main, &d.thread, sizeof(d.thread));
    if (r < 0 || !d.thread)
        return r < 0 ? r : -ENOENT;
    r = pb_mem_read(pid, interp + d.offsets.enabled, &enabled, sizeof(enabled));
    if (r < 0)
        return r;
    d.enabled = enabled == 1;
    *ret = d;
    return 0;
}

bool pb_remote_debug_offered(pid_t pid)
{
    struct door d;
    return find_door(pid, &d) == 0 && d.enabled;
}

static int set_pending(const struct door *d, int32_t value)
{
    return pb_mem_write(d->pid, d->thread + d->offsets.thread_part + d->offsets.pending_call, &value,
                        sizeof(value));
}

static int request_script(const struct door *d, const char *script)
{
    uint64_t breaker = 0;
    size_t len = strlen(script) + 1;
    if (len > d->offsets.script_path_size)
        return -ENAMETOOLONG;
    int r = pb_mem_write(d->pid, d->thread + d->offsets.thread_part + d->offsets.script_path, script, len);
    if (r == 0)
        r = set_pending(d, 1);
    if (r == 0)
        r = pb_mem_read(d->pid, d->thread + d->offsets.eval_breaker, &breaker, sizeof(breaker));
    breaker |= PLEASE_STOP;
    if (r == 0)
        r = pb_mem_write(d->pid, d->thread + d->offsets.eval_breaker, &breaker, sizeof(breaker));
    return r;
}

/* Bytes as a Python literal: every byte is escaped, so that no option can be code. */
static char *make_literal(const char *text)
{
    size_t len = strlen(text);
    char *out = malloc(len * 4 + 4);
    if (!out)
        return NULL;
    char *at = out + sprintf(out, "b'");
    for (size_t i = 0; i < len; i++)
        at += sprintf(at, "\\x%02x", (unsigned char)text[i]);
    strcpy(at, "'");
    return out;
}

static int write_script(const struct pb_procinfo *info, const struct pb_place *p, const char *options)
{
    static const char text[] = "import ctypes as c, os as o\n"
                               "p = %s.decode()\n"
                               "d = p[:p.rindex('/') + 1]\n"
                               "try:\n"
                               "    f = c.CDLL(p).pb_agent_start\n"
                               "    f.restype, f.argtypes = c.c_void_p, [c.c_char_p]\n"
                               "    a = 'ok %%d' %% (f(%s) or 0)\n"
                               "except BaseException as e:\n"
                               "    a = 'no ' + str(e)\n"
                               "with open(d + 'part', 'w') as t:\n"
                               "    t.write(a)\n"
                               "o.rename(d + 'part', d + 'answer')\n";
    _cleanup_free_ char *path = make_literal(p->path), *opts = make_literal(options ? options : ""),
                        *script = NULL;
    if (!path || !opts || asprintf(&script, text, path, opts) < 0)
        return -ENOMEM;
    return pb_place_add(info, p, "start.py", script, strlen(script));
}

/* -EAGAIN: no answer yet. */
static int read_answer(const struct pb_place *p, uint64_t *ret, struct pb_err *err)
{
    char text[400];
    _cleanup_close_ int fd = pb_open_regular(p->dir, "answer", 0);
    if (fd < 0)
        return -EAGAIN;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = '\0';
    if (strncmp(text, "ok ", 3) != 0)
        return pb_fail(err, -ENOEXEC, "the agent does not load: %s", n > 3 ? text + 3 : "no reason given");
    uint64_t status = strtoull(text + 3, NULL, 10);
    if (!status)
        return pb_fail(err, -ECANCELED, "the agent did not start: its entry point returned nothing");
    *ret = status;
    return 0;
}

static int wait_for_answer(const struct door *d, const struct pb_place *p, uint64_t deadline, uint64_t *ret,
                           struct pb_err *err)
{
    struct pb_retry again = pb_retry_until(deadline, PB_NS_PER_MS, PB_NS_PER_MS);
    int r;

    while ((r = read_answer(p, ret, err)) == -EAGAIN && pb_retry_wait(&again))
        ;
    if (r != -EAGAIN)
        return r;
    set_pending(d, 0);
    pb_sleep_ns(20 * PB_NS_PER_MS); /* it may have just started to write */
    r = read_answer(p, ret, err);
    return r != -EAGAIN
               ? r
               : pb_fail(err, -ETIMEDOUT,
                         "Python's main thread did not return to bytecode in time; nothing was changed");
}

int pb_remote_debug_load(const struct pb_procinfo *info, const struct pb_agent_file *agent,
                         const char *options, uint64_t deadline, uint64_t *ret_status, struct pb_err *err)
{
    _cleanup_(pb_place_done) struct pb_place p = {.dir = -1, .root = -1};
    struct door d;
    char script[sizeof(p.path)];
    int r = find_door(info->pid, &d);
    if (r < 0)
        return pb_fail(err, r, "cannot read the Python of process %d: %s", info->pid, strerror(-r));
    r = pb_place_file(info, agent, &p, err);
    if (r < 0)
        return r;
    r = write_script(info, &p, options);
    if (r == 0) {
        snprintf(script, sizeof(script), "%.*s/start.py", (int)(strrchr(p.path, '/') - p.path), p.path);
        r = request_script(&d, script);
    }
    if (r < 0)
        return pb_fail(err, r, "cannot ask the Python of process %d: %s", info->pid, strerror(-r));
    return wait_for_answer(&d, &p, deadline, ret_status, err);
}
