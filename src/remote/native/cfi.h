/* cfi: one entry of DWARF call frame information, and its rules for one program counter.
 *
 * No side effects: bytes in, rules out; nothing is allocated and nothing read from elsewhere. The bytes may
 * be anything: the work is bounded by their length. Knows .eh_frame and .debug_frame. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "remote/native/unwind.h"

struct pb_cursor;

/* The bytes of an entry and their address, to follow relative pointers and references. */
struct pb_cfi_bytes {
    const unsigned char *data;
    size_t len;
    uint64_t addr; /* of data[0], in the object's own addresses */
};

/* The head of an entry. */
struct pb_cfi_head {
    uint64_t body, end; /* offsets from its first byte; the identifying field is the first of the body */
    uint64_t cie;       /* of an FDE: the address of its CIE, in the same terms as bytes.addr */
    bool is_cie, is_end;
};

struct pb_cie {
    uint64_t code_align;
    int64_t data_align;
    unsigned ra;            /* the column of the return address */
    uint8_t encoding;       /* of addresses in its FDEs: DW_EH_PE_* */
    bool augmented, signal; /* 'z' and 'S' */
    struct pb_cfi_bytes program;
};

struct pb_fde {
    uint64_t start, end;
    struct pb_cfi_bytes program;
};

enum pb_rule {
    PB_RULE_SAME, /* not mentioned, or unchanged */
    PB_RULE_UNDEFINED,
    PB_RULE_AT,      /* saved at CFA + value */
    PB_RULE_IS,      /* its value is CFA + value */
    PB_RULE_REG,     /* it is in register value */
    PB_RULE_AT_EXPR, /* saved at an address given by an expression; value: its offset from pb_cfi_row.addr */
    PB_RULE_IS_EXPR,
};

/* How to get from a frame to its caller. Small, since thousands of them are cached. */
struct pb_cfi_row {
    uint64_t addr;   /* the base for expressions */
    int32_t cfa;     /* offset, or place of the expression */
    uint8_t cfa_reg; /* PB_CFA_EXPR: an expression */
    uint8_t ra;
    bool signal, negated; /* negated: the return address carries an authentication code (aarch64) */
    uint8_t rule[PB_NATIVE_REGS];
    int32_t value[PB_NATIVE_REGS];
};

enum { PB_CFA_EXPR = 0xff, PB_CFA_NONE = 0xfe };

/* A pointer as .eh_frame encodes it, at addr plus the consumed bytes. data_base: for DW_EH_PE_datarel.
 * Indirect and unknown encodings set bad. */
uint64_t pb_cfi_pointer(struct pb_cursor *c, uint8_t encoding, uint64_t addr, uint64_t data_base);

/* The head of the entry at the first byte of b, which may hold more or less than it. debug_frame: in that
 * dialect; section: address of the section's start, in the same terms. -EBADMSG: not valid. */
int pb_cfi_head(const struct pb_cfi_bytes *b, bool debug_frame, uint64_t section, struct pb_cfi_head *ret);

/* b is the whole entry. The results point into it. */
int pb_cie_parse(const struct pb_cfi_bytes *b, const struct pb_cfi_head *h, struct pb_cie *ret);
int pb_fde_parse(const struct pb_cfi_bytes *b, const struct pb_cfi_head *h, const struct pb_cie *cie,
                 struct pb_fde *ret);

/* The rules at pc. -ENOENT: pc is not in the FDE; -EBADMSG: not valid. */
int pb_cfi_run(const struct pb_cie *cie, const struct pb_fde *fde, uint64_t pc, struct pb_cfi_row *ret);
