/* name_texts: text kept once for as long as its owner lives, in bounded memory. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pb_names {
    struct pb_name **slot;
    size_t nslots, n;
    struct pb_name_block *blocks;
    size_t bytes, limit; /* limit 0: none */
};

/* The one copy of this text. NULL: no memory, or the limit is reached. */
const char *pb_names_keep(struct pb_names *names, const char *text);

/* The same for part of a text. */
const char *pb_names_keep_len(struct pb_names *names, const char *text, size_t len);
void pb_names_done(struct pb_names *names);
