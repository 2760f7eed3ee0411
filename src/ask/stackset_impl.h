/* stackset_impl: the internals of a set, shared by stackset.c and stackset_wire.c only. */
#pragma once

#include "ask/stackset.h"
#include "base/intern.h"

#define NO_TEXT UINT32_MAX

struct set_frame {
    uint64_t id, address;
    uint32_t function, file, module; /* texts; NO_TEXT */
    uint32_t line;
    bool native;
};

struct set_member {
    uint32_t process, thread; /* texts */
    int32_t tid;
};

struct set_ranges {
    struct pb_set_range *at;
    size_t n, cap;
};

struct set_stack {
    uint64_t id;
    uint64_t threads, processes;
    size_t first_frame; /* in the set's list of frame numbers */
    uint32_t nframes;
    bool apart;
    struct set_ranges ranks;
    struct set_member members[PB_SET_NAMED];
    size_t nmembers;
};

/* What a list of texts, frames or stacks that came by the wire has for numbers in the set. */
struct set_hints {
    uint32_t *texts, *frames, *stacks;
    size_t ntexts, nframes, nstacks;
};

struct pb_stackset {
    struct pb_budget budget;
    struct pb_texts texts;
    struct pb_keys frame_keys, stack_keys; /* by identity; on a collision the next key */
    struct set_frame *frames;
    size_t nframes, frames_cap;
    uint32_t *numbers; /* the frames of all stacks, one stack after the other */
    size_t nnumbers, numbers_cap;
    struct set_stack *stacks;
    size_t nstacks, stacks_cap;
    uint32_t *order; /* rarest first; NULL: to be computed */
    size_t processes, threads, without;
    bool no_lines;
    struct set_hints last; /* of the set that was merged last */
};

/* The number of an equal text, frame or stack; added if there is none. */
int pb_stackset_put_text(struct pb_stackset *set, const char *text, uint32_t *ret);
int pb_stackset_put_frame(struct pb_stackset *set, struct set_frame f, uint32_t *ret);
int pb_stackset_put_stack(struct pb_stackset *set, const uint32_t *frames, uint32_t n, bool apart,
                          uint32_t *ret);
int pb_stackset_put_range(struct pb_stackset *set, struct set_ranges *to, struct pb_set_range range);
void pb_stackset_put_member(struct set_stack *to, struct set_member member);
bool pb_stackset_has_member(const struct set_stack *stack, uint32_t process);
/* Whether the frame or stack of that number is equal. */
bool pb_stackset_is_frame(const struct pb_stackset *set, uint32_t number, const struct set_frame *f);
bool pb_stackset_is_stack(const struct pb_stackset *set, uint32_t number, const uint32_t *frames, uint32_t n,
                          bool apart);
