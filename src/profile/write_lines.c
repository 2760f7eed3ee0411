/* write_lines: a heat map of source lines, as a page: the hottest lines and files, and the text of each file
 * around its lines with samples, each line as warm as its share.
 *
 * A line counts as `self` where it was the innermost, also while it waited, and once in `total` for each
 * stack that it is in, however often it is in it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "profile/write.h"

#include "profile_lines_css.h"
#include "profile_page_css.h"

enum {
    FILES_MAX = 60,
    HOT_LINES = 25,
    AROUND = 4, /* lines without samples that are shown around those with */
    GAP = 3,    /* fewer lines than these are shown and not skipped */
    STACK_MAX = 16384,
    TEXT_MAX = 400,
};

struct heat_line {
    const char *file;
    int line;
    uint64_t self, waiting, total;
    size_t seen; /* the last stack that it was counted for */
    size_t of;   /* number of the file, while samples are counted */
};

struct heat_file {
    const char *name;
    size_t first, n;                       /* in lines */
    uint64_t self, total, hottest, widest; /* the last two: of its lines */
    size_t seen;
    int number; /* 0: not shown */
};

struct heat {
    FILE *out;
    const struct pb_profile *p;
    const struct pb_line_texts *texts;
    struct heat_line *lines; /* by file and line */
    struct heat_file *files; /* the hottest first */
    uint32_t *line_of;       /* by frame; PB_PROFILE_NONE: the frame has no line */
    size_t nlines, nfiles;
    double all;
};

static void heat_done(struct heat *h)
{
    free(h->lines);
    free(h->files);
    free(h->line_of);
}

static int by_place(const void *a, const void *b)
{
    const struct heat_line *x = a, *y = b;
    int r = strcmp(x->file, y->file);

    return r ? r : (x->line > y->line) - (x->line < y->line);
}

static int by_self(const void *a, const void *b)
{
    const struct heat_file *x = a, *y = b;

    if (x->self != y->self)
        return x->self < y->self ? 1 : -1;
    if (x->total != y->total)
        return x->total < y->total ? 1 : -1;
    return strcmp(x->name, y->name);
}

static bool has_line(const struct pb_profile *p, uint32_t frame, struct heat_line *ret)
{
    struct pb_profile_frame f = pb_profile_frame_at(p, frame);
    struct pb_profile_function function = pb_profile_function_at(p, f.function);

    *ret = (struct heat_line){.file = function.file, .line = f.line};
    return f.line > 0 && *function.file;
}

static void list_files(struct heat *h)
{
    for (size_t i = 0; i < h->nlines; i++) {
        if (i == 0 || strcmp(h->lines[i].file, h->lines[i - 1].file) != 0)
            h->files[h->nfiles++] = (struct heat_file){.name = h->lines[i].file, .first = i};
        h->lines[i].of = h->nfiles - 1;
        h->files[h->nfiles - 1].n++;
    }
}

static int list_lines(struct heat *h)
{
    size_t n = pb_profile_nframes(h->p), kept = 0;
    struct heat_line key;

    h->lines = calloc(n + 1, sizeof(*h->lines));
    h->line_of = calloc(n + 1, sizeof(*h->line_of));
    h->files = calloc(n + 1, sizeof(*h->files));
    if (!h->lines || !h->line_of || !h->files)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        if (has_line(h->p, i, &key))
            h->lines[h->nlines++] = key;
    if (!h->nlines)
        return 0;
    qsort(h->lines, h->nlines, sizeof(*h->lines), by_place);
    for (size_t i = 0; i < h->nlines; i++)
        if (i == 0 || by_place(&h->lines[kept - 1], &h->lines[i]) != 0)
            h->lines[kept++] = h->lines[i];
    h->nlines = kept;
    list_files(h);
    for (uint32_t i = 0; i < n; i++) {
        struct heat_line *found =
            has_line(h->p, i, &key) ? bsearch(&key, h->lines, kept, sizeof(key), by_place) : NULL;
        h->line_of[i] = found ? (uint32_t)(found - h->lines) : PB_PROFILE_NONE;
    }
    return 0;
}

static bool is_wait(const struct heat *h, uint32_t frame)
{
    uint32_t function = pb_profile_frame_at(h->p, frame).function;
    return pb_profile_function_at(h->p, function).kind == PB_FRAME_WAIT;
}

static void add_count(struct heat *h, size_t number, const struct pb_count *c)
{
    uint32_t frames[STACK_MAX];
    size_t n = pb_profile_stack(h->p, c->node, frames, STACK_MAX);
    bool waits = n > 1 && is_wait(h, frames[0]);

    for (size_t i = waits; i < n; i++) {
        uint32_t at = h->line_of[frames[i]];
        if (at == PB_PROFILE_NONE)
            continue;
        struct heat_line *line = &h->lines[at];
        struct heat_file *file = &h->files[line->of];
        line->self += i == waits ? c->samples : 0;
        line->waiting += i == waits && waits ? c->samples : 0;
        line->total += line->seen == number ? 0 : c->samples;
        file->total += file->seen == number ? 0 : c->samples;
        line->seen = file->seen = number;
    }
}

