/* write_gecko: a timeline in the processed format of the Firefox Profiler (profiler.firefox.com).
 *
 * Version 60 is the first whose tables are shared by all threads, as ours are; the profiler converts it to
 * its newest. Each node of a profile is a row of the stack table. A run of equal samples is one sample with
 * a weight, and a gap is a sample without a stack. */
#include <errno.h>
#include <string.h>
#include <sys/utsname.h>

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
struct part {
    const struct pb_profile *p;
    size_t functions, frames, stacks;
};

static struct part next_part(struct part part, const struct pb_profile *p)
{
    if (part.p) {
        part.functions += pb_profile_nfunctions(part.p);
        part.frames += pb_profile_nframes(part.p);
        part.stacks += pb_profile_nnodes(part.p) - 1;
    }
    part.p = p;
    return part;
}

static struct part part_of(const struct pb_timeline *t, const struct pb_profile *p)
{
    struct part part = {0};

    for (size_t i = 0; i < pb_timeline_nprofiles(t) && part.p != p; i++)
        part = next_part(part, pb_timeline_profile(t, i));
    return part;
}

static bool folded(const struct part *part, uint32_t node)
{
    struct pb_profile_frame frame = pb_profile_frame_at(part->p, pb_profile_node_at(part->p, node).frame);
    return pb_profile_folds(part->p, frame.function);
}

/* The nearest node from this one up that is not folded, or the root. */
static uint32_t shown(const struct part *part, uint32_t node)
{
    while (node != PB_PROFILE_ROOT && folded(part, node))
        node = pb_profile_node_at(part->p, node).parent;
    return node;
}

static void put_stack(FILE *out, const struct part *part, uint32_t node)
{
    if (node == PB_PROFILE_ROOT)
        fputs("null", out);
    else
        fprintf(out, "%zu", part->stacks + node - 1);
}

/* A sample's stack: without folded frames, unless it has no others. */
static void put_sample_stack(FILE *out, const struct part *part, uint32_t node)
{
    uint32_t above = shown(part, node);
    put_stack(out, part, above == PB_PROFILE_ROOT ? node : above);
}

static void put_prefix(FILE *out, const struct part *part, uint32_t node)
{
    uint32_t parent = pb_profile_node_at(part->p, node).parent;
    put_stack(out, part, folded(part, node) ? parent : shown(part, parent));
}

static void put_frame(FILE *out, const struct part *part, uint32_t node)
{
    fprintf(out, "%zu", part->frames + pb_profile_node_at(part->p, node).frame);
}

static void put_function(FILE *out, const struct part *part, uint32_t frame)
{
    fprintf(out, "%zu", part->functions + pb_profile_frame_at(part->p, frame).function);
}

static void put_category(FILE *out, const struct part *part, uint32_t frame)
{
    uint32_t function = pb_profile_frame_at(part->p, frame).function;
    fprintf(out, "%d", (int)pb_profile_function_at(part->p, function).kind);
}

static void put_line(FILE *out, const struct part *part, uint32_t frame)
{
    int line = pb_profile_frame_at(part->p, frame).line;
    if (line > 0)
        fprintf(out, "%d", line);
    else
        fputs("null", out);
}

/* The texts are the names of all functions, and then their files: a source for each function. */
static void put_name(FILE *out, const struct part *part, uint32_t function)
{
    fprintf(out, "%zu", part->functions + function);
}

static void put_source(FILE *out, const struct part *part, uint32_t function)
{
    if (*pb_profile_function_at(part->p, function).file)
        put_name(out, part, function);
    else
        fputs("null", out);
}

static void put_name_text(FILE *out, const struct part *part, uint32_t function)
{
    pb_write_json_text(out, pb_profile_function_at(part->p, function).name);
}

static void put_file_text(FILE *out, const struct part *part, uint32_t function)
{
    pb_write_json_text(out, pb_profile_function_at(part->p, function).file);
}

/* A column of a table with a row for each frame, function or node. put NULL: all rows are alike. */
struct column {
    const char *name;
    void (*put)(FILE *out, const struct part *part, uint32_t i);
    const char *alike;
};

enum table { STACKS, FRAMES, FUNCTIONS, TABLES };

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

/* The values of a column for all profiles, with commas between. Returns how many. */
static size_t put_values(FILE *out, const struct pb_timeline *t, enum table table,
                         const struct column *column)
{
    struct part part = {0};
    size_t n = 0;

    for (size_t k = 0; k < pb_timeline_nprofiles(t); k++) {
        part = next_part(part, pb_timeline_profile(t, k));
        for (uint32_t i = tables[table].first; i < tables[table].rows(part.p); i++, n++) {
            fputs(n ? "," : "", out);
            if (column->put)
                column->put(out, &part, i);
            else
                fputs(column->alike, out);
        }
    }
    return n;
}

static void put_tables(FILE *out, const struct pb_timeline *t)
{
    for (enum table k = 0; k < TABLES; k++) {
        size_t n = 0;
        fprintf(out, "\"%s\":{", tables[k].name);
        for (const struct column *c = tables[k].columns; c->name; c++) {
            fprintf(out, "\"%s\":[", c->name);
            n = put_values(out, t, k, c);
            fputs("],", out);
        }
        fprintf(out, "\"length\":%zu},\n", n);
    }
}

static void put_texts_and_sources(FILE *out, const struct pb_timeline *t)
{
    static const struct column names = {.put = put_name_text}, files = {.put = put_file_text};
    static const struct column none = {.alike = "null"};

    fputs("\"stringArray\":[", out);
    size_t n = put_values(out, t, FUNCTIONS, &names);
    fputs(n ? "," : "", out);
    put_values(out, t, FUNCTIONS, &files);
    fputs("],\n\"sources\":{\"id\":[", out);
    put_values(out, t, FUNCTIONS, &none);
    fputs("],\"filename\":[", out);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%s%zu", i ? "," : "", n + i);
    fprintf(out, "],\"length\":%zu},\n", n);
}

