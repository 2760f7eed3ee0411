/* login: see service.h. Redirects the link with the token to the same address without it, and sets a cookie:
 * the token shows neither in the browser's history nor on a screenshot. */
#include "serve/answer.h"
#include "serve/service.h"

#include <stdlib.h>
#include <string.h>

/* Percent-encodes all characters but the unreserved ones and those in `allowed`. */
static void put_escaped(FILE *out, const char *text, const char *allowed)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";

    for (; *text; text++)
        if (strchr(plain, *text) || strchr(allowed, *text))
            putc(*text, out);
        else
            fprintf(out, "%%%02X", (unsigned char)*text);
}

struct login_arguments {
    FILE *out;
    char before;
};

static enum MHD_Result put_argument(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct login_arguments *a = cls;

    (void)kind;
    if (strcmp(key, "token") == 0)
        return MHD_YES;
    putc(a->before, a->out);
    a->before = '&';
    put_escaped(a->out, key, "");
    if (value) {
        putc('=', a->out);
        put_escaped(a->out, value, "");
    }
    return MHD_YES;
}

enum MHD_Result pb_login(struct MHD_Connection *c, const struct pb_gate *gate, const char *path,
                         const char *host, bool tls)
{
    char *location = NULL, name[32], cookie[PB_GATE_TOKEN_SIZE + 96];
    size_t size = 0;
    FILE *out = open_memstream(&location, &size);

    if (!out)
        return MHD_NO;
    /* "//HOST" would redirect to another host. */
    putc('/', out);
    put_escaped(out, path + strspn(path, "/"), "/");
    MHD_get_connection_values(c, MHD_GET_ARGUMENT_KIND, put_argument, &(struct login_arguments){out, '?'});
    fclose(out);
    pb_gate_cookie_name(host, name);
    snprintf(cookie, sizeof(cookie), "%s=%s; Path=/; HttpOnly; SameSite=Strict%s", name, gate->token,
             tls ? "; Secure" : "");
    struct MHD_Response *response = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    if (response) {
        MHD_add_response_header(response, "Location", location);
        MHD_add_response_header(response, "Set-Cookie", cookie);
    }
    free(location);
    return pb_answer(c, 303, response, NULL);
}
