/* write_gecko: a timeline in the processed format of the Firefox Profiler (profiler.firefox.com).
 *
 * Version 60 is the first whose tables are shared by all threads, as ours are; the profiler converts it to
 * its newest. Each node of a profile is a row of the stack table. A run of equal samples is one sample with
 * a weight, and a gap is a sample without a stack. */
#include <errno.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/json_write.h"
#include "profile/write.h"

enum { FORMAT = 60, GAP_PERIODS = 3 /* shorter gaps are jitter of the ticks */ };

/* By enum pb_frame_kind. */
static const struct {
    const char *name, *color;
} categories[PB_FRAME_KINDS] = {
    [PB_FRAME_PYTHON] = {"Python", "yellow"},  [PB_FRAME_NATIVE] = {"Native", "blue"},
    [PB_FRAME_WAIT] = {"Idle", "transparent"}, [PB_FRAME_THREAD] = {"Thread", "grey"},
    [PB_FRAME_PROCESS] = {"Process", "green"},
};

/* The profile of a row, and where its functions, frames and stacks begin in the shared tables. */
struct gecko_part {
    const struct pb_profile *p;
    size_t functions, frames, stacks;
};

static struct gecko_part next_part(struct gecko_part part, const struct pb_profile *p)
{
    if (part.p) {
        part.functions += pb_profile_nfunctions(part.p);
        part.frames += pb_profile_nframes(part.p);
        part.stacks += pb_profile_nnodes(part.p) - 1;
    }
    part.p = p;
    return part;
}

static struct gecko_part part_of(const struct pb_timeline *t, const struct pb_profile *p)
{
    struct gecko_part part = {0};

    for (size_t i = 0; i < pb_timeline_nprofiles(t) && part.p != p; i++)
        part = next_part(part, pb_timeline_profile(t, i));
    return part;
}

static bool folded(const struct gecko_part *part, uint32_t node)
{
    struct pb_profile_frame frame = pb_profile_frame_at(part->p, pb_profile_node_at(part->p, node).frame);
    return pb_profile_folds(part->p, frame.function);
}

/* The nearest node from this one up that is not folded, or the root. */
static uint32_t shown(const struct gecko_part *part, uint32_t node)
{
    while (node != PB_PROFILE_ROOT && folded(part, node))
        node = pb_profile_node_at(part->p, node).parent;
    return node;
}

static void put_stack(struct pb_json_writer *w, const struct gecko_part *part, uint32_t node)
{
    if (node == PB_PROFILE_ROOT)
        pb_json_put_null(w, NULL);
    else
        pb_json_put_number(w, NULL, "%zu", part->stacks + node - 1);
}

/* A sample's stack: without folded frames, unless it has no others. */
static void put_sample_stack(struct pb_json_writer *w, const struct gecko_part *part, uint32_t node)
{
    uint32_t above = shown(part, node);
    put_stack(w, part, above == PB_PROFILE_ROOT ? node : above);
}

static void put_prefix(struct pb_json_writer *w, const struct gecko_part *part, uint32_t node)
{
    uint32_t parent = pb_profile_node_at(part->p, node).parent;
    put_stack(w, part, folded(part, node) ? parent : shown(part, parent));
}

static void put_frame(struct pb_json_writer *w, const struct gecko_part *part, uint32_t node)
{
    pb_json_put_number(w, NULL, "%zu", part->frames + pb_profile_node_at(part->p, node).frame);
}

static void put_function(struct pb_json_writer *w, const struct gecko_part *part, uint32_t frame)
{
    pb_json_put_number(w, NULL, "%zu", part->functions + pb_profile_frame_at(part->p, frame).function);
}

static void put_category(struct pb_json_writer *w, const struct gecko_part *part, uint32_t frame)
{
    uint32_t function = pb_profile_frame_at(part->p, frame).function;
    pb_json_put_number(w, NULL, "%d", (int)pb_profile_function_at(part->p, function).kind);
}

