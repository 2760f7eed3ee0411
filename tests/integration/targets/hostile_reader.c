/* hostile_reader: the Python reader on a live process whose memory lies. What is read is the process's, with
 * changes made on the way, so that thousands of lies cost one process and no write to it.
 *
 *   told PID NAME            each word of what it tells of its offsets, set to each of some values
 *   shifting PID SEED COUNT  words change while they are read: pointers into what was read before, numbers at
 *                            the bounds; COUNT whole readings
 *
 * NAME is the innermost function of the main thread. Prints one line of facts, "readings=.. right=.. ..". The
 * parts of the reader are compiled in with the address sanitizer, which ends the program where they go wrong.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "base/procfs.h"
#include "base/time.h"
#include "remote/python/heap.h"
#include "remote/python/reader_impl.h"
#include "remote/threads.h"

#define SEEN        4096
#define INTERP_HEAD 40 /* where the offset of the list of interpreters is told, in all versions so far */

static struct pb_source real;
static uint64_t told_at; /* of the offsets that the process tells; 0: not seen yet */
static uint64_t lie_at, lie;
static bool lying;
static unsigned one_in; /* words that change; 0: none */
static uint64_t random_state;
static uint64_t seen[SEEN];
static size_t nseen;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void tell_a_lie(uint64_t addr, uint8_t *buf, size_t len)
{
    for (size_t k = 0; k < 8; k++)
        if (lie_at + k >= addr && lie_at + k - addr < len)
            buf[lie_at + k - addr] = (uint8_t)(lie >> 8 * k);
}

static void shift_words(uint8_t *buf, size_t len)
{
    static const uint64_t bounds[] = {0,       1,         7,          8,         255,       4096,
                                      0xF0000, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};

    for (size_t at = 0; at + 8 <= len; at += 8) {
        uint64_t word = u64_at(buf, at);
        if (word > 1 << 16)
            seen[nseen++ % SEEN] = word;
        if (next_random() % one_in)
            continue;
        size_t known = nseen < SEEN ? nseen : SEEN;
        uint64_t other = next_random() % 3 && known
                             ? seen[next_random() % known]
                             : bounds[next_random() % (sizeof(bounds) / sizeof(bounds[0]))];
        memcpy(buf + at, &other, sizeof(other));
    }
}

static ssize_t read_lying(struct pb_source *s, uint64_t addr, void *buf, size_t len)
{
    (void)s;
    ssize_t got = pb_source_read_some(&real, addr, buf, len);
    if (got <= 0)
        return got;
    if (!told_at && len == PB_PY_OFFSETS_SIZE && memcmp(buf, PB_PY_COOKIE, 8) == 0)
        told_at = addr;
    if (lying)
        tell_a_lie(addr, buf, (size_t)got);
    if (one_in)
        shift_words(buf, (size_t)got);
    return got;
}

static int see_task(void *arg, const struct pb_py_task *task)
{
    *(size_t *)arg += strlen(task->name) + strlen(task->waits_for);
    return 0;
}

static size_t bytes; /* of texts, so that all of them are looked at */

static void read_thread(struct pb_py *py, const struct pb_py_thread *t, const char *name, bool *ret_right)
{
    struct pb_py_stack stack = {0};
    struct pb_py_lock locks[8];
    struct pb_py_group group;
    char text[PB_PY_NAME_MAX];

    if (pb_py_stack(py, t, &stack) == 0) {
        if (stack.n && name && strcmp(stack.at[0].code->name, name) == 0 && pb_py_line(py, &stack.at[0]) > 0)
            *ret_right = true;
        for (size_t i = 0; i < stack.n && i < 64; i++) {
            bytes += (size_t)pb_py_line(py, &stack.at[i]) + strlen(stack.at[i].code->file);
            char *locals = pb_py_locals(py, &stack.at[i]);
            bytes += locals ? strlen(locals) : 0;
            free(locals);
            pb_py_frame_locks(py, &stack.at[i], locks, 8);
            if (pb_py_process_group(py, &stack.at[i], &group) == 0) {
                bytes += strlen(group.name) + group.n;
                free(group.ranks);
            }
        }
        if (pb_py_thread_name(py, t, &stack, text, sizeof(text)) == 0)
            bytes += strlen(text);
        pb_py_tasks(py, t, &stack, 16, see_task, &bytes);
    }
    pb_py_stack_done(&stack);
}

