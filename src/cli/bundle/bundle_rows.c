/* bundle_rows: what a file has of one process, and of the machine: rows, recordings, versions, the kernel's
 * log. Each function runs in a child with a deadline: a read of /proc may hang with its process. */
#include "ask/archive_parts.h"
#include "ask/profiles.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "base/replace.h"
#include "cli/bundle/bundle.h"
#include "profile/write.h"
#include "remote/named.h"
#include "remote/runs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 1 << 20, KERNEL_MAX = 256 << 10, VERSION_MAX = 8192, FOLDERS = 8 };

/* Writes one part, whole or not at all. */
static int put_part(const struct pb_bundle *b, const char *name, const char *text, size_t length,
                    struct pb_err *err)
{
    char path[2 * PATH_MAX];
    struct pb_replace file;

    snprintf(path, sizeof(path), "%s/%s", b->folder, name);
    int r = pb_replace_begin(path, &file);
    if (r == 0) {
        fwrite(text, 1, length, file.out);
        r = pb_replace_end(&file, 0);
    }
    return r < 0 ? pb_fail(err, r, "%s cannot be written: %s", path, strerror(-r)) : 0;
}

static void make_folder(const struct pb_bundle *b, const char *name)
{
    char path[2 * PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", b->folder, name);
    mkdir(path, 0700); /* another child may have made it; what is written there fails otherwise */
}

/* --- rows --- */

/* The samples of its newest recording, in a form that needs nothing of ours to be read. */
static int put_recording(const struct pb_bundle *b, const struct pb_target *target, struct pb_err *err)
{
    char pid[16], path[2 * PATH_MAX];
    struct pb_profile *p = NULL;

    make_folder(b, "recordings");
    snprintf(pid, sizeof(pid), "%d", (int)target->pid);
    snprintf(path, sizeof(path), "%s/recordings/%d.folded", b->folder, (int)target->pid);
    int r = pb_profile_new(0, &p);
    if (r == 0)
        r = pb_profile_read(pid, 0, INT64_MAX, p, err);
    if (r == 0)
        r = pb_write_file(path, p, &(struct pb_flame_options){.processes = true}, err);
    pb_profile_free(p);
    return r;
}

int pb_bundle_put_rows(const struct pb_ask *ask, const struct pb_bundle *b, const struct pb_target *target,
                       struct pb_err *err)
{
    char rows[2 * PATH_MAX];
    struct pb_run_info run = {.dir_fd = -1};
    struct pb_archive_parts parts = {.folder = rows, .compression = "zstd", .about = run.about};
    bool recorded = false;
    (void)ask;

    snprintf(rows, sizeof(rows), "%s/rows", b->folder);
    int fd = pb_archive_parts_find(&parts, target, &run, err);
    int r = fd >= 0 ? pb_archive_parts_own(&parts, fd, err) : fd == -ENOENT ? 0 : fd;
    int own = r;
    struct pb_err why = {0};
    r = pb_archive_parts_look(&parts, own < 0 ? &why : err);
    /* Also of a process that runs: this archive ends here, so segments that still grow go in as they are. */
    for (size_t i = 0; i < parts.n; i++) {
        recorded |= parts.at[i].recording;
        parts.at[i].ended = true;
    }
    if (r == 0)
        r = pb_archive_parts_round(&parts, true, NULL, NULL, own < 0 ? &why : err);
    pb_archive_parts_done(&parts);
    pb_run_done(&run);
    if (r == 0 && recorded)
        r = put_recording(b, target, own < 0 ? &why : err);
    return own < 0 ? own : r;
}

/* --- versions --- */

/* Packages whose version decides what a job does, where they have a file that says it. */
static const char *const packages[] = {"torch",      "torchvision", "triton", "numpy",     "transformers",
                                       "accelerate", "deepspeed",   "vllm",   "lightning", "jax",
                                       "flash_attn", "megatron",    "ray",    "datasets"};

/* Writes the lines of a version.py that assign a text: version = '2.12.0'. */
static void put_version_lines(FILE *to, const char *package, char *text)
{
    for (char *line = strtok_r(text, "\n", &text); line; line = strtok_r(NULL, "\n", &text))
        if (strstr(line, " = ") && strpbrk(line, "'\"") && line[0] != '#' && line[0] != ' ')
            fprintf(to, "%s: %.200s\n", package, line);
}

static void put_packages(FILE *to, const struct pb_named_root *root, const char *folder)
{
    char path[PATH_MAX], text[VERSION_MAX];

    for (size_t i = 0; i < sizeof(packages) / sizeof(packages[0]); i++) {
        snprintf(path, sizeof(path), "%.3800s/%s/version.py", folder, packages[i]);
        _cleanup_close_ int fd = pb_named_root_file(root, path);
        ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
        if (n <= 0)
            continue;
        text[n] = '\0';
        put_version_lines(to, packages[i], text);
    }
}

/* The folders of packages from which the process has mapped a library. */
static size_t find_package_folders(const char *maps, char (*ret)[PATH_MAX])
{
    size_t n = 0;

    for (const char *line = maps; *line && n < FOLDERS; line += strcspn(line, "\n"), line += *line == '\n') {
        int length = (int)strcspn(line, "\n");
        const char *path = memchr(line, '/', (size_t)length);
        const char *end = path ? strstr(path, "-packages/") : NULL;
        if (!end || end > line + length || end - path > PATH_MAX - 64)
            continue;
        snprintf(ret[n], PATH_MAX, "%.*s-packages", (int)(end - path), path);
        size_t k = 0;
        while (k < n && strcmp(ret[k], ret[n]) != 0)
            k++;
        n += k == n;
    }
    return n;
}

/* The names of the libraries of CUDA and its kin: they have their versions in them. */
static void put_libraries(FILE *to, const char *maps)
{
    static const char *const words[] = {"libcuda",       "libcudart", "libnccl",   "libcudnn",
                                        "libcublas.",    "librccl",   "libamdhip", "libtorch_cpu",
                                        "libtorch_cuda", "libpython", "libc.so",   "libc-2"};
    char last[PATH_MAX] = "";

    for (const char *line = maps; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        int length = (int)strcspn(line, "\n");
        const char *path = memchr(line, '/', (size_t)length);
        char name[PATH_MAX];
        if (!path)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(line + length - path), path);
        const char *base = strrchr(name, '/') + 1;
        for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
            if (strncmp(base, words[i], strlen(words[i])) == 0 && strcmp(last, name) != 0) {
                fprintf(to, "library: %s\n", name);
                strcpy(last, name);
            }
    }
}

