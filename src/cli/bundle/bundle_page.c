/* bundle_page: index.html of an incident's file: what a browser alone shows. No script, nothing fetched: the
 * other parts are linked, for a file that was unpacked. All texts of the processes are escaped. */
#include "base/cleanup.h"
#include "base/err.h"
#include "cli/bundle/bundle.h"
#include "profile/write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 1 << 20, SHARE = 32 };

static const char style[] =
    ":root { color-scheme: light dark; }\n"
    "body { margin: 24px auto; max-width: 1100px; padding: 0 16px; font: 14px system-ui, sans-serif; }\n"
    "h1 { font-size: 20px; overflow-wrap: anywhere; } h2 { font-size: 15px; margin: 28px 0 8px; }\n"
    "pre { overflow-x: auto; font: 12px ui-monospace, Menlo, Consolas, monospace; }\n"
    "table { border-collapse: collapse; } th { text-align: left; }\n"
    "th, td { padding: 3px 14px 3px 0; vertical-align: top; overflow-wrap: anywhere; }\n";

static void put_between(FILE *to, const char *before, const char *text, const char *after)
{
    fputs(before, to);
    pb_write_escaped(to, text, 0);
    fputs(after, to);
}

/* The text of a part; nothing where there is none. */
static int put_part(const struct pb_bundle *b, const char *title, const char *name, size_t most, FILE *to)
{
    _cleanup_free_ char *text = malloc(most + 1);
    char path[2 * PATH_MAX];

    if (!text)
        return -ENOMEM;
    snprintf(path, sizeof(path), "%s/%s", b->folder, name);
    FILE *in = fopen(path, "re");
    if (!in)
        return 0;
    size_t n = fread(text, 1, most, in);
    bool more = getc(in) != EOF;
    fclose(in);
    text[n] = '\0';
    fprintf(to, "<h2>%s</h2>\n<pre>", title);
    pb_write_escaped(to, text, 0);
    fprintf(to, "</pre>\n%s", more ? "<p>The rest is in the part itself.</p>\n" : "");
    return 0;
}

static void put_notes(FILE *to, const char *title, const struct pb_bundle_note *at, size_t n)
{
    if (!n)
        return;
    fprintf(to, "<h2>%s</h2>\n<table>\n", title);
    for (size_t i = 0; i < n; i++) {
        put_between(to, "<tr><td>", at[i].name, "");
        put_between(to, "<td>", at[i].why, "</tr>\n");
    }
    fputs("</table>\n", to);
}

int pb_bundle_put_page(const struct pb_bundle *b, uint64_t max, FILE *to)
{
    /* An escaped byte may become six: four parts take three quarters of a small file at most. */
    size_t most = max / SHARE < SHOWN ? (size_t)(max / SHARE) : SHOWN;
    static const struct {
        const char *title, *name;
    } parts[] = {{"What is wrong", "findings.txt"},
                 {"Equal stacks once", "stacks-merged.txt"},
                 {"Stacks", "stacks.txt"},
                 {"Settings", "settings.txt"}};
    int r = 0;

    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'\"><meta name=\"viewport\" content=\"width=device-width\">",
          to);
    put_between(to, "<title>incident: ", b->named, "</title>\n");
    fprintf(to, "<style>\n%s</style></head>\n<body>\n", style);
    put_between(to, "<h1>", b->named, "</h1>\n");
    fprintf(to, "<p>%zu process%s, %s UTC, probing %s. Secrets are masked.</p>\n", b->nprocesses,
            b->nprocesses == 1 ? "" : "es", b->made, b->release);
    for (size_t i = 0; r == 0 && i < sizeof(parts) / sizeof(parts[0]); i++)
        r = put_part(b, parts[i].title, parts[i].name, most, to);
    fputs("<h2>Processes</h2>\n<table>\n<tr><th>process<th>pid<th>state<th>command</tr>\n", to);
    for (size_t i = 0; i < b->nprocesses; i++) {
        const struct pb_bundle_process *p = &b->processes[i];
        put_between(to, "<tr><td>", p->target.label, "");
        fprintf(to, "<td>%d<td>%s", (int)p->target.pid, p->target.dead ? "ended" : "running");
        put_between(to, "<td>", p->command, "</tr>\n");
    }
    fputs("</table>\n", to);
    put_notes(to, "Left out", b->left_out, b->nleft_out);
    put_notes(to, "Read only in part", b->notes, b->nnotes);
    fputs("<p>Recorded rows are Parquet files below rows/, one folder a table; profile.folded and "
          "recordings/ open in speedscope. <code>probing -t FILE query \"SELECT ...\"</code> asks them by "
          "SQL.</p>\n</body></html>\n",
          to);
    return r;
}
