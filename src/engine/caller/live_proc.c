/* live_proc: /proc of a process as rows. All texts are untrusted: sizes are bounded by the arena, and what
 * does not parse is NULL. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "control/tables.def"
#include "engine/caller/live.h"
#include "remote/procinfo.h"
#include "table/arena.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_MAX = 256 << 10, MAX_ENTRIES = 100000 };

static void put_bytes(struct pb_row *row, unsigned column, const char *text, size_t length)
{
    if (length)
        pb_set_string(row, column, text, length < TEXT_MAX ? length : TEXT_MAX);
}

static void put_text(struct pb_row *row, unsigned column, const char *text)
{
    put_bytes(row, column, text, strlen(text));
}

/* Fields of stat after the name, which may hold any character: [0] is field 3. */
static int stat_fields(pid_t pid, const char *name, char *buf, size_t size, char *fields[], int max)
{
    int n = 0;

    int r = pb_proc_read(pid, name, buf, size);
    char *p = r < 0 ? NULL : strrchr(buf, ')');
    for (p = p ? strtok_r(p + 1, " \n", &buf) : NULL; p && n < max; p = strtok_r(NULL, " \n", &buf))
        fields[n++] = p;
    return r < 0 ? r : n;
}

static double seconds_of_ticks(const char *text)
{
    return strtod(text, NULL) / (double)sysconf(_SC_CLK_TCK);
}

/* --- system.process --- */

#define P_ID(id, ...) P_##id,
enum { PB_TABLE_PROCESS(PB_NOTHING, P_ID) };

static void put_sizes(struct pb_row *row, pid_t pid)
{
    _cleanup_free_ char *status = NULL, *io = NULL;

    if (pb_proc_slurp(pid, "status", &status, NULL) == 0) {
        pb_set_i64(row, P_RSS, (int64_t)pb_proc_number(status, "VmRSS", 10) * 1024);
        pb_set_i64(row, P_VMS, (int64_t)pb_proc_number(status, "VmSize", 10) * 1024);
        pb_set_i64(row, P_SWAP, (int64_t)pb_proc_number(status, "VmSwap", 10) * 1024);
        pb_set_i64(row, P_PEAK, (int64_t)pb_proc_number(status, "VmHWM", 10) * 1024);
    }
    if (pb_proc_slurp(pid, "io", &io, NULL) == 0) {
        pb_set_i64(row, P_READ, (int64_t)pb_proc_number(io, "read_bytes", 10));
        pb_set_i64(row, P_WRITTEN, (int64_t)pb_proc_number(io, "write_bytes", 10));
    }
}

static void put_command(struct pb_row *row, const struct pb_live_source *source)
{
    char words[PB_REDACT_SIZE];
    _cleanup_free_ char *command = NULL;
    size_t length;

    if (pb_proc_slurp(pb_proc_living(source->pid), "cmdline", &command, &length) < 0)
        return;
    while (length && command[length - 1] == '\0')
        length--;
    source->redact(source->pid, words);
    put_bytes(row, P_COMMAND, command, pb_redact_command(words, command, length));
}

int pb_live_process(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    struct pb_procinfo info;
    char text[4096], *f[20], state[2] = "", version[16];
    struct pb_row row;

    int r = pb_procinfo_read(source->pid, &info, err);
    if (r < 0)
        return r;
    if (pb_row_begin(t, &row) < 0)
        return -ENOMEM;
    state[0] = info.state;
    pb_set_i32(&row, P_PID, info.pid);
    pb_set_i32(&row, P_PPID, info.ppid);
    put_text(&row, P_NAME, info.comm);
    put_text(&row, P_STATE, state);
    put_command(&row, source);
    put_text(&row, P_EXE, info.exe);
    if (pb_proc_link(info.living, "cwd", text, sizeof(text)) > 0)
        put_text(&row, P_CWD, text);
    pb_set_i32(&row, P_UID, (int32_t)info.uid);
    /* Ticks since boot; equals the monotonic clock unless the machine was suspended. */
    pb_set_timestamp(&row, P_STARTED,
                     (int64_t)((double)info.start_time / (double)sysconf(_SC_CLK_TCK) * 1e9));
    pb_set_i32(&row, P_THREADS, (int32_t)info.threads);
    put_sizes(&row, info.living);
    if (stat_fields(info.pid, "stat", text, sizeof(text), f, 20) > 12) {
        pb_set_f64(&row, P_USER, seconds_of_ticks(f[11]));
        pb_set_f64(&row, P_SYSTEM, seconds_of_ticks(f[12]));
    }
    if (info.python_version) {
        snprintf(version, sizeof(version), "%d.%d", info.python_version >> 8, info.python_version & 0xff);
        put_text(&row, P_PYTHON, version);
    }
    return pb_row_commit(&row);
}

/* --- system.threads --- */

