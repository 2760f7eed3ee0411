/* here: which lines of Python the calling thread is executing, found without running Python code and without
 * an object being made: for code that stands inside of Python's own allocator, where neither is possible.
 *
 * Up to 3.10 frames are objects; later ones are structures that are read by layout (pylayout.h), which is
 * compared with what Python's API says before it is first used. */
#pragma once

#include "agent/python/python.h"

struct pb_here {
    const struct pb_python *py;
    void *frame; /* NULL at the end */
    int left;
};

/* Whether the frames of this build have the layout that we expect: 1 yes. Call it once, with the GIL, in a
 * thread of ours, since it runs a line of Python; call the other functions only after it returned 1. */
int pb_here_is_known(const struct pb_python *py);

/* The innermost frame of this thread. 1: there may be some. 0: the thread does not hold the main
 * interpreter's GIL, whatever it is allowed to: nothing of Python's may be touched. */
int pb_here_begin(const struct pb_python *py, struct pb_here *ret);

/* The next function outwards: its code, borrowed, and where in it, for pb_here_line. 0: there is none. */
int pb_here_next(struct pb_here *here, pb_pyobject **code, int *at);
int pb_here_line(const struct pb_python *py, pb_pyobject *code, int at);

/* A text of a code object, borrowed from it; "" where it cannot be had. An exception that is set stays. */
enum pb_here_text { PB_HERE_NAME, PB_HERE_FILE };
const char *pb_here_text(const struct pb_python *py, pb_pyobject *code, enum pb_here_text which,
                         size_t *size);
