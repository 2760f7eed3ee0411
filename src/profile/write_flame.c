/* write_flame: the flame graph, as an SVG by itself or in a page with the hottest functions below.
 *
 * The root is on top and calls grow downwards, the heaviest on the left. Widths are percentages, so the
 * picture fits whatever window it is in; flame.js adds zoom, search and tooltips where scripts run. Of two
 * profiles the widths are those of the second and the colour says how the share of a frame changed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "profile/write.h"

#include "profile_flame_css.h"
#include "profile_flame_js.h"
#include "profile_page_css.h"

#define ROW         18
#define TOP         116    /* where the graph begins */
#define LEVELS_MAX  2000   /* deeper frames are left out; a note says so */
#define SHARE_MIN   0.0002 /* of the whole: narrower frames could not be seen */
#define CHAR_PX     6.65
#define EDGE        0.0125 /* of the width, on both sides */
#define USUAL_PX    1200   /* the width that labels are cut for where no script runs */
#define SHADES      10
#define LABEL_SIZE  512
#define HOT_ROWS    30
#define DIFF_SHADES 5
#define DIFF_MIN    0.001 /* a share that changed by less did not */
#define DIFF_STRIDE 0.02

struct picture {
    FILE *out;
    const struct pb_flame *f;
    const struct pb_profile *p, *after;
    int side; /* the side that gives the widths */
    double all;
    uint32_t hidden_levels;
};

void pb_write_escaped(FILE *out, const char *s, size_t max_chars)
{
    size_t chars = 0;

    for (; *s; s++) {
        bool begins = ((unsigned char)*s & 0xc0) != 0x80;
        if (begins && max_chars && ++chars >= max_chars) {
            fputs("\xe2\x80\xa6", out);
            return;
        }
        switch (*s) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            putc(*s, out);
        }
    }
}

/* 1,234,567 */
static const char *grouped(uint64_t n, char buf[32])
{
    char digits[24];
    int len = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n), k = 0;

    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            buf[k++] = ',';
        buf[k++] = digits[i];
    }
    buf[k] = '\0';
    return buf;
}

/* The same function has the same shade in every picture. */
static unsigned shade_of(const char *name, const char *file)
{
    uint64_t h = pb_hash_text(pb_hash_text(PB_HASH_START, name), pb_profile_short_file(file));

    return (unsigned)((h ^ h >> 32) % SHADES);
}

static double share(const struct picture *pic, const struct pb_flame_node *node, int side)
{
    uint64_t all = pic->f->at[0].total[side];
    return all ? (double)node->total[side] / (double)all : 0;
}

static void put_class(struct picture *pic, const struct pb_flame_node *node)
{
    struct pb_profile_function f = pb_profile_function_at(pic->f->names, node->function);

    if (f.kind == PB_FRAME_THREAD || f.kind == PB_FRAME_PROCESS) {
        fputs("l", pic->out);
    } else if (pic->after) {
        double change = share(pic, node, 1) - share(pic, node, 0), size = change < 0 ? -change : change;
        int level = (int)(size / DIFF_STRIDE);
        if (size < DIFF_MIN)
            fputs("e", pic->out);
        else
            fprintf(pic->out, "%c%d", change > 0 ? 'g' : 's', level < DIFF_SHADES ? level : DIFF_SHADES - 1);
    } else if (f.kind == PB_FRAME_WAIT) {
        fputs("w", pic->out);
    } else {
        fprintf(pic->out, "%c%u", f.kind == PB_FRAME_NATIVE ? 'n' : 'p', shade_of(f.name, f.file));
    }
}

static void put_shares(struct picture *pic, const struct pb_flame_node *node)
{
    char number[32];

    if (pic->after) {
        double a = 100 * share(pic, node, 0), b = 100 * share(pic, node, 1);
        fprintf(pic->out, "%.2f%% before, %.2f%% after: %+.2f points", a, b, b - a);
        return;
    }
    uint64_t self = node->self[pic->side];
    for (uint32_t c = node->child; c != PB_PROFILE_NONE; c = pic->f->at[c].next) {
        uint32_t function = pic->f->at[c].function;
        if (pb_profile_function_at(pic->f->names, function).kind == PB_FRAME_WAIT)
            self += pic->f->at[c].total[pic->side];
    }
    fprintf(pic->out, "%.2f%% of all: %s sample%s; %.2f%% in itself", 100 * share(pic, node, pic->side),
            grouped(node->total[pic->side], number), node->total[pic->side] == 1 ? "" : "s",
            pic->all > 0 ? 100 * (double)self / pic->all : 0);
}