/* One reading as a command does it. True: the main thread's stack is the right one. */
static bool read_all(pid_t pid, const char *name, bool *ret_noted)
{
    static const struct pb_source_ops ops = {.name = "lies", .read = read_lying};
    struct pb_source source = {.ops = &ops, .pid = pid, .main = pid, .fd = -1};
    struct pb_native_threads native;
    const struct pb_py_thread *threads;
    struct pb_py_heap heap = {0};
    struct pb_py_memory memory;
    struct pb_err err = {0};
    struct pb_py *py;
    bool right = false;

    if (pb_native_threads_read(pid, &native, &err) < 0)
        exit(3);
    pb_source_keep(&source, 0);
    int r = pb_py_open(&source, false, &py, &err);
    pb_source_forget(&source);
    if (r == 0) {
        pb_py_until(py, pb_now_ns() + PB_NS_PER_S);
        int n = pb_py_threads(py, &native, &threads, &err);
        for (int i = 0; i < n; i++)
            read_thread(py, &threads[i], name, &right);
        pb_py_memory(py, &heap, &memory);
        *ret_noted = *pb_py_note(py);
        pb_py_close(py);
    } else if (!err.text[0]) {
        puts("an error without a sentence");
        exit(4);
    }
    pb_native_threads_done(&native);
    pb_source_close(&source);
    return right;
}

static unsigned readings, rights, noted;
static uint64_t slowest;

/* Not the time that passed: others use this machine too. A reading waits for nothing. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * PB_NS_PER_S + (uint64_t)t.tv_nsec;
}

static bool timed(pid_t pid, const char *name)
{
    uint64_t began = cpu_ns();
    bool note = false, right = read_all(pid, name, &note);
    uint64_t took = cpu_ns() - began;

    readings++;
    rights += right;
    noted += note;
    slowest = took > slowest ? took : slowest;
    return right;
}

static int lie_in_each_word(pid_t pid, const char *name)
{
    static const uint64_t absurd[] = {0xF0000, 0xFFFFFFFF, UINT64_MAX, 7, 0x7FFFFFFFFFFFFFF8};
    static const uint64_t odd[] = {0, 8, 1, 64, 120, 248, 256, 504, 512, 1024, 65536, 1 << 20};

    if (!timed(pid, name) || !told_at) {
        puts("it cannot be read without a lie");
        return 1;
    }
    /* Behind what it tells is the runtime itself, first of all the list of interpreters. */
    uint64_t head = 0;
    if (pb_source_read(&real, told_at + INTERP_HEAD, &head, sizeof(head)) < 0)
        return 1;
    lying = true;
    for (size_t word = 0; word < PB_PY_OFFSETS_SIZE / 8; word++) {
        lie_at = told_at + 8 * word;
        for (size_t i = 0; i < sizeof(absurd) / sizeof(absurd[0]); i++) {
            lie = absurd[i];
            if (!timed(pid, name) && 8 * word < head) {
                printf("word %zu as 0x%llx: the stack is not read\n", word, (unsigned long long)lie);
                return 1;
            }
        }
        for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
            lie = odd[i];
            timed(pid, name);
        }
    }
    return 0;
}

/* Not ru_maxrss, which begins with what the process that started us had. */
static long peak_mb(void)
{
    char text[4096];
    return pb_proc_read(0, "status", text, sizeof(text)) > 0 ? (long)pb_proc_number(text, "VmHWM", 10) >> 10
                                                             : -1;
}

int main(int argc, char **argv)
{
    struct pb_err err = {0};
    int r = 0;

    if (argc < 4)
        return 2;
    pid_t pid = (pid_t)atoi(argv[2]);
    if (pb_source_process(pid, &real, &err) < 0) {
        puts(err.text);
        return 3;
    }
    if (strcmp(argv[1], "told") == 0) {
        r = lie_in_each_word(pid, argv[3]);
    } else {
        random_state = strtoull(argv[3], NULL, 10) * 2 + 1;
        for (int i = 0; i < atoi(argv[4]); i++) {
            one_in = 20u << next_random() % 8;
            timed(pid, NULL);
        }
    }
    printf("readings=%u right=%u noted=%u slowest_ms=%llu peak_mb=%ld bytes=%zu\n", readings, rights, noted,
           (unsigned long long)(slowest / PB_NS_PER_MS), peak_mb(), bytes);
    return r;
}