struct row {
    FILE *out;
    const struct pb_timeline *t;
    const struct pb_track *track;
    struct part part;
    double period_ms;
    bool gaps; /* of wall time: CPU and GIL time have none */
};

static double ms_at(const struct row *row, uint64_t ns)
{
    uint64_t start = pb_timeline_start(row->t).monotonic_ns;
    return ns > start ? (double)(ns - start) / 1e6 : 0;
}

enum value { STACK, TIME, WEIGHT };

/* One column of the samples. Returns how many there are. */
static size_t put_samples(const struct row *row, enum value value)
{
    double end = 0;
    size_t n = 0;

    for (size_t i = 0; i < row->track->n; i++) {
        const struct pb_slice *s = pb_timeline_slice(row->t, row->track->first + i);
        double at = ms_at(row, s->start);
        if (row->gaps && at - end > GAP_PERIODS * row->period_ms) {
            fputs(n++ ? "," : "", row->out);
            if (value == STACK)
                fputs("null", row->out);
            else
                fprintf(row->out, "%.10g", value == TIME ? end : 0);
        }
        fputs(n++ ? "," : "", row->out);
        if (value == STACK)
            put_sample_stack(row->out, &row->part, s->node);
        else
            fprintf(row->out, "%.10g", value == TIME ? at : s->samples);
        end = ms_at(row, s->end) + row->period_ms;
    }
    return n;
}

static void put_thread(const struct row *row)
{
    static const char *const values[] = {[STACK] = "stack", [TIME] = "time", [WEIGHT] = "weight"};
    size_t n = 0;

    fputs("{\"name\":", row->out);
    pb_write_json_text(row->out, *row->track->name ? row->track->name : "thread");
    fprintf(row->out, ",\"isMainThread\":%s,\"processType\":\"default\",\"processName\":",
            row->track->tid == row->track->pid ? "true" : "false");
    pb_write_json_text(row->out, row->track->process);
    fprintf(row->out,
            ",\"processStartupTime\":0,\"processShutdownTime\":null,\"registerTime\":0,"
            "\"unregisterTime\":null,\"pausedRanges\":[],\"pid\":\"%d\",\"tid\":%d,"
            "\"markers\":{\"data\":[],\"name\":[],\"startTime\":[],\"endTime\":[],\"phase\":[],"
            "\"category\":[],\"length\":0},\"samples\":{\"weightType\":\"samples\"",
            (int)row->track->pid, (int)row->track->tid);
    for (enum value v = STACK; v <= WEIGHT; v++) {
        fprintf(row->out, ",\"%s\":[", values[v]);
        n = put_samples(row, v);
        putc(']', row->out);
    }
    fprintf(row->out, ",\"length\":%zu}}", n);
}

static double period_of(const struct pb_profile *p)
{
    double rate = p ? pb_profile_facts_of(p)->rate : 0;
    return rate > 0 ? 1000 / rate : 1;
}

static void put_meta(FILE *out, const struct pb_timeline *t)
{
    const struct pb_profile *first = pb_timeline_nprofiles(t) ? pb_timeline_profile(t, 0) : NULL;
    struct utsname machine = {0};

    uname(&machine);
    fprintf(out, "\"interval\":%.10g,\"startTime\":%.13g,\"abi\":\"%s\",\"oscpu\":\"%s\",", period_of(first),
            (double)pb_timeline_start(t).utc_ns / 1e6, machine.machine, machine.machine);
    fputs("\"misc\":\"\",\"platform\":\"Linux\",\"processType\":0,\"stackwalk\":1,\"toolkit\":\"\","
          "\"version\":30,"
          "\"symbolicated\":true,\"markerSchema\":[],"
          "\"extensions\":{\"id\":[],\"name\":[],\"baseURL\":[],\"length\":0},"
          "\"importedFrom\":\"probing " PROBING_VERSION "\",\"product\":",
          out);
    pb_write_json_text(out, first ? pb_profile_facts_of(first)->title : "");
    fprintf(out, ",\"preprocessedProfileVersion\":%d,\"categories\":[", FORMAT);
    for (size_t i = 0; i < PB_FRAME_KINDS; i++)
        fprintf(out, "%s{\"name\":\"%s\",\"color\":\"%s\",\"subcategories\":[\"Other\"]}", i ? "," : "",
                categories[i].name, categories[i].color);
    putc(']', out);
}

int pb_write_gecko(FILE *out, const struct pb_timeline *t)
{
    fputs("{\"meta\":{", out);
    put_meta(out, t);
    fputs("},\n\"libs\":[],\"pages\":[],\n\"shared\":{", out);
    put_tables(out, t);
    put_texts_and_sources(out, t);
    fputs(
        "\"resourceTable\":{\"type\":[],\"lib\":[],\"name\":[],\"host\":[],\"length\":0},\n"
        "\"nativeSymbols\":{\"libIndex\":[],\"address\":[],\"name\":[],\"functionSize\":[],\"length\":0}},\n"
        "\"threads\":[",
        out);
    for (size_t i = 0; i < pb_timeline_ntracks(t); i++) {
        const struct pb_track *track = pb_timeline_track(t, i);
        struct row row = {.out = out,
                          .t = t,
                          .track = track,
                          .part = part_of(t, track->of),
                          .period_ms = period_of(track->of),
                          .gaps = strcmp(pb_profile_facts_of(track->of)->clock, "wall") == 0};
        fputs(i ? ",\n" : "\n", out);
        put_thread(&row);
    }
    fputs("]}\n", out);
    return ferror(out) ? -EIO : 0;
}