static void put_box(struct picture *pic, double x, double width, uint32_t depth, const char *label)
{
    int y = TOP + (int)depth * ROW;

    x = EDGE + x * (1 - 2 * EDGE);
    width *= 1 - 2 * EDGE;
    size_t room = (size_t)(width * USUAL_PX > 9 ? (width * USUAL_PX - 9) / CHAR_PX : 0);

    fprintf(pic->out, "<rect x=\"%.5f%%\" y=\"%d\" width=\"%.5f%%\" height=\"%d\"/>", 100 * x, y, 100 * width,
            ROW - 1);
    if (room >= 3) {
        fprintf(pic->out, "<text x=\"%.5f%%\" dx=\"4\" y=\"%.1f\">", 100 * x, y + 12.5);
        pb_write_escaped(pic->out, label, room);
        fputs("</text>", pic->out);
    }
    fputs("</g>\n", pic->out);
}

static void put_frame(struct picture *pic, const struct pb_flame_node *node, double x, double width)
{
    struct pb_profile_function f = pb_profile_function_at(pic->f->names, node->function);
    char label[LABEL_SIZE];

    pb_profile_label(pic->f->names, node->function, label, sizeof(label));
    if (node->line)
        snprintf(label + strlen(label), sizeof(label) - strlen(label), ":%d", node->line);
    fputs("<g class=\"f ", pic->out);
    put_class(pic, node);
    fputs("\"><title>", pic->out);
    pb_write_escaped(pic->out, label, 0);
    if (*f.file) {
        putc('\n', pic->out);
        pb_write_escaped(pic->out, f.file, 0);
    }
    putc('\n', pic->out);
    put_shares(pic, node);
    fputs("</title>", pic->out);
    put_box(pic, x, width, node->depth, label);
}

static int put_graph(struct picture *pic)
{
    const struct pb_flame *f = pic->f;
    _cleanup_free_ double *x = calloc(f->n, sizeof(*x));
    char number[32];

    if (!x)
        return -ENOMEM;
    fprintf(pic->out, "<g id=\"graph\">\n<g class=\"f all\"><title>all\n%s samples</title>",
            grouped(f->at[0].total[pic->side], number));
    put_box(pic, 0, 1, 0, "all");
    for (size_t i = 0; i < f->n; i++) { /* parents come first */
        const struct pb_flame_node *node = &f->at[i];
        double at = x[i], width = share(pic, node, pic->side);
        if (i && width >= SHARE_MIN && node->depth < LEVELS_MAX)
            put_frame(pic, node, x[i], width);
        for (uint32_t c = node->child; c != PB_PROFILE_NONE; c = f->at[c].next) {
            x[c] = at;
            at += share(pic, &f->at[c], pic->side);
        }
    }
    fputs("</g>\n", pic->out);
    return 0;
}

static void put_legend(struct picture *pic)
{
    static const char *const one[][2] = {{"p3", "Python"}, {"n4", "native"}, {"w", "waiting"}};
    static const char *const two[][2] = {{"g3", "grew"}, {"s3", "shrank"}, {"e", "unchanged"}};

    fputs("<svg x=\"98.75%\" overflow=\"visible\">", pic->out);
    for (int i = 0; i < 3; i++) {
        const char *const *item = pic->after ? two[i] : one[i];
        fprintf(pic->out,
                "<g class=\"%s\"><rect x=\"%d\" y=\"15\" width=\"13\" height=\"13\" rx=\"3\"/></g>"
                "<text class=\"dim\" x=\"%d\" y=\"26\">%s</text>",
                item[0], -262 + 90 * i, -244 + 90 * i, item[1]);
    }
    fputs("</svg>\n", pic->out);
}

static void put_facts(struct picture *pic, const struct pb_profile *p)
{
    const struct pb_profile_facts *f = pb_profile_facts_of(p);
    char number[32];
    size_t threads = 0;

    for (uint32_t i = 0; i < pb_profile_nthreads(p); i++)
        threads += !pb_profile_thread_at(p, i).hidden;
    fprintf(pic->out, "%s samples", grouped(pb_profile_samples(p), number));
    if (f->rate > 0)
        fprintf(pic->out, " at %g Hz", f->rate);
    if (f->duration_ns)
        fprintf(pic->out, " \xc2\xb7 %.1f s \xc2\xb7 %s time \xc2\xb7 %zu thread%s",
                (double)f->duration_ns / 1e9, f->clock, threads, threads == 1 ? "" : "s");
    if (f->processes > 1)
        fprintf(pic->out, " of %u processes", f->processes);
}

