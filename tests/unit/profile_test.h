/* profile_test: what the tests of profiles share: a profile that ends with its scope, and nodes made of
 * names. */
#pragma once

#include "base/cleanup.h"
#include "profile/profile.h"

#include "test.h"

static inline void profile_cleanup(struct pb_profile **p)
{
    pb_profile_free(*p);
}

static inline struct pb_profile *new_profile(size_t memory)
{
    struct pb_profile *p;
    assert_int_equal(pb_profile_new(memory, &p), 0);
    pb_profile_facts(p)->rate = 100;
    return p;
}

/* A Python function called by parent. */
static inline uint32_t add_call(struct pb_profile *p, uint32_t parent, const char *name, const char *file,
                                int line)
{
    return pb_profile_node(p, parent,
                           pb_profile_frame(p, pb_profile_function(p, PB_FRAME_PYTHON, name, file), line));
}
