/* expr: DWARF expressions as call frame information uses them (signal frames, the PLT, realigned stacks).
 *
 * Registers and memory come from the caller; the number of steps and the depth are bounded. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pb_expr_env {
    const uint64_t *reg;
    uint64_t known; /* a bit for each register */
    /* 8 bytes or fewer of the target's memory; negative errno where they are not in the copy. */
    int (*read)(void *arg, uint64_t addr, void *ret, size_t len);
    void *arg;
};

/* Runs code on a stack that holds *first, if that is not NULL. *ret: the top of the stack at its end.
 * -EBADMSG: not valid or not known; -ENODATA: it needs an unknown register; else the error of read. */
int pb_expr_run(const unsigned char *code, size_t len, const struct pb_expr_env *env, const uint64_t *first,
                uint64_t *ret);
