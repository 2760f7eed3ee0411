/* fixed: answers of the service itself, which need no command. See routes.h. */
#include "print/records.h"
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

void pb_fixed_health(FILE *out, const struct pb_offer *o)
{
    (void)o;
    fputs("{\"status\":\"ok\"}\n", out);
}

void pb_fixed_ready(FILE *out, const struct pb_offer *o)
{
    (void)o;
    fputs("{\"status\":\"ready\"}\n", out);
}

void pb_fixed_service(FILE *out, const struct pb_offer *o)
{
    char host[256] = "";

    gethostname(host, sizeof(host) - 1);
    fputs("{\"version\":\"" PROBING_VERSION "\",\"host\":", out);
    pb_put_json(out, host, strlen(host));
    fputs(",\"target\":", out);
    if (o->target)
        pb_put_json(out, o->target, strlen(o->target));
    else
        fputs("null", out);
    fprintf(out, ",\"read_only\":%s}\n", o->read_only ? "true" : "false");
}

void pb_fixed_cores(FILE *out, const struct pb_offer *o)
{
    DIR *dir = opendir(o->cores);
    struct stat st;
    bool any = false;

    putc('[', out);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!pb_route_is_file(e->d_name) || fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISREG(st.st_mode))
            continue;
        fputs(any ? ",\n{\"file\":" : "\n{\"file\":", out);
        pb_put_json(out, e->d_name, strlen(e->d_name));
        fprintf(out, ",\"bytes\":%lld,\"written\":%lld}", (long long)st.st_size, (long long)st.st_mtime);
        any = true;
    }
    fputs("\n]\n", out);
    if (dir)
        closedir(dir);
}
