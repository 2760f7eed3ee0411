/* mcp: the Model Context Protocol. The tools of an assistant run commands of this program; the table of
 * routes has them (routes.h).
 *
 * One POST a message, no sessions: `initialize` (2025-11-25) and `server/discover` (2026-07-28) are both
 * answered. Tools that change a process need serve --mcp-changes. Any thread. */
#pragma once

#include "serve/command_words.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct pb_offer;
struct pb_route;

struct pb_mcp_request {
    const char *body;
    size_t length;
    const char *version, *method, *name; /* headers that must agree with the body; NULL: not sent */
    bool changes;                        /* tools that change a process are offered */
    const struct pb_offer *offer;        /* has the target of calls that name none */
    const char *program;
};

struct pb_mcp_reply {
    unsigned status; /* of HTTP; 0: words is a command to run, whose output pb_mcp_put_result wraps */
    char *text;      /* the answer, on the heap; NULL: none */
    char *id;        /* of the message, as JSON */
    struct pb_words words;
    const char *file; /* that the command writes, in place of what it prints; NULL: none */
    char *input;      /* the body of the tool's route, on the heap; NULL: none */
    const struct pb_route *route;
};

/* -ENOMEM. */
int pb_mcp_take(const struct pb_mcp_request *request, struct pb_mcp_reply *ret);
void pb_mcp_reply_done(struct pb_mcp_reply *reply);

/* Writes the output of a tool as the answer to the message with that id. */
void pb_mcp_put_result(FILE *out, const char *id, bool failed, const char *text, size_t length);
