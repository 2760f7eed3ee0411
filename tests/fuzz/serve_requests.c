/* Messages of the Model Context Protocol: any bytes. */
#include "serve/mcp.h"
#include "serve/routes.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_message(const char *body, size_t size)
{
    const struct pb_offer offer = {.target = size % 2 ? "1" : NULL};
    const struct pb_mcp_request request = {
        .body = body, .length = size, .changes = true, .offer = &offer, .program = "probing"};
    struct pb_mcp_reply reply;

    if (pb_mcp_take(&request, &reply) < 0)
        return;
    /* A command consists only of known words: no part of a message becomes an option. */
    for (size_t i = 1; i < reply.words.n && strcmp(reply.words.at[i], "--") != 0; i++)
        if (strcmp(reply.words.at[i], "-t") == 0)
            i++; /* its value, whatever that is */
        else if (reply.words.at[i][0] == '-' && reply.words.at[i][1] && reply.words.at[i][1] != '-')
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
