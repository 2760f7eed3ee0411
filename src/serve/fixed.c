/* fixed: answers of the service itself, which need no command. See routes.h. */
#include "base/json_write.h"
#include "serve/routes.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void pb_fixed_index(FILE *out, const struct pb_offer *o)
{
    fputs("Probing: what the processes of this node are doing. /openapi.json describes the rest.\n\n", out);
    if (!o->page)
        fputs("This service was built without its page: there was no Node.js 20.19 or newer.\n\n", out);
    for (const struct pb_route *r = NULL; (r = pb_route_next(r));)
        if (pb_route_is_offered(o, r) && !(r->flags & PB_ROUTE_HIDDEN))
            fprintf(out, "%-6s %-34s %s\n", r->method, r->path, r->summary);
}

static void put_status(FILE *out, const char *status)
{
    struct pb_json_writer w = {.out = out, .tight = true};

    pb_json_open(&w, NULL, '{');
    pb_json_put_text(&w, "status", status);
    pb_json_close(&w);
    putc('\n', out);
}

void pb_fixed_health(FILE *out, const struct pb_offer *o)
{
    (void)o;
    put_status(out, "ok");
}

void pb_fixed_ready(FILE *out, const struct pb_offer *o)
{
    (void)o;
    put_status(out, "ready");
}

void pb_fixed_service(FILE *out, const struct pb_offer *o)
{
    struct pb_json_writer w = {.out = out, .tight = true};
    char host[256] = "";

    gethostname(host, sizeof(host) - 1);
    pb_json_open(&w, NULL, '{');
    pb_json_put_text(&w, "version", PROBING_VERSION);
    pb_json_put_text(&w, "host", host);
    pb_json_put_text(&w, "target", o->target);
    pb_json_put_bool(&w, "read_only", o->read_only);
    pb_json_close(&w);
    putc('\n', out);
}

void pb_fixed_cores(FILE *out, const struct pb_offer *o)
{
    struct pb_json_writer w = {.out = out, .tight = true};
    DIR *dir = opendir(o->cores);
    struct stat st;

    pb_json_open(&w, NULL, '[');
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!pb_route_is_file(e->d_name) || fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISREG(st.st_mode))
            continue;
        pb_json_line(&w, 0);
        pb_json_open(&w, NULL, '{');
        pb_json_put_text(&w, "file", e->d_name);
        pb_json_put_number(&w, "bytes", "%lld", (long long)st.st_size);
        pb_json_put_number(&w, "written", "%lld", (long long)st.st_mtime);
        pb_json_close(&w);
    }
    pb_json_line(&w, 0);
    pb_json_close(&w);
    putc('\n', out);
    if (dir)
        closedir(dir);
}
