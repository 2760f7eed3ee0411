/* library_child: the child's end of library.h's socket, and the messages on it. */
#pragma once

#include <stdint.h>

struct pb_library_question {
    char name[4096];
};

struct pb_library_answer {
    uint32_t found;
    char text[16384];
};

/* Answers until the other end is closed. */
void pb_library_serve(int fd);
