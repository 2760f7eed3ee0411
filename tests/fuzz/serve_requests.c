/* Messages of the Model Context Protocol: any bytes. */
#include "serve/mcp.h"

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *copy = malloc(size + 1);

    memcpy(copy, data, size);
    copy[size] = '\0';
    try_message(copy, size);
    free(copy);
    return 0;
}