static void sum_up_files(struct heat *h)
{
    for (size_t i = 0; i < h->nfiles; i++) {
        struct heat_file *f = &h->files[i];
        for (size_t k = f->first; k < f->first + f->n; k++) {
            const struct heat_line *line = &h->lines[k];
            f->self += line->self;
            f->hottest = line->self > f->hottest ? line->self : f->hottest;
            f->widest = line->total > f->widest ? line->total : f->widest;
        }
    }
    qsort(h->files, h->nfiles, sizeof(*h->files), by_self);
    for (size_t i = 0, shown = 0; i < h->nfiles && shown < FILES_MAX; i++)
        if (h->files[i].total)
            h->files[i].number = (int)++shown;
}

static int count_lines(struct heat *h)
{
    int r = list_lines(h);

    for (size_t i = 0; r == 0 && i < pb_profile_ncounts(h->p); i++) {
        struct pb_count c = pb_profile_count_at(h->p, i);
        if (!pb_profile_thread_at(h->p, c.thread).hidden)
            add_count(h, i + 1, &c);
    }
    h->all = (double)pb_profile_samples(h->p);
    if (r == 0)
        sum_up_files(h);
    return r;
}

/* --- the page --- */

static void put_share(struct heat *h, uint64_t samples, const char *class)
{
    if (samples)
        fprintf(h->out, "<td class=\"n%s\">%.1f%%</td>", class, 100 * (double)samples / h->all);
    else
        fprintf(h->out, "<td class=\"n%s\"></td>", class);
}

/* A line with few samples is still seen to have some. */
static double warmth(uint64_t samples, uint64_t most)
{
    return samples ? 0.1 + 0.9 * (double)samples / (double)most : 0;
}

static const char *text_of(const struct heat *h, const char *file, int line, int *ret_length)
{
    return h->texts ? h->texts->line(h->texts->of, file, line, ret_length) : NULL;
}

/* The text of a line, without what does not belong on a page. */
static void put_text(struct heat *h, const char *file, int line)
{
    char text[TEXT_MAX + 1];
    int length = 0;
    const char *at = text_of(h, file, line, &length);

    if (!at)
        return;
    snprintf(text, sizeof(text), "%.*s", length, at);
    for (char *c = text; *c; c++)
        *c = *c == '\t' ? ' ' : *c;
    pb_text_clean(text);
    pb_write_escaped(h->out, text, 0);
}

static void put_line(struct heat *h, const struct heat_file *f, int number, const struct heat_line *line)
{
    if (line)
        fprintf(h->out, "<tr id=\"f%d-%d\" style=\"--s:%.2f;--t:%.2f\">", f->number, number,
                warmth(line->self, f->hottest), warmth(line->total, f->widest));
    else
        fputs("<tr>", h->out);
    put_share(h, line ? line->self : 0, "");
    put_share(h, line ? line->waiting : 0, " o");
    put_share(h, line ? line->total : 0, " o");
    fprintf(h->out, "<td class=\"n o\">%d</td><td class=\"c\">", number);
    put_text(h, f->name, number);
    fputs("</td></tr>\n", h->out);
}

static bool has_text(const struct heat *h, const struct heat_file *f)
{
    int length;

    return text_of(h, f->name, 1, &length);
}

static void put_file(struct heat *h, const struct heat_file *f)
{
    const struct heat_line *line = &h->lines[f->first], *end = line + f->n;
    bool text = has_text(h, f);
    int next = 1; /* the first line that is not written yet */

    fprintf(h->out, "<h2 id=\"f%d\">", f->number);
    pb_write_escaped(h->out, f->name, 0);
    fprintf(h->out,
            "</h2>\n%s<table class=\"source\"><tr><th class=\"n\">self</th><th class=\"n\">waiting</th>"
            "<th class=\"n\">total</th><th class=\"n\">line</th><th></th></tr>\n",
            text ? "" : "<p class=\"o\">The text of this file could not be read.</p>\n");
    for (; line < end; line++) {
        if (!line->total)
            continue;
        int from = text && line->line > AROUND ? line->line - AROUND : text ? 1 : line->line;
        if (from < next || (text && from - next < GAP))
            from = next;
        else if (next > 1)
            fputs("<tr class=\"gap\"><td colspan=\"5\">\xe2\x8b\xaf</td></tr>\n", h->out);
        for (next = from; next < line->line; next++)
            put_line(h, f, next, NULL);
        put_line(h, f, next++, line);
        const struct heat_line *after = line + 1;
        while (after < end && !after->total)
            after++;
        int last = after < end && after->line <= line->line + AROUND ? after->line - 1 : line->line + AROUND;
        for (int length; next <= last && text_of(h, f->name, next, &length); next++)
            put_line(h, f, next, NULL);
    }
    fputs("</table>\n", h->out);
}

