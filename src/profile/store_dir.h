/* store_dir: the run directory of a recording; internal to the store. */
#pragma once

#include <stdint.h>

#include "profile/store.h"

struct pb_store_dir {
    int fd, about_fd;
    char path[256];
    uint64_t bound; /* bytes that the place has room for */
};

/* In PROBING_DIR where that is set, else in shared memory where there is room, /tmp, /var/tmp. */
int pb_store_dir_make(const struct pb_store_options *options, struct pb_store_dir *ret, struct pb_err *err);
void pb_store_dir_done(struct pb_store_dir *d);