static void put_line(struct pb_json_writer *w, const struct gecko_part *part, uint32_t frame)
{
    int line = pb_profile_frame_at(part->p, frame).line;
    if (line > 0)
        pb_json_put_number(w, NULL, "%d", line);
    else
        pb_json_put_null(w, NULL);
}

/* The texts are the names of all functions, and then their files: a source for each function. */
static void put_name(struct pb_json_writer *w, const struct gecko_part *part, uint32_t function)
{
    pb_json_put_number(w, NULL, "%zu", part->functions + function);
}

static void put_source(struct pb_json_writer *w, const struct gecko_part *part, uint32_t function)
{
    if (*pb_profile_function_at(part->p, function).file)
        put_name(w, part, function);
    else
        pb_json_put_null(w, NULL);
}

static void put_name_text(struct pb_json_writer *w, const struct gecko_part *part, uint32_t function)
{
    pb_json_put_text(w, NULL, pb_profile_function_at(part->p, function).name);
}

static void put_file_text(struct pb_json_writer *w, const struct gecko_part *part, uint32_t function)
{
    pb_json_put_text(w, NULL, pb_profile_function_at(part->p, function).file);
}

/* A column of a table with a row for each frame, function or node. put NULL: all rows are alike. */
struct column {
    const char *name;
    void (*put)(struct pb_json_writer *w, const struct gecko_part *part, uint32_t i);
    const char *alike;
};

enum gecko_table { STACKS, FRAMES, FUNCTIONS, TABLES };

static const struct {
    const char *name;
    size_t (*rows)(const struct pb_profile *p);
    uint32_t first; /* the root of stacks is no row */
    struct column columns[10];
} tables[TABLES] = {
    [STACKS] = {"stackTable",
                pb_profile_nnodes,
                1,
                {{"frame", put_frame, NULL}, {"prefix", put_prefix, NULL}, {0}}},
    [FRAMES] = {"frameTable",
                pb_profile_nframes,
                0,
                {{"address", NULL, "-1"},
                 {"inlineDepth", NULL, "0"},
                 {"category", put_category, NULL},
                 {"subcategory", NULL, "0"},
                 {"func", put_function, NULL},
                 {"nativeSymbol", NULL, "null"},
                 {"innerWindowID", NULL, "null"},
                 {"line", put_line, NULL},
                 {"column", NULL, "null"},
                 {0}}},
    [FUNCTIONS] = {"funcTable",
                   pb_profile_nfunctions,
                   0,
                   {{"name", put_name, NULL},
                    {"isJS", NULL, "false"},
                    {"relevantForJS", NULL, "false"},
                    {"resource", NULL, "-1"},
                    {"source", put_source, NULL},
                    {"lineNumber", NULL, "null"},
                    {"columnNumber", NULL, "null"},
                    {0}}},
};

/* The values of a column for all profiles. Returns how many. */
static size_t put_values(struct pb_json_writer *w, const struct pb_timeline *t, enum gecko_table table,
                         const struct column *column)
{
    struct gecko_part part = {0};
    size_t n = 0;

    for (size_t k = 0; k < pb_timeline_nprofiles(t); k++) {
        part = next_part(part, pb_timeline_profile(t, k));
        for (uint32_t i = tables[table].first; i < tables[table].rows(part.p); i++, n++)
            if (column->put)
                column->put(w, &part, i);
            else
                pb_json_put_value(w, NULL, column->alike, strlen(column->alike));
    }
    return n;
}

static void put_tables(struct pb_json_writer *w, const struct pb_timeline *t)
{
    for (enum gecko_table k = 0; k < TABLES; k++) {
        size_t n = 0;
        pb_json_open(w, tables[k].name, '{');
        for (const struct column *c = tables[k].columns; c->name; c++) {
            pb_json_open(w, c->name, '[');
            n = put_values(w, t, k, c);
            pb_json_close(w);
        }
        pb_json_put_number(w, "length", "%zu", n);
        pb_json_close(w);
        pb_json_line(w, 0);
    }
}

