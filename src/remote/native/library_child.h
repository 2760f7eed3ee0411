/* library_child: the other end of library.h's socket, and what is said on it. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

enum { PB_LIBRARY_DEMANGLE = 1, PB_LIBRARY_LINES };

struct pb_library_question {
    uint32_t kind;
    int32_t fd; /* of the asking process */
    uint64_t addr;
    char name[4096];
};

struct pb_library_answer {
    uint32_t count;
    char text[16384];
};

/* Answers until the other end is closed. */
void pb_library_serve(int fd, pid_t parent);
