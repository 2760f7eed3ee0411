/* version: prints the release; as rows also how it was built and which of its parts are installed. */
#include "base/program.h"
#include "cli/cli.h"
#include "cli/print/rows.h"
#include "cluster/link/serve_program.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static const char *const columns[] = {"version", "compiler", "machine", "built_for", "libc",
                                      "sql",     "serve",    "agents",  "prefix"};
#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

/* The libc whose interface the program was compiled for, and the one that runs it. */
static void add_libcs(struct pb_rows *rows)
{
#ifdef __GLIBC__
    char text[64];
    const char *(*version)(void);

    snprintf(text, sizeof(text), "glibc %d.%d", __GLIBC__, __GLIBC_MINOR__);
    pb_rows_text(rows, text);
    *(void **)&version = dlsym(RTLD_DEFAULT, "gnu_get_libc_version");
    snprintf(text, sizeof(text), "glibc %s", version ? version() : "?");
    pb_rows_text(rows, text);
#else
    pb_rows_text(rows, "musl");
    pb_rows_text(rows, "musl");
#endif
}

static bool is_installed(const char *prefix, const char *name)
{
    char path[PATH_MAX];

    return snprintf(path, sizeof(path), "%s/%s", prefix, name) < (int)sizeof(path) && access(path, R_OK) == 0;
}

static void add_parts(struct pb_rows *rows, const char *prefix)
{
    char agents[16] = "";
    char service[PATH_MAX];

    bool serve = pb_serve_path(service, sizeof(service)) == 0 && access(service, X_OK) == 0;
    bool sql = is_installed(prefix, "bin/probing-sql") && is_installed(prefix, "lib/probing/libduckdb.so");
    pb_rows_text(rows, sql ? "yes" : "no");
    pb_rows_text(rows, serve ? "yes" : "no");
    for (int musl = 0; musl < 2; musl++)
        if (is_installed(prefix, musl ? "lib/probing/libprobing-musl.so" : "lib/probing/libprobing-glibc.so"))
            snprintf(agents + strlen(agents), sizeof(agents) - strlen(agents), "%s%s", agents[0] ? " " : "",
                     musl ? "musl" : "glibc");
    pb_rows_text(rows, agents[0] ? agents : NULL);
    pb_rows_text(rows, prefix);
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    char prefix[PATH_MAX];
    struct utsname machine;
    struct pb_rows rows;

    if (call->format == PB_FORMAT_TABLE) {
        puts("probing " PROBING_VERSION);
        return 0;
    }
    int r = pb_program_prefix(prefix, sizeof(prefix));
    if (r < 0)
        return pb_fail(err, r, "cannot find the probing executable");
    pb_rows_init(&rows, columns, COLUMNS);
    pb_rows_text(&rows, PROBING_VERSION);
    pb_rows_text(&rows, __VERSION__);
    pb_rows_text(&rows, uname(&machine) == 0 ? machine.machine : NULL);
    add_libcs(&rows);
    add_parts(&rows, prefix);
    r = pb_rows_print(&rows, call->format, NULL, err);
    pb_rows_done(&rows);
    return r;
}

const struct pb_command pb_cmd_version = {
    .name = "version",
    .summary = "print the release",
    .synopsis = "",
    .text =
        "--json: also the compiler, the libc it was built for and the one that runs it, and which parts are "
        "installed\n(sql: probing-sql with DuckDB; serve: the service; agents: for which libc).",
    .example = "probing version\nprobing version --json",
    .flags = PB_CMD_ROWS,
    .run = run,
};
