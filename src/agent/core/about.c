/* about: see about.h. */
#include "agent/core/about.h"

#include "agent/core/fork_gate.h"
#include "agent/core/small_files.h"
#include "agent/python/python.h"
#include "control/identity.h"
#include "control/redact.h"
#include "control/status.h"

#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

struct about_text {
    char *at;
    size_t size, len;
};

static void put_char(struct about_text *t, char c)
{
    if (t->len + 1 < t->size)
        t->at[t->len++] = c;
}

static void put_line(struct about_text *t, const char *name, const char *value)
{
    for (; *name; name++)
        put_char(t, *name);
    put_char(t, '=');
    for (; *value; value++) {
        if (*value == '\n' || *value == '\\')
            put_char(t, '\\');
        put_char(t, *value == '\n' ? 'n' : *value);
    }
    put_char(t, '\n');
}

__attribute__((format(printf, 3, 4))) static void putf(struct about_text *t, const char *name,
                                                       const char *format, ...)
{
    char value[256];
    va_list ap;

    va_start(ap, format);
    vsnprintf(value, sizeof(value), format, ap);
    va_end(ap);
    put_line(t, name, value);
}

static unsigned long long pid_namespace(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (unsigned long long)st.st_ino : 0;
}

static unsigned long long start_time(void)
{
    char text[1024];

    if (pb_file_read("/proc/self/stat", text, sizeof(text)) < 0)
        return 0;
    /* The second field is the program's name in parentheses and may hold anything: fields are counted from
     * its end. */
    const char *p = strrchr(text, ')');
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    return p ? strtoull(p, NULL, 10) : 0;
}

void pb_about_run_name(char *ret, size_t size)
{
    snprintf(ret, size, "%llu-%d-%llu", pid_namespace(), (int)getpid(), start_time());
}

static int remember_torch(struct dl_phdr_info *info, size_t size, void *ret)
{
    (void)size;
    const char *name = info->dlpi_name ? strstr(info->dlpi_name, "/torch/lib/libtorch_cpu.so") : NULL;
    if (!name)
        return 0;
    snprintf(ret, 256, "%.*s/torch/version.py", (int)(name - info->dlpi_name), info->dlpi_name);
    return 1;
}

/* The version of a loaded torch, from a file beside it: asking Python would need the GIL. */
static void put_torch(struct about_text *t)
{
    char path[256] = "", text[2048];

    pb_fork_gate_each_object(remember_torch, path);
    if (!path[0] || pb_file_read(path, text, sizeof(text)) < 0)
        return;
    char *version = strstr(text, "__version__ = '");
    if (!version)
        return;
    version += strlen("__version__ = '");
    version[strcspn(version, "'\n")] = '\0';
    put_line(t, "torch", version);
}

static void put_python(struct about_text *t)
{
    struct pb_python py;
    char version[32];

    if (pb_python_find(&py, NULL) < 0)
        return;
    snprintf(version, sizeof(version), "%s", py.get_version());
    version[strcspn(version, " ")] = '\0';
    put_line(t, "python", version);
}

static void put_command(struct about_text *t, const char *redact)
{
    char command[4096];

    long n = pb_file_read("/proc/self/cmdline", command, sizeof(command));
    if (n <= 0)
        return;
    while (n > 0 && command[n - 1] == '\0')
        n--;
    command[pb_redact_command(redact, command, (size_t)n)] = '\0';
    put_line(t, "command", command);
}

/* Where its ranks meet: what tells jobs apart that have no number. And where torchrun's children leave the
 * exception that ends them. */
static void put_rendezvous(struct about_text *t, const char *block, size_t size)
{
    static const char *const names[] = {"MASTER_ADDR=", "MASTER_PORT=", "TORCHELASTIC_ERROR_FILE="};
    const char *value[3] = {"", "", ""};

    for (size_t at = 0; at < size; at += strnlen(block + at, size - at) + 1)
        for (int i = 0; i < 3; i++)
            if (!value[i][0] && strncmp(block + at, names[i], strlen(names[i])) == 0)
                value[i] = block + at + strlen(names[i]);
    if (value[1][0])
        putf(t, "rendezvous", "%.200s:%.20s", value[0], value[1]);
    if (value[2][0] == '/')
        put_line(t, "error_file", value[2]);
}

/* The file that its errors go to, if that is one: what an ended process has printed last. */
static void put_errors(struct about_text *t)
{
    char path[4096];
    struct stat st;

    ssize_t n = readlink("/proc/self/fd/2", path, sizeof(path) - 1);
    if (n <= 0 || path[0] != '/' || stat("/proc/self/fd/2", &st) < 0 || !S_ISREG(st.st_mode))
        return;
    path[n] = '\0';
    putf(t, "errors_inode", "%llu", (unsigned long long)st.st_ino);
    put_line(t, "errors", path);
}

static void put_identity(struct about_text *t)
{
    struct pb_identity id;
    struct pb_block block;
    struct utsname host = {0};

    pb_file_slurp("/proc/self/environ", &block);
    pb_identity_read(block.data, block.size, &id);
    put_rendezvous(t, block.data, block.size);
    pb_block_done(&block);
    for (int i = 0; i < PB_ID_FIELDS; i++)
        if (id.value[i][0])
            put_line(t, pb_identity_name(i), id.value[i]);
    if (id.launcher[0])
        put_line(t, "launcher", id.launcher);
    uname(&host);
    put_line(t, "host", host.nodename);
    if (!id.value[PB_ID_NODE][0])
        put_line(t, "node", host.nodename);
}

void pb_about_write(char *ret, size_t size, const char *host_pid, const char *redact)
{
    struct about_text t = {ret, size, 0};
    struct timespec mono, utc;

    clock_gettime(CLOCK_MONOTONIC, &mono);
    clock_gettime(CLOCK_REALTIME, &utc);
    put_line(&t, "release", PROBING_VERSION);
    putf(&t, "pid", "%d", (int)getpid());
    if (host_pid[0])
        put_line(&t, "host_pid", host_pid);
    putf(&t, "pid_namespace", "%llu", pid_namespace());
    putf(&t, "start_time", "%llu", start_time());
    putf(&t, "uid", "%u", (unsigned)geteuid());
    putf(&t, "probed_since", "%lld", (long long)utc.tv_sec);
    putf(&t, "clock", "%lld.%09ld %lld.%09ld", (long long)mono.tv_sec, mono.tv_nsec, (long long)utc.tv_sec,
         utc.tv_nsec);
    put_python(&t);
    put_torch(&t);
    put_identity(&t);
    put_errors(&t);
    put_command(&t, redact);
    t.at[t.len] = '\0';
}