static void put_files(struct heat *h)
{
    size_t hidden = 0;

    fputs("<h2>Files</h2>\n<table><tr><th class=\"n\">self</th><th></th><th class=\"n\">total</th>"
          "<th>file</th></tr>\n",
          h->out);
    for (size_t i = 0; i < h->nfiles; i++) {
        const struct heat_file *f = &h->files[i];
        hidden += !f->number && f->total;
        if (!f->number)
            continue;
        fputs("<tr>", h->out);
        put_share(h, f->self, "");
        fprintf(h->out, "<td><meter max=\"100\" value=\"%.1f\"></meter></td>",
                100 * (double)f->self / h->all);
        put_share(h, f->total, " o");
        fprintf(h->out, "<td class=\"c\"><a href=\"#f%d\">", f->number);
        pb_write_escaped(h->out, pb_profile_short_file(f->name), 0);
        fputs("</a></td></tr>\n", h->out);
    }
    fputs("</table>\n", h->out);
    if (hidden)
        fprintf(h->out, "<p class=\"o\">%zu files with fewer samples are left out.</p>\n", hidden);
}

/* The hottest line that is colder than the last one written, or the next as hot; NULL: there is none. */
static const struct heat_line *next_hottest(const struct heat *h, const struct heat_line *last)
{
    const struct heat_line *best = NULL;

    for (size_t i = 0; i < h->nlines; i++) {
        const struct heat_line *line = &h->lines[i];
        bool follows = !last || line->self < last->self || (line->self == last->self && line > last);
        if (line->self && follows && (!best || line->self > best->self))
            best = line;
    }
    return best;
}

static int number_of_file(const struct heat *h, const char *name)
{
    for (size_t i = 0; i < h->nfiles; i++)
        if (strcmp(h->files[i].name, name) == 0)
            return h->files[i].number;
    return 0;
}

static void put_hottest(struct heat *h)
{
    const struct heat_line *line = NULL;

    fputs("<h2>Hottest lines</h2>\n<table><tr><th class=\"n\">self</th><th></th><th class=\"n\">waiting</th>"
          "<th class=\"n\">total</th><th>line</th><th></th></tr>\n",
          h->out);
    for (int i = 0; i < HOT_LINES && (line = next_hottest(h, line)); i++) {
        int number = number_of_file(h, line->file);
        fputs("<tr>", h->out);
        put_share(h, line->self, "");
        fprintf(h->out, "<td><meter max=\"100\" value=\"%.1f\"></meter></td>",
                100 * (double)line->self / h->all);
        put_share(h, line->waiting, " o");
        put_share(h, line->total, " o");
        fputs("<td class=\"c\">", h->out);
        if (number)
            fprintf(h->out, "<a href=\"#f%d-%d\">", number, line->line);
        pb_write_escaped(h->out, pb_profile_short_file(line->file), 0);
        fprintf(h->out, ":%d%s</td><td class=\"c\">", line->line, number ? "</a>" : "");
        put_text(h, line->file, line->line);
        fputs("</td></tr>\n", h->out);
    }
    fputs("</table>\n", h->out);
}

static void put_facts(struct heat *h)
{
    const struct pb_profile_facts *f = pb_profile_facts_of(h->p);
    char methods[256];

    fputs("<h1>", h->out);
    pb_write_escaped(h->out, f->title, 200);
    fprintf(h->out, "</h1>\n<p class=\"o\">%.0f samples at %g Hz \xc2\xb7 %.1f s \xc2\xb7 %s time", h->all,
            f->rate, (double)f->duration_ns / 1e9, f->clock);
    if (f->ticks)
        fprintf(h->out, " \xc2\xb7 stacks read %s", pb_profile_methods(h->p, methods, sizeof(methods)));
    fputs("</p>\n<p class=\"o\">self: the line was the innermost, also while it waited; total: it was in the "
          "stack. The text is that of the files when this page was written.</p>\n",
          h->out);
}

int pb_write_lines(FILE *out, const struct pb_profile *p, const struct pb_line_texts *texts)
{
    _cleanup_(heat_done) struct heat h = {.out = out, .p = p, .texts = texts};

    int r = count_lines(&h);
    if (r < 0)
        return r;
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
          "<meta name=\"viewport\" content=\"width=device-width\"/><title>",
          out);
    pb_write_escaped(out, pb_profile_facts_of(p)->title, 0);
    fprintf(out, "</title>\n<style>\n%s%s</style></head>\n<body>\n", (const char *)profile_page_css,
            (const char *)profile_lines_css);
    put_facts(&h);
    fputs(
        "<input type=\"checkbox\" id=\"by-total\"/><label for=\"by-total\">colour by total</label>\n<main>\n",
        out);
    if (!h.nlines)
        fputs("<p>No frame of this profile has a line: a profile read from a .folded file has none.</p>\n",
              out);
    put_hottest(&h);
    put_files(&h);
    for (size_t i = 0; i < h.nfiles; i++)
        if (h.files[i].number)
            put_file(&h, &h.files[i]);
    fputs("</main></body></html>\n", out);
    return 0;
}
