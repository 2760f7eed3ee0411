/* memory_print: see memory.h. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/print/memory_print.h"

#include "cli/print/rows.h"
#include "print/outlet.h"

#define MB 1048576.0

static void print_size(const char *what, double bytes)
{
    if (!isnan(bytes))
        printf("%-14s %10.1f MB\n", what, bytes / MB);
}

/* Eight heights between the least and the greatest value recorded. */
static void print_sparkline(const struct pb_memory *m)
{
    static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double least = m->points[0], most = least;

    for (unsigned i = 0; i < m->npoints; i++) {
        least = m->points[i] < least ? m->points[i] : least;
        most = m->points[i] > most ? m->points[i] : most;
    }
    for (unsigned i = 0; i < m->npoints; i++)
        fputs(bars[most > least ? (int)((m->points[i] - least) / (most - least) * 7.999) : 0], stdout);
    printf("  %.1f to %.1f MB\n", least / MB, most / MB);
}

/* Which line, or how to find it. */
static void print_culprit(const struct pb_memory *m)
{
    if (!isnan(m->held)) {
        printf("%-14s %10.1f MB of that are held by ", "", m->held / MB);
        pb_put_plain(stdout, m->function);
        fputs(" (", stdout);
        pb_put_plain(stdout, m->file);
        printf(":%d)\n", m->line);
    } else if (m->sampled) {
        printf("%-14s no line of Python or torch explains it: native code, or memory that is not sampled\n",
               "");
    } else if (!m->dead) {
        printf("%-14s which line: probing -t %d config probing.memory.sampling=on, then this command again\n",
               "", (int)m->pid);
    }
}

static void print_history(const struct pb_memory *m)
{
    if (m->rows < 2) {
        puts(m->dead ? "growth         not known: less than two seconds were recorded"
                     : "growth         not known yet: 60 s of rows are needed (`probing inject` or `record` "
                       "keeps one a second)");
        return;
    }
    if (isnan(m->growth))
        printf("%-14s not known%s: %.0f s are recorded, %d are needed\n", "growth", m->dead ? "" : " yet",
               m->recorded_s, (int)PB_MEMORY_JUDGED_S);
    else if (m->growth == 0)
        printf("%-14s none in the last %.0f s\n", "growth", m->growth_s);
    else
        printf("%-14s %+10.2f MB a minute in the last %.0f s\n", "growth", m->growth / MB, m->growth_s);
    if (m->growth > 0)
        print_culprit(m);
    print_sparkline(m);
}

static void print_python(const struct pb_memory *m)
{
    const struct pb_py_memory *p = &m->python;

    if (p->heap_arenas >= 0) {
        printf("%-14s %10.1f MB", "Python heap", (double)p->heap_bytes / MB);
        if (p->heap_blocks >= 0)
            printf(", %" PRId64 " small blocks in use", p->heap_blocks);
        putchar('\n');
    }
    if (p->gc[0] >= 0)
        printf("%-14s %10" PRId64 " new objects, %" PRId64 " young and %" PRId64
               " middle collections since\n",
               "collector", p->gc[0], p->gc[1], p->gc[2]);
    print_size("torch, CPU", m->torch_cpu);
    print_size("torch, GPU", m->torch_cuda);
    print_size("  reserved", m->torch_cuda_reserved);
    if (m->torch_note)
        pb_put_between(stdout, "torch, GPU     ", m->torch_note, "\n");
    print_size("on GPUs", m->gpu);
}

void pb_memory_print(const struct pb_memory *m)
{
    print_size(m->dead ? "last in RAM" : "in RAM", m->rss);
    print_size("peak in RAM", m->peak);
    print_size("mapped", m->vms);
    print_size("swapped out", m->swap);
    print_history(m);
    print_python(m);
    if (m->nmaps)
        puts("largest mappings, in RAM and mapped:");
    for (unsigned i = 0; i < m->nmaps; i++) {
        printf("  %9.1f MB %9.1f MB  ", m->maps[i].rss / MB, m->maps[i].size / MB);
        pb_put_plain(stdout, m->maps[i].path);
        printf(" (%u)\n", m->maps[i].count);
    }
}

/* --- for programs --- */

static void put_number(struct pb_json_writer *w, const char *name, double value)
{
    if (isnan(value))
        pb_json_put_null(w, name);
    else
        pb_json_put_number(w, name, "%.0f", value);
}

