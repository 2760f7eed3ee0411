/* page: the files of the page (web/). See service.h.
 *
 * The files are compressed and embedded when the program is built (cmake/page.cmake). They are the same
 * for all users and have no data of processes, so they need no token; the API that they use does. With
 * PROBING_PAGE=FOLDER, for work on the page, they are read from there at each request. */
#include "base/cleanup.h"
#include "serve/service.h"

#include <fcntl.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct page_file {
    const char *path, *type, *etag;
    const unsigned char *bytes; /* compressed with gzip */
    size_t size;
};

#include "page_files.h"

/* No resources of other sites, no inline scripts, no framing. */
static const char policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
                             "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors "
                             "'none'; require-trusted-types-for 'script'";

static enum MHD_Result send_file(struct MHD_Connection *c, unsigned status, struct MHD_Response *response,
                                 const struct page_file *f)
{
    const char *const headers[][2] = {
        {"Content-Type", f->type},
        {"Content-Security-Policy", policy},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        /* Names of other files contain a hash of the content. */
        {"Cache-Control", strcmp(f->path, "/") == 0 ? "no-cache" : "max-age=31536000, immutable"},
        {"Vary", "Accept, Accept-Encoding"},
    };

    if (!response)
        return MHD_NO;
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++)
        MHD_add_response_header(response, headers[i][0], headers[i][1]);
    if (f->etag)
        MHD_add_response_header(response, "ETag", f->etag);
    enum MHD_Result r = MHD_queue_response(c, status, response);
    MHD_destroy_response(response);
    return r;
}

static const char *header(struct MHD_Connection *c, const char *name)
{
    const char *value = MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
    return value ? value : "";
}

static enum MHD_Result send_embedded(struct MHD_Connection *c, const struct page_file *f)
{
    static const char not_plain[] = "stored compressed: send Accept-Encoding: gzip (curl --compressed)\n";
    const struct page_file text = {.path = "/", .type = "text/plain; charset=utf-8"};

    if (strcmp(header(c, "If-None-Match"), f->etag) == 0)
        return send_file(c, 304, MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT), f);
    if (!strstr(header(c, "Accept-Encoding"), "gzip"))
        return send_file(
            c, 406,
            MHD_create_response_from_buffer(sizeof(not_plain) - 1, (void *)not_plain, MHD_RESPMEM_PERSISTENT),
            &text);
    struct MHD_Response *response =
        MHD_create_response_from_buffer(f->size, (void *)f->bytes, MHD_RESPMEM_PERSISTENT);
    if (response)
        MHD_add_response_header(response, "Content-Encoding", "gzip");
    return send_file(c, 200, response, f);
}

/* /, or /assets/NAME with a name that is no path. */
static bool is_plain_name(const char *path)
{
    static const char characters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const char *name = path + strlen("/assets/");

    return *name != '.' && strspn(name, characters) == strlen(name);
}

/* From a folder that Vite has written: for work on the page. */
static int send_from_disk(struct MHD_Connection *c, const char *folder, const char *path,
                          enum MHD_Result *ret)
{
    static const char *const types[][2] = {{".html", "text/html; charset=utf-8"},
                                           {".js", "text/javascript; charset=utf-8"},
                                           {".css", "text/css; charset=utf-8"},
                                           {".svg", "image/svg+xml"}};
    char name[PB_SERVE_PATH];
    struct page_file f = {.path = "/", .type = "application/octet-stream"};
    struct stat st;

    bool root = strcmp(path, "/") == 0;
    if (!root && !is_plain_name(path))
        return 0;
    snprintf(name, sizeof(name), "%s%s", folder, root ? "/index.html" : path);
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return 0;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return 0;
    }
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        size_t n = strlen(types[i][0]);
        if (strlen(name) > n && strcmp(name + strlen(name) - n, types[i][0]) == 0)
            f.type = types[i][1];
    }
    *ret = send_file(c, 200, MHD_create_response_from_fd((uint64_t)st.st_size, fd), &f);
    return 1;
}

bool pb_page_is_built(void)
{
#ifdef PB_PAGE_MISSING
    return false;
#else
    return true;
#endif
}

int pb_page_answer(struct MHD_Connection *c, const char *path, enum MHD_Result *ret)
{
    const char *folder = getenv("PROBING_PAGE");
    bool root = strcmp(path, "/") == 0;

    /* Clients that do not accept HTML get the list of resources. */
    if (!(root && strstr(header(c, "Accept"), "text/html")) && strncmp(path, "/assets/", 8) != 0)
        return 0;
    if (folder && *folder)
        return send_from_disk(c, folder, path, ret);
    for (const struct page_file *f = page_files; f->path; f++)
        if (strcmp(f->path, path) == 0) {
            *ret = send_embedded(c, f);
            return 1;
        }
    return 0;
}
