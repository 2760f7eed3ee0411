/* query_progress: see query_progress.h. */
#include "cli/query/query_progress.h"

#include "base/time.h"
#include "cli/print/terminal.h"
#include "print/outlet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_MS = 500, BAR = 24 };

void pb_progress_begin(struct pb_progress *p)
{
    const char *term = getenv("TERM");

    *p = (struct pb_progress){.on = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0,
                              .began = pb_now_ns()};
}

/* 950, 1.2k, 34M */
static const char *format_count(uint64_t n, char ret[16])
{
    static const char units[] = " kMGT";
    double value = (double)n;
    int unit = 0;

    for (; value >= 1000 && unit < 4; unit++)
        value /= 1000;
    snprintf(ret, 16, unit && value < 10 ? "%.1f%c" : "%.0f%c", value, units[unit]);
    ret[strcspn(ret, " ")] = '\0';
    return ret;
}

void pb_progress_show(struct pb_progress *p, uint64_t scanned, uint64_t known)
{
    double seconds = (double)(pb_now_ns() - p->began) / 1e9;
    char line[160], done[16], all[16], bar[BAR + 1];
    int rows, columns;

    if (!p->on || seconds * 1000 < PATIENCE_MS)
        return;
    uint64_t share = known ? scanned * 1000 / known : 0;
    memset(bar, ' ', BAR);
    memset(bar, '#', (size_t)(share > 1000 ? 1000 : share) * BAR / 1000);
    bar[BAR] = '\0';
    if (known)
        snprintf(line, sizeof(line), "[%s] %3d%%  %s of %s rows, %.1f s (Ctrl-C stops it)", bar,
                 (int)(share / 10), format_count(scanned, done), format_count(known, all), seconds);
    else
        snprintf(line, sizeof(line), "running, %.1f s (Ctrl-C stops it)", seconds);
    pb_terminal_size(STDERR_FILENO, &rows, &columns);
    fprintf(stderr, "%s[G%.*s%s[K", pb_escape(), columns - 1, line, pb_escape());
    fflush(stderr);
    p->shown = true;
}

void pb_progress_clear(struct pb_progress *p)
{
    if (!p->shown)
        return;
    fprintf(stderr, "%s[G%s[K", pb_escape(), pb_escape());
    fflush(stderr);
    p->shown = false;
}