#define TH_ID(id, ...) TH_##id,
enum { PB_TABLE_THREADS(PB_NOTHING, TH_ID) };

static void add_thread(struct pb_table *t, pid_t pid, int tid)
{
    char name[64], text[4096], *f[40];
    struct pb_row row;

    if (pb_row_begin(t, &row) < 0)
        return;
    pb_set_i32(&row, TH_TID, tid);
    snprintf(name, sizeof(name), "task/%d/comm", tid);
    if (pb_proc_read(pid, name, text, sizeof(text)) > 0)
        put_bytes(&row, TH_NAME, text, strcspn(text, "\n"));
    snprintf(name, sizeof(name), "task/%d/wchan", tid);
    if (pb_proc_read(pid, name, text, sizeof(text)) > 0 && strcmp(text, "0") != 0)
        put_text(&row, TH_WCHAN, text);
    snprintf(name, sizeof(name), "task/%d/syscall", tid);
    if (pb_proc_read(pid, name, text, sizeof(text)) > 0 && isdigit((unsigned char)text[0]))
        pb_set_i32(&row, TH_SYSCALL, atoi(text));
    snprintf(name, sizeof(name), "task/%d/status", tid);
    if (pb_proc_read(pid, name, text, sizeof(text)) > 0) {
        pb_set_i64(&row, TH_VOLUNTARY, (int64_t)pb_proc_number(text, "voluntary_ctxt_switches", 10));
        pb_set_i64(&row, TH_INVOLUNTARY, (int64_t)pb_proc_number(text, "nonvoluntary_ctxt_switches", 10));
    }
    snprintf(name, sizeof(name), "task/%d/stat", tid);
    if (stat_fields(pid, name, text, sizeof(text), f, 40) > 36) {
        put_text(&row, TH_STATE, f[0]);
        pb_set_f64(&row, TH_USER, seconds_of_ticks(f[11]));
        pb_set_f64(&row, TH_SYSTEM, seconds_of_ticks(f[12]));
        pb_set_i32(&row, TH_CPU, atoi(f[36]));
    }
    pb_row_commit(&row);
}

/* Calls add for each number among the names in a folder of /proc/PID. */
static int each_number(pid_t pid, const char *folder, void (*add)(struct pb_table *, pid_t, int),
                       struct pb_table *t, struct pb_err *err)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, folder);
    DIR *d = opendir(path);
    if (!d)
        return pb_fail(err, -errno, "%s cannot be read: %s", path, strerror(errno));
    int n = 0;
    for (struct dirent *entry = readdir(d); entry && n < MAX_ENTRIES; entry = readdir(d))
        if (isdigit((unsigned char)entry->d_name[0])) {
            add(t, pid, atoi(entry->d_name));
            n++;
        }
    closedir(d);
    return 0;
}

int pb_live_threads(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    return each_number(source->pid, "task", add_thread, t, err);
}

/* --- system.maps --- */

#define M_ID(id, ...) M_##id,
enum { PB_TABLE_MAPS(PB_NOTHING, M_ID) };

static bool begin_map(struct pb_table *t, char *line, struct pb_row *row)
{
    uint64_t start, end, offset, inode;
    char perms[8];
    int path = 0;

    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %*s %" SCNu64 " %n", &start, &end, perms,
               &offset, &inode, &path) != 5 ||
        pb_row_begin(t, row) < 0)
        return false;
    pb_set_u64(row, M_START, start);
    pb_set_u64(row, M_END, end);
    pb_set_i64(row, M_BYTES, (int64_t)(end - start));
    put_text(row, M_PERMS, perms);
    pb_set_u64(row, M_OFFSET, offset);
    pb_set_u64(row, M_INODE, inode);
    put_text(row, M_PATH, line + path);
    return true;
}

static void add_map_size(struct pb_row *row, const char *line)
{
    static const struct {
        const char *name;
        unsigned column;
    } sizes[] = {{"Rss:", M_RSS}, {"Pss:", M_PSS}, {"Private_Dirty:", M_DIRTY}, {"Swap:", M_SWAP}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (strncmp(line, sizes[i].name, strlen(sizes[i].name)) == 0)
            pb_set_i64(row, sizes[i].column, strtoll(line + strlen(sizes[i].name), NULL, 10) * 1024);
}

int pb_live_maps(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    _cleanup_free_ char *text = NULL;
    struct pb_row row;
    bool row_open = false;
    char *rest;

    int r = pb_proc_slurp(source->pid, "smaps", &text, NULL);
    if (r < 0)
        r = pb_proc_slurp(source->pid, "maps", &text, NULL);
    if (r < 0)
        return pb_fail(err, r, "the mappings of process %d cannot be read: %s", (int)source->pid,
                       strerror(-r));
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        /* Lines of sizes begin with a capital letter, those of mappings with an address. */
        if (isupper((unsigned char)line[0])) {
            if (row_open)
                add_map_size(&row, line);
            continue;
        }
        if (row_open)
            pb_row_commit(&row);
        row_open = begin_map(t, line, &row);
    }
    if (row_open)
        pb_row_commit(&row);
    return 0;
}

