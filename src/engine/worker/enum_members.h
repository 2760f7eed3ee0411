/* enum_members: a set of strings that becomes an ENUM.
 *
 * DuckDB groups and compares ENUMs as small integers, four times faster than strings. The members are sorted
 * by their bytes, so that they order as the strings do. */
#pragma once

#include "engine/worker/catalog.h"

struct pb_enum_member {
    const char *data;
    uint32_t length, order;
};

/* Zeroed: an empty set. */
struct pb_enum_members {
    struct pb_enum_member *at;
    uint32_t n, room;
    uint32_t *hash; /* twice the room: place + 1; 0: free */
};

#define PB_MAX_MEMBERS 65535 /* a place has 16 bits, and one value means none */

void pb_enum_members_clear(struct pb_enum_members *m);
void pb_enum_members_done(struct pb_enum_members *m);

/* The place of a string, added if new: its bytes must stay valid as long as the set. -E2BIG: no ENUM can hold
 * it (it has a NUL byte or is not UTF-8), or there are too many; -ENOMEM. */
int pb_enum_members_place(struct pb_enum_members *m, const struct pb_text *text, uint32_t *ret);

/* Sorts the members and creates the type; to[place]: the index in it. */
int pb_enum_members_make_type(struct pb_enum_members *m, struct pb_cat_enum *ret, uint32_t *to);
