/* A library that records what it does: a table `loader.loads`, with a row for each file that it reads.
 *
 *   cc -shared -fPIC -I include examples/plugin/loader.c -o libloader.so
 *   python3 -c "import ctypes; load = ctypes.CDLL('./libloader.so').load; [load(b'/etc/hostname') for _ in
 * range(10**6)]" & probing -t $! inject && probing -t $! query "SELECT file, avg(wait_ms), count(*) FROM
 * loader.loads GROUP BY file" */
#include <probing.h>
#include <stdio.h>
#include <time.h>

static const struct probing_column columns[] = {
    {"bytes", PROBING_INT64, "bytes", "how much was read"},
    {"wait_ms", PROBING_FLOAT64, "ms", "how long it took"},
    {"file", PROBING_STRING, NULL, "what was read"},
};
static struct probing_table loads = PROBING_TABLE("loader.loads", columns);

long load(const char *path);

long load(const char *path)
{
    char block[4096];
    struct timespec begun, ended;
    long n = 0;

    clock_gettime(CLOCK_MONOTONIC, &begun);
    FILE *file = fopen(path, "r");
    if (file) {
        for (size_t got; (got = fread(block, 1, sizeof(block), file)) > 0;)
            n += (long)got;
        fclose(file);
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    double ms = (double)(ended.tv_sec - begun.tv_sec) * 1e3 + (double)(ended.tv_nsec - begun.tv_nsec) / 1e6;
    probing_append(&loads, (struct probing_value[]){PROBING_INT(n), PROBING_FLOAT(ms), PROBING_TEXT(path)});
    return n;
}