static void put_texts_and_sources(struct pb_json_writer *w, const struct pb_timeline *t)
{
    static const struct column names = {.put = put_name_text}, files = {.put = put_file_text};
    static const struct column none = {.alike = "null"};

    pb_json_open(w, "stringArray", '[');
    size_t n = put_values(w, t, FUNCTIONS, &names);
    put_values(w, t, FUNCTIONS, &files);
    pb_json_close(w);
    pb_json_line(w, 0);
    pb_json_open(w, "sources", '{');
    pb_json_open(w, "id", '[');
    put_values(w, t, FUNCTIONS, &none);
    pb_json_close(w);
    pb_json_open(w, "filename", '[');
    for (size_t i = 0; i < n; i++)
        pb_json_put_number(w, NULL, "%zu", n + i);
    pb_json_close(w);
    pb_json_put_number(w, "length", "%zu", n);
    pb_json_close(w);
}

/* A table without rows: its columns, and a length of 0. */
static void put_empty(struct pb_json_writer *w, const char *name, const char *const *columns)
{
    pb_json_open(w, name, '{');
    for (; *columns; columns++) {
        pb_json_open(w, *columns, '[');
        pb_json_close(w);
    }
    pb_json_put_number(w, "length", "0");
    pb_json_close(w);
}

#define COLUMNS(...) ((const char *const[]){__VA_ARGS__, NULL})

struct gecko_row {
    struct pb_json_writer *w;
    const struct pb_timeline *t;
    const struct pb_track *track;
    struct gecko_part part;
    double period_ms;
    bool gaps; /* of wall time: CPU and GIL time have none */
};

static double ms_at(const struct gecko_row *row, uint64_t ns)
{
    uint64_t start = pb_timeline_start(row->t).monotonic_ns;
    return ns > start ? (double)(ns - start) / 1e6 : 0;
}

enum gecko_value { STACK, TIME, WEIGHT };

/* One column of the samples. Returns how many there are. */
static size_t put_samples(const struct gecko_row *row, enum gecko_value value)
{
    double end = 0;
    size_t n = 0;

    for (size_t i = 0; i < row->track->n; i++) {
        const struct pb_slice *s = pb_timeline_slice(row->t, row->track->first + i);
        double at = ms_at(row, s->start);
        if (row->gaps && at - end > GAP_PERIODS * row->period_ms) {
            if (value == STACK)
                pb_json_put_null(row->w, NULL);
            else
                pb_json_put_number(row->w, NULL, "%.10g", value == TIME ? end : 0);
            n++;
        }
        if (value == STACK)
            put_sample_stack(row->w, &row->part, s->node);
        else
            pb_json_put_number(row->w, NULL, "%.10g", value == TIME ? at : s->samples);
        n++;
        end = ms_at(row, s->end) + row->period_ms;
    }
    return n;
}

static void put_thread(const struct gecko_row *row)
{
    static const char *const values[] = {[STACK] = "stack", [TIME] = "time", [WEIGHT] = "weight"};
    struct pb_json_writer *w = row->w;
    size_t n = 0;

    pb_json_line(w, 0);
    pb_json_open(w, NULL, '{');
    pb_json_put_text(w, "name", *row->track->name ? row->track->name : "thread");
    pb_json_put_bool(w, "isMainThread", row->track->tid == row->track->pid);
    pb_json_put_text(w, "processType", "default");
    pb_json_put_text(w, "processName", row->track->process);
    pb_json_put_number(w, "processStartupTime", "0");
    pb_json_put_null(w, "processShutdownTime");
    pb_json_put_number(w, "registerTime", "0");
    pb_json_put_null(w, "unregisterTime");
    pb_json_open(w, "pausedRanges", '[');
    pb_json_close(w);
    pb_json_put_format(w, "pid", "%d", (int)row->track->pid);
    pb_json_put_number(w, "tid", "%d", (int)row->track->tid);
    put_empty(w, "markers", COLUMNS("data", "name", "startTime", "endTime", "phase", "category"));
    pb_json_open(w, "samples", '{');
    pb_json_put_text(w, "weightType", "samples");
    for (enum gecko_value v = STACK; v <= WEIGHT; v++) {
        pb_json_open(w, values[v], '[');
        n = put_samples(row, v);
        pb_json_close(w);
    }
    pb_json_put_number(w, "length", "%zu", n);
    pb_json_close(w);
    pb_json_close(w);
}

