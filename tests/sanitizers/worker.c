/* What lets probing-sql run under a sanitizer, for tests only: linked into the worker of the presets asan and
 * tsan.
 *
 * The worker gives up nearly every right before it runs a query, and starts with an empty environment and no
 * standard error. So options come from here, the file for reports is opened before the sandbox closes, and
 * the bound of the address space, of which a sanitizer takes terabytes, is left out. The rest of the sandbox
 * holds. scripts/test.py fails a suite whose worker wrote a report (bin/probing-sql.report). */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The sanitizer is a shared library: it looks these up by name, and calls them before it is ready itself, so
 * that this file is compiled without it. */
#define EXPORTED __attribute__((visibility("default")))

void __sanitizer_set_report_fd(void *fd);
EXPORTED const char *__asan_default_options(void);
EXPORTED const char *__ubsan_default_options(void);
EXPORTED const char *__tsan_default_options(void);
EXPORTED const char *__tsan_default_suppressions(void);
int pb_test_setrlimit(int what, const struct rlimit *limit) __asm__("setrlimit");

/* Looking for leaks needs ptrace, which the sandbox refuses. A failed allocation is answered by NULL as
 * without a sanitizer: DuckDB counts on that. */
const char *__asan_default_options(void)
{
    return "detect_leaks=0:allocator_may_return_null=1:abort_on_error=0:exitcode=99";
}

const char *__ubsan_default_options(void)
{
    return "print_stacktrace=1";
}

const char *__tsan_default_options(void)
{
    return "halt_on_error=0:exitcode=99:report_signal_unsafe=0:ignore_noninstrumented_modules=1";
}

/* DuckDB's library is not built with the sanitizer: it hands work to its threads by atomics that TSan does
 * not see, so that everything one of them touches looks like a race. By the library's name, since the worker
 * can start no symbolizer. What is left is what our own threads do: the one that runs a query and the one
 * that watches it. */
const char *__tsan_default_suppressions(void)
{
    return "race:libduckdb.so\nmutex:libduckdb.so\ndeadlock:libduckdb.so\n";
}

/* All but the bound of the address space. */
int pb_test_setrlimit(int what, const struct rlimit *limit)
{
    return what == RLIMIT_AS ? 0 : (int)syscall(SYS_prlimit64, 0, what, limit, NULL);
}

__attribute__((constructor)) static void open_report(void)
{
    char path[512];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 16);

    if (n <= 0)
        return;
    snprintf(path + n, 16, ".report");
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd >= 0)
        __sanitizer_set_report_fd((void *)(intptr_t)fd);
}
