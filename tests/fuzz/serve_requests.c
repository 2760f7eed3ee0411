/* Bodies of requests to the service, and answers of commands that are turned into others: any bytes. */
#include "base/err.h"
#include "serve/mcp.h"
#include "serve/original.h"
#include "serve/websocket.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_message(const char *body, size_t size)
{
    const struct pb_mcp_request request = {
        .body = body, .length = size, .changes = true, .program = "probing", .target = size % 2 ? "1" : NULL};
    struct pb_mcp_reply reply;

    if (pb_mcp_take(&request, &reply) < 0)
        return;
    /* A command consists only of known words: no part of a message becomes an option. */
    for (size_t i = 1; i < reply.words.n && strcmp(reply.words.at[i], "--") != 0; i++)
        if (reply.words.at[i][0] == '-' && strncmp(reply.words.at[i], "--", 2) != 0)
            abort();
    pb_mcp_reply_done(&reply);
}

static void try_frame(const char *bytes, size_t size)
{
    struct pb_websocket_frame f;
    char content[125];

    if (pb_websocket_parse((const unsigned char *)bytes, size, &f) <= 0)
        return;
    if (f.head > size || f.length >> 63 || (f.kind >= PB_WEBSOCKET_CLOSE && f.length > sizeof(content)))
        abort();
    memset(content, 0, sizeof(content));
    pb_websocket_unmask(&f, content, sizeof(content));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool (*const converts[])(const char *, size_t, const char *, FILE *) = {
        pb_original_message,   pb_original_dto,   pb_original_cluster,  pb_original_nodes, pb_original_first,
        pb_original_callstack, pb_original_steps, pb_original_reported, pb_original_events};
    char *copy = malloc(size + 1), *sql = NULL;
    struct pb_err err = {0};

    memcpy(copy, data, size);
    copy[size] = '\0';
    if (pb_original_sql(copy, size, &sql, &err) == 0)
        free(sql);
    pb_original_report(copy, size, &err);
    try_message(copy, size);
    try_frame(copy, size);
    for (size_t i = 0; i < sizeof(converts) / sizeof(converts[0]); i++) {
        char *text = NULL;
        size_t length = 0;
        FILE *out = open_memstream(&text, &length);
        converts[i](copy, size, i % 2 ? "1" : NULL, out);
        fclose(out);
        free(text);
    }
    free(copy);
    return 0;
}
