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
    unsigned limit_ms; /* a held thread goes on after this long without input of a client */
};

/* Turns catch on, or changes its options. Prints the address of the failing frame. */
int pb_catch_start(const struct pb_call *call, const struct pb_catch *how, struct pb_err *err);
int pb_catch_stop(const struct pb_call *call, struct pb_err *err);
