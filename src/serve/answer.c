/* answer: see answer.h. */
#include "serve/answer.h"

#include "print/records.h"

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
    /* A picture or a page of a profile has scripts of its own: it runs them in a place from which nothing
     * here can be asked. */
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

const char *pb_answer_code(unsigned status)
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

enum MHD_Result pb_answer_error(struct MHD_Connection *c, unsigned status, const char *message,
                                const char *allowed)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return MHD_NO;
    fprintf(out, "{\"error\":{\"code\":\"%s\",\"message\":", pb_answer_code(status));
    pb_put_json(out, message, strlen(message));
    fprintf(out, ",\"retryable\":%s}}\n", status == 503 || status == 504 ? "true" : "false");
    fclose(out);
    struct MHD_Response *response = MHD_create_response_from_buffer(size, text, MHD_RESPMEM_MUST_FREE);
    if (response && allowed)
        MHD_add_response_header(response, "Allow", allowed);
    return pb_answer(c, status, response, "application/json");
}

/* A text that a function writes. */
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
