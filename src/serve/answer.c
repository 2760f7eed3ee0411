/* answer: see answer.h. */
#include "serve/answer.h"

#include "base/json_write.h"
#include "serve/routes.h"

#include <microhttpd.h>
#include <string.h>

enum MHD_Result pb_answer(struct MHD_Connection *c, unsigned status, struct MHD_Response *response,
                          const char *type)
{
    static const char *const headers[][2] = {
        {"Cache-Control", "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
    };

    if (!response)
        return MHD_NO;
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++)
        MHD_add_response_header(response, headers[i][0], headers[i][1]);
    /* Pictures and HTML profiles have scripts: these run in a sandbox that cannot send requests to us. */
    bool picture = type && (strncmp(type, "image/svg", 9) == 0 || strncmp(type, "text/html", 9) == 0);
    MHD_add_response_header(response, "Content-Security-Policy",
                            picture ? "default-src 'none'; script-src 'unsafe-inline'; style-src "
                                      "'unsafe-inline'; sandbox allow-scripts"
                                    : "default-src 'none'; frame-ancestors 'none'; sandbox");
    if (type)
        MHD_add_response_header(response, "Content-Type", type);
    if (status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    enum MHD_Result r = MHD_queue_response(c, status, response);
    MHD_destroy_response(response);
    return r;
}

/* The word for an error in it. */
static const char *answer_code(unsigned status)
{
    static const struct {
        unsigned status;
        const char *code;
    } codes[] = {{400, "bad_request"}, {401, "no_token"}, {403, "forbidden"},  {404, "not_found"},
                 {405, "bad_method"},  {413, "too_long"}, {421, "wrong_host"}, {422, "failed"},
                 {503, "busy"},        {504, "late"}};

    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (codes[i].status == status)
            return codes[i].code;
    return "error";
}

void pb_answer_put_error(FILE *out, const char *code, const char *message, size_t length, bool retryable)
{
    struct pb_json_writer w = {.out = out, .tight = true};

    pb_json_open(&w, NULL, '{');
    pb_json_open(&w, "error", '{');
    pb_json_put_text(&w, "code", code);
    pb_json_put_bytes(&w, "message", message, length);
    pb_json_put_bool(&w, "retryable", retryable);
    pb_json_close(&w);
    pb_json_close(&w);
}

enum MHD_Result pb_answer_error(struct MHD_Connection *c, unsigned status, const char *message,
                                const char *allowed)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return MHD_NO;
    pb_answer_put_error(out, answer_code(status), message, strlen(message), status == 503 || status == 504);
    putc('\n', out);
    fclose(out);
    struct MHD_Response *response = MHD_create_response_from_buffer(size, text, MHD_RESPMEM_MUST_FREE);
    if (response && allowed)
        MHD_add_response_header(response, "Allow", allowed);
    return pb_answer(c, status, response, "application/json");
}

/* Escapes XML. Control characters and bytes beyond ASCII, which may be invalid UTF-8, become '?'. */
static void put_xml(FILE *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strchr("<>&", text[i]))
            fprintf(out, "&#%d;", text[i]);
        else
            putc(text[i] >= ' ' && text[i] < 0x7f ? text[i] : '?', out);
}

enum MHD_Result pb_answer_picture_of_error(struct MHD_Connection *c, unsigned status, const char *message)
{
    enum { LINE = 100, HEIGHT = 22 };
    char *text = NULL;
    size_t size = 0, y = 2 * HEIGHT;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return MHD_NO;
    fprintf(out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
            "width=\"900\" height=\"%zu\" font-family=\"monospace\" font-size=\"14\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"10\" y=\"%d\">error %u (%s)</text>\n",
            (strlen(message) / (LINE / 2) + 3) * HEIGHT, HEIGHT, status, answer_code(status));
    for (size_t n; *message; message += n + (message[n] == ' '), y += HEIGHT) {
        n = strnlen(message, LINE);
        const char *space = message[n] ? memrchr(message, ' ', n) : NULL;
        n = space && space - message > LINE / 2 ? (size_t)(space - message) : n;
        fprintf(out, "<text x=\"10\" y=\"%zu\">", y);
        put_xml(out, message, n);
        fputs("</text>\n", out);
    }
    fputs("</svg>\n", out);
    fclose(out);
    return pb_answer(c, status, MHD_create_response_from_buffer(size, text, MHD_RESPMEM_MUST_FREE),
                     "image/svg+xml");
}

/* By ?format=svg or by Accept. curl and browsers accept anything and get the picture; a client without
 * Accept gets JSON. */
bool pb_answer_is_picture(struct MHD_Connection *c, const struct pb_route *route)
{
    const char *format = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "format"),
               *accept = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Accept");

    if (!route || !route->forms || strcmp(route->forms->name, "svg") != 0)
        return false;
    if (format || !accept)
        return format && strcmp(format, "svg") == 0;
    return !strstr(accept, "json") && (strstr(accept, "image/svg") || strstr(accept, "*/*"));
}

enum MHD_Result pb_answer_refusal(struct MHD_Connection *c, const struct pb_offer *o, const char *method,
                                  const char *path, unsigned status, const char *why)
{
    char variable[PB_ROUTE_VARIABLE], allowed[64];

    if (pb_answer_is_picture(c, pb_route_find(method, path, o, variable, allowed)))
        return pb_answer_picture_of_error(c, status, why);
    return pb_answer_error(c, status, why, NULL);
}

struct MHD_Response *pb_answer_written(void (*write_it)(FILE *out, const struct pb_offer *o),
                                       const struct pb_offer *o)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    write_it(out, o);
    fclose(out);
    return MHD_create_response_from_buffer(size, text, MHD_RESPMEM_MUST_FREE);
}
