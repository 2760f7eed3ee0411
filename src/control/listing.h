/* listing: a directory as the kernel lists it (SYS_getdents64), for code in the target. opendir would take
 * the host's heap: glibc reserves one of 64 MB for the thread that asks first. */
#pragma once

#include <stdint.h>

struct pb_listed { /* linux_dirent64 */
    uint64_t inode;
    int64_t next;
    uint16_t size; /* up to the one after it */
    uint8_t type;
    char name[];
};
