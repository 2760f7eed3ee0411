/* stack_driver: the stack reader as a test needs it: PID TID COUNT WAYS. Samples one Python thread
 * COUNT times by the allowed ways (letters of "aps": asleep, pinned, stopped) at random distances and prints
 * each different stack with its count, outermost frame first: "COUNT name:line name:line ..". The last line
 * tells how they were read. */
#include "base/err.h"
#include "base/time.h"
#include "remote/python/python_reader.h"
#include "remote/source.h"
#include "remote/threads.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS (1 << 20)

struct slot {
    char *text;
    unsigned long count;
};
static struct slot slots[SLOTS];

static void count_text(const char *text)
{
    size_t h = 1469598103934665603ull;

    for (const char *p = text; *p; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211ull;
    for (size_t i = h % SLOTS;; i = (i + 1) % SLOTS) {
        if (!slots[i].text)
            slots[i].text = strdup(text);
        if (strcmp(slots[i].text, text) == 0) {
            slots[i].count++;
            return;
        }
    }
}

static void count_stack(struct pb_py *py, const struct pb_py_stack *stack)
{
    static char text[1 << 20];
    size_t len = 0;

    text[0] = '\0';
    for (size_t i = stack->n; i-- > 0 && len < sizeof(text) - 256;)
        len += (size_t)snprintf(text + len, sizeof(text) - len, " %.200s:%d", stack->at[i].code->name,
                                pb_py_line(py, &stack->at[i]));
    count_text(text);
}

static unsigned ways_of(const char *text)
{
    return (strchr(text, 'a') ? PB_WAY_ASLEEP : 0) | (strchr(text, 'p') ? PB_WAY_PINNED : 0) |
           (strchr(text, 's') ? PB_WAY_STOPPED : 0);
}

static const struct pb_py_thread *find(struct pb_py *py, pid_t pid, pid_t tid)
{
    struct pb_native_threads native;
    const struct pb_py_thread *threads;
    struct pb_err err;

    if (pb_native_threads_read(pid, &native, &err) < 0)
        return NULL;
    int n = pb_py_threads(py, &native, &threads, &err);
    pb_native_threads_done(&native);
    for (int i = 0; i < n; i++)
        if (threads[i].tid == tid)
            return &threads[i];
    return NULL;
}

int main(int argc, char **argv)
{
    struct pb_source source;
    struct pb_err err = {0};
    struct pb_moment m;
    struct pb_py *py;
    struct pb_py_stack stack = {0};
    unsigned long by[16] = {0}, refused = 0;
    unsigned seed = 1;

    if (argc < 5)
        return 2;
    pid_t pid = atoi(argv[1]), tid = atoi(argv[2]);
    if (pb_source_process(pid, &source, &err) < 0 || pb_py_open(&source, false, &py, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const struct pb_py_thread *thread = find(py, pid, tid);
    if (!thread || pb_moment_open(pid, tid, &m) < 0)
        return 1;
    struct pb_py_thread copy = *thread;
    uint64_t begin = pb_now_ns(), reading = 0;
    for (long i = 0; i < atol(argv[3]); i++) {
        uint64_t start = pb_now_ns();
        int r = pb_py_sample(py, &copy, &m, ways_of(argv[4]), &stack, NULL, NULL);
        reading += pb_now_ns() - start;
        if (r == -EAGAIN)
            refused++;
        else if (r < 0)
            return 1;
        else {
            by[stack.way]++;
            count_stack(py, &stack);
        }
        /* Not in step with the target's own loops. */
        for (volatile int k = rand_r(&seed) % 20000; k > 0; k--)
            ;
    }
    double seconds = (double)(pb_now_ns() - begin) / 1e9;
    for (size_t i = 0; i < SLOTS; i++)
        if (slots[i].count)
            printf("%lu%s\n", slots[i].count, slots[i].text);
    printf("asleep %lu pinned %lu stopped %lu refused %lu seconds %.3f us %.2f\n", by[PB_WAY_ASLEEP],
           by[PB_WAY_PINNED], by[PB_WAY_STOPPED], refused, seconds,
           (double)reading / 1e3 / (double)atol(argv[3]));
    pb_moment_close(&m);
    pb_py_close(py);
    pb_source_close(&source);
    return 0;
}
