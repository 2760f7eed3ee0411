/* listing: reads a directory by SYS_getdents64, for code in the target. opendir would use the host's heap:
 * glibc reserves an arena of 64 MB for a thread's first allocation. */
#pragma once

#include <stdint.h>

struct pb_listed { /* linux_dirent64 */
    uint64_t inode;
    int64_t next;
    uint16_t size; /* of this entry: the next one follows it */
    uint8_t type;
    char name[];
};
