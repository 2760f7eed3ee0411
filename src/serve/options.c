/* options: see options.h. */
#include "serve/options.h"

#include <stddef.h>

const struct pb_option pb_serve_options[PB_SERVE_OPTIONS + 1] = {
    {'b', "background", NULL, "go on when the terminal is gone"},
    {0, "read-only", NULL, "nothing that changes a process: no eval, no settings, no inject"},
    {0, "mcp-changes", NULL, "let an assistant (/mcp) run code in processes and change settings"},
    {0, "open", "TARGET", "what a request that names no process is about"},
    {0, "record", "HZ", "keep watch: record every process that is served, at this rate, such as 1"},
    {0, "watchdog", "TIME", "with --record: keep all stacks when a main thread stands still that long"},
    {0, "archive", NULL, "keep watch: archive what they record"},
    {0, "retention", "DAYS", "with --archive: remove files whose rows are older"},
    {0, "cores", "DIR", "answer for the core files in this folder too"},
    {0, "token-file", "FILE", "64 hexadecimal digits, readable by you alone; else one is made and kept"},
    {0, "host", "NAME", "answer under this name too"},
    {0, "socket", "PATH", "as root: a unix socket for all users, each served what that user may see"},
    {0, "cert", "FILE", "TLS: the certificate (PEM)"},
    {0, "key", "FILE", "TLS: its key (PEM)"},
    {0, "status", NULL, "where your service is, with its token"},
    {0, "stop", NULL, "end it"},
    {0},
};