static void put_head(struct picture *pic)
{
    const struct pb_profile_facts *f = pb_profile_facts_of(pic->p);
    char methods[256];

    fputs("<text class=\"title\" x=\"1.25%\" y=\"28\">", pic->out);
    if (pic->after)
        fputs("What changed: ", pic->out);
    pb_write_escaped(pic->out, f->title, pic->after ? 40 : 90);
    if (pic->after) {
        fputs(" \xe2\x86\x92 ", pic->out);
        pb_write_escaped(pic->out, pb_profile_facts_of(pic->after)->title, 40);
    }
    fputs("</text>\n<text class=\"dim\" x=\"1.25%\" y=\"48\">", pic->out);
    put_facts(pic, pic->p);
    if (pic->after) {
        fputs(" \xe2\x86\x92 ", pic->out);
        put_facts(pic, pic->after);
    }
    fputs("</text>\n<text class=\"dim\" x=\"1.25%\" y=\"66\">", pic->out);
    if (pic->after)
        fputs("widths are those of the second; colours say how the share of a frame changed", pic->out);
    else if (f->ticks)
        fprintf(pic->out, "stacks read %s", pb_profile_methods(pic->p, methods, sizeof(methods)));
    if (pic->hidden_levels)
        fprintf(pic->out, "; %u levels deeper than %d are not drawn", pic->hidden_levels, LEVELS_MAX);
    fputs("</text>\n", pic->out);
    put_legend(pic);
    fputs("<foreignObject x=\"1.25%\" y=\"76\" width=\"97%\" height=\"36\">"
          "<div xmlns=\"http://www.w3.org/1999/xhtml\" id=\"bar\">"
          "<input id=\"search\" type=\"search\" placeholder=\"Search ( / )\" aria-label=\"Search\" "
          "spellcheck=\"false\" />"
          "<button id=\"reset\" type=\"button\">Reset (Esc)</button><span id=\"matched\"></span>"
          "<span class=\"hint\">click a frame to zoom in</span></div></foreignObject>\n",
          pic->out);
}

static int put_svg(struct picture *pic, bool html)
{
    uint32_t levels = pic->f->depth < LEVELS_MAX ? pic->f->depth : LEVELS_MAX;

    pic->hidden_levels = pic->f->depth - levels;
    fprintf(pic->out,
            "<svg id=\"flame\" xmlns=\"http://www.w3.org/2000/svg\" width=\"100%%\" height=\"%u\" "
            "font-family=\"system-ui, sans-serif\">\n",
            TOP + (levels + 1) * ROW + 90);
    if (!html)
        fprintf(pic->out, "<style>\n%s</style>\n", (const char *)profile_flame_css);
    put_head(pic);
    int r = put_graph(pic);
    fputs("<g id=\"tip\"></g>\n", pic->out);
    if (!html)
        fprintf(pic->out, "<script><![CDATA[\n%s]]></script>\n", (const char *)profile_flame_js);
    fputs("</svg>\n", pic->out);
    return r;
}

static int put_table(FILE *out, const struct pb_profile *p)
{
    _cleanup_free_ struct pb_hot *hot = NULL;
    double all = (double)pb_profile_samples(p);

    int n = pb_profile_hot(p, NULL, &hot);
    if (n < 0)
        return n;
    fputs(
        "<h2>Hottest functions</h2>\n<table><tr><th class=\"n\">self</th><th></th><th class=\"n\">total</th>"
        "<th class=\"n\">waiting</th><th>function</th><th>file</th></tr>\n",
        out);
    for (int i = 0; i < n && i < HOT_ROWS && hot[i].self; i++) {
        struct pb_profile_function f = pb_profile_function_at(p, hot[i].function);
        double self = 100 * (double)hot[i].self / all;
        fprintf(out, "<tr><td class=\"n\">%.1f%%</td><td><meter max=\"100\" value=\"%.1f\"></meter></td>",
                self, self);
        fprintf(out, "<td class=\"n\">%.1f%%</td><td class=\"n o\">%.1f%%</td><td class=\"c\">",
                100 * (double)hot[i].total / all, 100 * (double)hot[i].waiting / all);
        pb_write_escaped(out, f.name, 0);
        fputs("</td><td class=\"c o\">", out);
        pb_write_escaped(out, pb_profile_short_file(f.file), 0);
        fputs("</td></tr>\n", out);
    }
    fputs("</table>\n", out);
    return 0;
}

int pb_write_flame(FILE *out, const struct pb_flame *f, const struct pb_profile *p,
                   const struct pb_profile *after, bool html)
{
    struct picture pic = {.out = out, .f = f, .p = p, .after = after, .side = after ? 1 : 0};

    pic.all = (double)f->at[0].total[pic.side];
    if (!html) {
        fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n", out);
        return put_svg(&pic, false);
    }
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
          "<meta name=\"viewport\" content=\"width=device-width\"/><title>",
          out);
    pb_write_escaped(out, pb_profile_facts_of(p)->title, 0);
    fprintf(out, "</title>\n<style>\n%s%s</style></head>\n<body>\n", (const char *)profile_page_css,
            (const char *)profile_flame_css);
    int r = put_svg(&pic, true);
    if (r == 0)
        r = put_table(out, after ? after : p);
    fprintf(out, "<script>\n%s</script>\n</body></html>\n", (const char *)profile_flame_js);
    return r;
}