/* --- system.fds --- */

#define F_ID(id, ...) F_##id,
enum { PB_TABLE_FDS(PB_NOTHING, F_ID) };

static const char *kind_of(pid_t pid, int fd, const char *link)
{
    char path[64];
    struct stat st;

    if (strncmp(link, "anon_inode:", 11) == 0)
        return "anon_inode";
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
    if (stat(path, &st) < 0)
        return NULL;
    return S_ISSOCK(st.st_mode)                         ? "socket"
           : S_ISFIFO(st.st_mode)                       ? "pipe"
           : S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode) ? "device"
           : S_ISDIR(st.st_mode)                        ? "folder"
                                                        : "file";
}

static void add_fd(struct pb_table *t, pid_t pid, int fd)
{
    char name[64], link[4096], info[1024];
    struct pb_row row;

    snprintf(name, sizeof(name), "fd/%d", fd);
    if (pb_proc_link(pid, name, link, sizeof(link)) < 0 || pb_row_begin(t, &row) < 0)
        return;
    pb_set_i32(&row, F_FD, fd);
    const char *kind = kind_of(pid, fd, link);
    if (kind)
        put_text(&row, F_KIND, kind);
    put_text(&row, F_PATH, link);
    snprintf(name, sizeof(name), "fdinfo/%d", fd);
    if (pb_proc_read(pid, name, info, sizeof(info)) > 0) {
        const char *flags = pb_proc_field(info, "flags");
        pb_set_i64(&row, F_POSITION, (int64_t)pb_proc_number(info, "pos", 10));
        if (flags)
            put_bytes(&row, F_FLAGS, flags, strcspn(flags, "\n"));
    }
    pb_row_commit(&row);
}

int pb_live_fds(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    return each_number(source->pid, "fd", add_fd, t, err);
}

/* --- system.envs --- */

int pb_live_envs(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    _cleanup_free_ char *block = NULL;
    char words[PB_REDACT_SIZE];
    size_t length;

    source->redact(source->pid, words);
    int r = pb_proc_slurp(source->pid, "environ", &block, &length);
    if (r < 0)
        return pb_fail(err, r, "the environment of process %d cannot be read: %s", (int)source->pid,
                       strerror(-r));
    for (size_t at = 0; at < length;) {
        const char *entry = block + at;
        size_t n = strnlen(entry, length - at), name = strcspn(entry, "=");
        struct pb_row row;
        at += n + 1;
        if (name == 0 || name >= n || pb_row_begin(t, &row) < 0)
            continue;
        put_bytes(&row, 0, entry, name);
        if (pb_redact_name(words, entry, name))
            put_text(&row, 1, PB_REDACTED);
        else
            pb_set_string(&row, 1, entry + name + 1, n - name - 1 < TEXT_MAX ? n - name - 1 : TEXT_MAX);
        pb_row_commit(&row);
    }
    return 0;
}

/* --- system.cgroup --- */

/* The folder of the group, in the unified hierarchy or else of the memory controller. */
static int cgroup_folder(pid_t pid, char *ret_path, char *ret_folder, size_t size)
{
    _cleanup_free_ char *text = NULL;
    char *rest;

    int r = pb_proc_slurp(pid, "cgroup", &text, NULL);
    if (r < 0)
        return r;
    ret_path[0] = '\0';
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        bool unified = strncmp(line, "0::", 3) == 0, memory = strstr(controllers, "memory") && !unified;
        if (!memory && (!unified || ret_path[0]))
            continue;
        snprintf(ret_path, size, "%s", path + 1);
        snprintf(ret_folder, size, memory ? "/sys/fs/cgroup/memory%s" : "/sys/fs/cgroup%s", path + 1);
    }
    return ret_path[0] ? 0 : -ENOENT;
}

int pb_live_cgroup(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    char path[1024], folder[1100], value[8192];

    if (cgroup_folder(source->pid, path, folder, sizeof(path)) < 0)
        return 0;
    DIR *d = opendir(folder);
    for (struct dirent *entry = d ? readdir(d) : NULL; entry; entry = readdir(d)) {
        if (entry->d_type != DT_REG)
            continue;
        _cleanup_close_ int fd =
            openat(dirfd(d), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        ssize_t n = fd < 0 ? -1 : read(fd, value, sizeof(value) - 1);
        if (n < 0)
            continue;
        while (n > 0 && value[n - 1] == '\n')
            n--;
        value[n] = '\0';
        pb_live_add_strings(t, (const char *const[]){path, entry->d_name, value}, 3);
    }
    if (d)
        closedir(d);
    return 0;
}
