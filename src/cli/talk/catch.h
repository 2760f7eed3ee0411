/* catch: what `probing catch` and `probing inject -c` do. */
#pragma once

#include "cli/talk/address.h"

struct pb_call;
struct pb_err;

#define PB_CATCH_LIMIT_MS (600u * 1000)

struct pb_catch {
    struct pb_address address; /* where the failing frame is served */
    const char *token;         /* "": none */
    bool prompt;
    unsigned limit_ms; /* of a prompt without a word of a client */
};

/* Turns it on, or to these options. Prints where the frame is going to be served. */
int pb_catch_start(const struct pb_call *call, const struct pb_catch *how, struct pb_err *err);
int pb_catch_stop(const struct pb_call *call, struct pb_err *err);