static double period_of(const struct pb_profile *p)
{
    double rate = p ? pb_profile_facts_of(p)->rate : 0;
    return rate > 0 ? 1000 / rate : 1;
}

static void put_categories(struct pb_json_writer *w)
{
    pb_json_open(w, "categories", '[');
    for (size_t i = 0; i < PB_FRAME_KINDS; i++) {
        pb_json_open(w, NULL, '{');
        pb_json_put_text(w, "name", categories[i].name);
        pb_json_put_text(w, "color", categories[i].color);
        pb_json_open(w, "subcategories", '[');
        pb_json_put_text(w, NULL, "Other");
        pb_json_close(w);
        pb_json_close(w);
    }
    pb_json_close(w);
}

static void put_meta(struct pb_json_writer *w, const struct pb_timeline *t)
{
    const struct pb_profile *first = pb_timeline_nprofiles(t) ? pb_timeline_profile(t, 0) : NULL;
    struct utsname machine = {0};

    uname(&machine);
    pb_json_open(w, "meta", '{');
    pb_json_put_number(w, "interval", "%.10g", period_of(first));
    pb_json_put_number(w, "startTime", "%.13g", (double)pb_timeline_start(t).utc_ns / 1e6);
    pb_json_put_text(w, "abi", machine.machine);
    pb_json_put_text(w, "oscpu", machine.machine);
    pb_json_put_text(w, "misc", "");
    pb_json_put_text(w, "platform", "Linux");
    pb_json_put_number(w, "processType", "0");
    pb_json_put_number(w, "stackwalk", "1");
    pb_json_put_text(w, "toolkit", "");
    pb_json_put_number(w, "version", "30");
    pb_json_put_bool(w, "symbolicated", true);
    pb_json_open(w, "markerSchema", '[');
    pb_json_close(w);
    put_empty(w, "extensions", COLUMNS("id", "name", "baseURL"));
    pb_json_put_text(w, "importedFrom", "probing " PROBING_VERSION);
    pb_json_put_text(w, "product", first ? pb_profile_facts_of(first)->title : "");
    pb_json_put_number(w, "preprocessedProfileVersion", "%d", FORMAT);
    put_categories(w);
    pb_json_close(w);
}

static void put_shared(struct pb_json_writer *w, const struct pb_timeline *t)
{
    pb_json_open(w, "shared", '{');
    put_tables(w, t);
    put_texts_and_sources(w, t);
    pb_json_line(w, 0);
    put_empty(w, "resourceTable", COLUMNS("type", "lib", "name", "host"));
    pb_json_line(w, 0);
    put_empty(w, "nativeSymbols", COLUMNS("libIndex", "address", "name", "functionSize"));
    pb_json_close(w);
}

int pb_write_gecko(FILE *out, const struct pb_timeline *t)
{
    struct pb_json_writer w = {.out = out, .tight = true};

    pb_json_open(&w, NULL, '{');
    put_meta(&w, t);
    pb_json_line(&w, 0);
    pb_json_open(&w, "libs", '[');
    pb_json_close(&w);
    pb_json_open(&w, "pages", '[');
    pb_json_close(&w);
    pb_json_line(&w, 0);
    put_shared(&w, t);
    pb_json_line(&w, 0);
    pb_json_open(&w, "threads", '[');
    for (size_t i = 0; i < pb_timeline_ntracks(t); i++) {
        const struct pb_track *track = pb_timeline_track(t, i);
        put_thread(&(struct gecko_row){.w = &w,
                                       .t = t,
                                       .track = track,
                                       .part = part_of(t, track->of),
                                       .period_ms = period_of(track->of),
                                       .gaps = strcmp(pb_profile_facts_of(track->of)->clock, "wall") == 0});
    }
    pb_json_close(&w);
    pb_json_close(&w);
    putc('\n', out);
    return ferror(out) ? -EIO : 0;
}