int pb_bundle_put_versions(const struct pb_bundle *b, const struct pb_target *target, struct pb_err *err)
{
    _cleanup_free_ char *maps = NULL, *text = NULL;
    char name[64], (*folders)[PATH_MAX] = calloc(FOLDERS + 1, sizeof(*folders));
    struct pb_named_root root;
    size_t size = 0;

    int r = pb_proc_slurp(pb_proc_living(target->pid), "maps", &maps, NULL);
    FILE *to = r == 0 && folders ? open_memstream(&text, &size) : NULL;
    if (!to) {
        free(folders);
        return pb_fail(err, r < 0 ? r : -ENOMEM, "its maps cannot be read: %s",
                       strerror(r < 0 ? -r : ENOMEM));
    }
    size_t n = find_package_folders(maps, folders);
    if (pb_named_root_open(target->pid, &root) == 0)
        for (size_t i = 0; i < n; i++)
            put_packages(to, &root, folders[i]);
    pb_named_root_close(&root);
    put_libraries(to, maps);
    free(folders);
    if (fclose(to) != 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    make_folder(b, "versions");
    snprintf(name, sizeof(name), "versions/%d.txt", (int)target->pid);
    return put_part(b, name, text, size, err);
}

/* --- the machine --- */

static const char *const machine_files[] = {"/proc/version",
                                            "/proc/meminfo",
                                            "/proc/loadavg",
                                            "/proc/pressure/cpu",
                                            "/proc/pressure/io",
                                            "/proc/vmstat",
                                            "/proc/pressure/memory",
                                            "/etc/os-release",
                                            "/proc/net/dev",
                                            "/proc/stat",
                                            "/proc/driver/nvidia/version",
                                            "/proc/cpuinfo"};

static int put_file(const struct pb_bundle *b, const char *path, struct pb_err *err)
{
    _cleanup_free_ char *text = malloc(FILE_MAX);
    char name[PATH_MAX] = "machine/";
    size_t n = 0;

    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || !text)
        return 0; /* this machine has no such file */
    for (ssize_t one = 1; n < FILE_MAX && (one = read(fd, text + n, FILE_MAX - n)) > 0;)
        n += (size_t)one;
    for (const char *c = path + 1; *c; c++)
        snprintf(name + strlen(name), 2, "%c", *c == '/' ? '-' : *c);
    strcat(name, ".txt");
    return put_part(b, name, text, n, err);
}

int pb_bundle_put_machine(const struct pb_bundle *b, struct pb_err *err)
{
    enum { READ_ALL = 3 }; /* of syslog(2) */
    _cleanup_free_ char *text = malloc(KERNEL_MAX);
    int r = 0;

    make_folder(b, "machine");
    for (size_t i = 0; r == 0 && i < sizeof(machine_files) / sizeof(machine_files[0]); i++)
        r = put_file(b, machine_files[i], err);
    if (r < 0 || !text)
        return r;
    int n = klogctl(READ_ALL, text, KERNEL_MAX);
    if (n < 0)
        return pb_fail(err, -errno, "the kernel's log cannot be read: %s (dmesg as root shows it)",
                       strerror(errno));
    return put_part(b, "machine/kernel.log", text, (size_t)n, err);
}