static void put_count(struct pb_json_writer *w, const char *name, int64_t value)
{
    put_number(w, name, value < 0 ? NAN : (double)value);
}

static void put_grower(struct pb_json_writer *w, const struct pb_memory *m)
{
    if (isnan(m->held)) {
        pb_json_put_null(w, "grows_by");
        return;
    }
    pb_json_open(w, "grows_by", '{');
    pb_json_put_text(w, "function", m->function);
    pb_json_put_text(w, "file", m->file);
    pb_json_put_number(w, "line", "%d", m->line);
    pb_json_put_number(w, "bytes", "%.0f", m->held);
    pb_json_close(w);
}

void pb_memory_put_json(struct pb_json_writer *w, const struct pb_memory *m)
{
    pb_json_open(w, NULL, '{');
    pb_json_put_number(w, "pid", "%d", (int)m->pid);
    pb_json_put_text(w, "target", m->label);
    pb_json_put_bool(w, "dead", m->dead);
    put_number(w, "rss_bytes", m->rss);
    put_number(w, "peak_rss_bytes", m->peak);
    put_number(w, "vms_bytes", m->vms);
    put_number(w, "swap_bytes", m->swap);
    put_number(w, "growth_bytes_per_minute", m->growth);
    put_number(w, "growth_s", isnan(m->growth) ? NAN : m->growth_s);
    put_number(w, "recorded_s", m->recorded_s);
    put_grower(w, m);
    pb_json_put_number(w, "rows", "%u", m->rows);
    pb_json_open(w, "history_bytes", '[');
    for (unsigned i = 0; i < m->npoints; i++)
        pb_json_put_number(w, NULL, "%.0f", m->points[i]);
    pb_json_close(w);
    put_count(w, "heap_arenas", m->python.heap_arenas);
    put_count(w, "heap_bytes", m->python.heap_bytes);
    put_count(w, "heap_blocks", m->python.heap_blocks);
    put_count(w, "gc_gen0", m->python.gc[0]);
    put_count(w, "gc_gen1", m->python.gc[1]);
    put_count(w, "gc_gen2", m->python.gc[2]);
    put_number(w, "torch_cpu_bytes", m->torch_cpu);
    put_number(w, "torch_cuda_bytes", m->torch_cuda);
    put_number(w, "torch_cuda_reserved_bytes", m->torch_cuda_reserved);
    put_number(w, "gpu_bytes", m->gpu);
    pb_json_open(w, "mappings", '[');
    for (unsigned i = 0; i < m->nmaps; i++) {
        pb_json_open(w, NULL, '{');
        pb_json_put_text(w, "path", m->maps[i].path);
        put_number(w, "rss_bytes", m->maps[i].rss);
        put_number(w, "bytes", m->maps[i].size);
        pb_json_put_number(w, "count", "%u", m->maps[i].count);
        pb_json_close(w);
    }
    pb_json_close(w);
    pb_json_close(w);
}

const char *const pb_memory_columns[] = {"target",
                                         "rss_bytes",
                                         "peak_rss_bytes",
                                         "vms_bytes",
                                         "swap_bytes",
                                         "recorded_s",
                                         "growth_bytes_per_minute",
                                         "heap_bytes",
                                         "heap_blocks",
                                         "torch_cuda_bytes",
                                         "gpu_bytes"};
const size_t pb_memory_ncolumns = sizeof(pb_memory_columns) / sizeof(pb_memory_columns[0]);

static void add_value(struct pb_rows *rows, double value)
{
    if (isnan(value))
        pb_rows_text(rows, NULL);
    else
        pb_rows_number(rows, "%.0f", value);
}

void pb_memory_add_row(struct pb_rows *rows, const struct pb_memory *m)
{
    pb_rows_text(rows, m->label);
    add_value(rows, m->rss);
    add_value(rows, m->peak);
    add_value(rows, m->vms);
    add_value(rows, m->swap);
    add_value(rows, m->recorded_s);
    add_value(rows, m->growth);
    add_value(rows, m->python.heap_bytes < 0 ? NAN : (double)m->python.heap_bytes);
    add_value(rows, m->python.heap_blocks < 0 ? NAN : (double)m->python.heap_blocks);
    add_value(rows, m->torch_cuda);
    add_value(rows, m->gpu);
}
