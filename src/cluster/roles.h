/* roles: where a rank stands in the parallel groups of its job: tp=1, pp=3, dp=0, ...
 *
 * Read from a rank's environment, by the process itself, or computed from a layout ("tp=4,pp=2,dp=*"): the
 * first named is the one that changes fastest from rank to rank, as Megatron and a device mesh count. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pb_err;

enum { PB_ROLES = 6, PB_ROLE_NAME = 16, PB_ROLES_TEXT = 192 };

struct pb_role {
    char name[PB_ROLE_NAME]; /* small letters, digits and "_" */
    uint32_t value;
};

struct pb_roles {
    struct pb_role at[PB_ROLES];
    size_t n;
};

/* "tp=1,pp=3"; "" gives none. -EINVAL. */
int pb_roles_parse(const char *text, struct pb_roles *ret);
/* The same text. */
void pb_roles_format(const struct pb_roles *r, char ret[PB_ROLES_TEXT]);
/* -EEXIST: it has that one; -ENOSPC; -EINVAL. */
int pb_roles_add(struct pb_roles *r, const char *name, uint32_t value);
/* -1: it has no such role. */
int64_t pb_roles_get(const struct pb_roles *r, const char *name);

/* The roles of a rank by a layout of sizes. One size may be "*": the rest of the world. -EINVAL: no layout,
 * or it does not divide the world. */
int pb_roles_compute(const char *layout, uint32_t world, uint32_t rank, struct pb_roles *ret,
                     struct pb_err *err);
