/* serve_options: see serve_options.h. */
#include "serve/serve_options.h"

#include <stddef.h>

const struct pb_option pb_serve_options[PB_SERVE_OPTIONS + 1] = {
    {'b', "background", NULL, "keep running when the terminal closes"},
    {0, "read-only", NULL, "nothing that changes a process: no eval, no settings, no inject"},
    {0, "mcp-changes", NULL, "let an assistant (/mcp) run code in processes and change settings"},
    {0, "open", PB_TEXT("TARGET"), "the process for requests that name none"},
    {0, "record", PB_NUMBER("HZ", .least = 0.1, .most = 1000),
     "record every process that is served, at this rate, such as 1"},
    {0, "watchdog", PB_TIME(.least = 1),
     "with --record: record all stacks when a main thread does not move for that long"},
    {0, "archive", NULL, "archive what is recorded"},
    {0, "retention", PB_NUMBER("DAYS", .most = 1e6), "with --archive: remove files whose rows are older"},
    {0, "diagnose", PB_TIME(.least = 1000),
     "run diagnose so often, such as 30s: alerts, metrics, probing.alert.webhook"},
    {0, "cores", PB_TEXT("DIR"), "serve the core files in this folder too"},
    {0, "token-file", PB_TEXT("FILE"),
     "64 hexadecimal digits, readable by you alone (default: one is generated)"},
    {0, "host", PB_TEXT("NAME"), "answer under this name too"},
    {0, "socket", PB_TEXT("PATH"),
     "as root: a unix socket for all users, each served what that user may see"},
    {0, "cert", PB_TEXT("FILE"), "TLS: the certificate (PEM)"},
    {0, "key", PB_TEXT("FILE"), "TLS: its key (PEM)"},
    {0, "status", NULL, "print the address of your service, with its token"},
    {0, "stop", NULL, "end it"},
    {0},
};
