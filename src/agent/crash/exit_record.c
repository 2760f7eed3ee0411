/* exit_record: a row of process_end when the program ends by exit(), with its status. A process that was
 * killed leaves none, so its absence tells too.
 *
 * The C library calls on_exit functions with the status, in the thread that ends the program. Nothing of the
 * program runs for it, and it waits for the copy of the tables only, a moment. Where there is no on_exit
 * (musl), the status is unknown. */
#include "agent/crash/exit_record.h"

#include "agent/core/part.h"
#include "agent/core/recorder.h"
#include "agent/crash/crash.h"
#include "control/tables.def"
#include "table/arena.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { KEEP_MS = 100 }; /* normally well below 1 */

enum { PB_IDS_OF(PB_TABLE_PROCESS_END) COLUMNS };

static const struct pb_column columns[] = {PB_COLUMNS_OF(PB_TABLE_PROCESS_END)};
static const struct pb_table_spec table = {.name = PB_NAME_OF(PB_TABLE_PROCESS_END),
                                           .comment = PB_COMMENT_OF(PB_TABLE_PROCESS_END),
                                           .columns = columns,
                                           .ncolumns = COLUMNS};

typedef int (*on_exit_function)(void (*)(int, void *), void *);

static pid_t registered; /* the process in which the C library calls us */

static void write_row(int status, int is_known)
{
    static struct pb_known_table known;
    struct pb_row row;
    uint32_t place;

    /* Not in a child of vfork, which shares our memory. */
    if (registered != (pid_t)syscall(SYS_getpid) || pb_recorder_begin_row(&table, &known, &row, &place) < 0)
        return;
    pb_set_i32(&row, THREAD_ID, (int32_t)syscall(SYS_gettid));
    if (is_known)
        pb_set_i32(&row, STATUS, status & 0xff);
    pb_recorder_end_row(&row, place);
    pb_crash_keep_rows(KEEP_MS);
}

static void at_exit_with_status(int status, void *unused)
{
    (void)unused;
    write_row(status, 1);
}

static void at_exit(void)
{
    write_row(0, 0);
}

static int begin(struct pb_agent *agent, char *why, size_t why_size)
{
    (void)agent;
    (void)why;
    (void)why_size;
    /* A child of fork has its parent's exit functions. */
    if (!registered) {
        on_exit_function on_exit_of = (on_exit_function)dlsym(RTLD_DEFAULT, "on_exit");
        if (on_exit_of)
            on_exit_of(at_exit_with_status, NULL);
        else
            atexit(at_exit);
    }
    registered = getpid();
    return 0;
}

const struct pb_part pb_part_ending = {.begin = begin};
