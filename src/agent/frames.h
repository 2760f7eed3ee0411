/* frames: the local variables of the functions that the program's main thread is executing, read without a
 * trace.
 *
 * `frame.f_locals` writes into the frame up to 3.12: it replaces what exec() and locals() left there. So the
 * slots of the frames are read as they are. The caller holds the GIL and is called from Python code; nothing
 * here runs Python code or lets go of the GIL, so that every frame stays what it is meanwhile. Nothing is
 * kept: no frame, and of the values only the one that was asked for. */
#pragma once

#include "agent/python.h"

/* The value of a name: a new reference to what the innermost function of user code has under it, NULL without
 * an exception where none has. User code is what is neither below the folder of the standard library (stdlib;
 * "" for not known) nor an installed package; where the thread executes none, its innermost function counts.
 * marker: an object that the first argument of the calling Python function refers to, for the check that the
 * layout fits. */
pb_pyobject *pb_frames_local(const struct pb_python *py, pb_pyobject *name, const char *stdlib,
                             pb_pyobject *marker);

/* A new list of all such names, possibly more than once; NULL with an exception. */
pb_pyobject *pb_frames_names(const struct pb_python *py, const char *stdlib, pb_pyobject *marker);

/* What the threads of the main interpreter execute. A new list: of each thread its name (ident, the pthread
 * handle) and its innermost frame or None, in turns. NULL with an exception. Empty where this build's thread
 * states cannot be read: without a GIL they do not stand still. marker as above. */
pb_pyobject *pb_frames_threads(const struct pb_python *py, pb_pyobject *marker);

/* A new list of the frames of one thread, innermost first; empty for one that is not there. */
pb_pyobject *pb_frames_stack(const struct pb_python *py, unsigned long ident, pb_pyobject *marker);

/* The locals of a frame, of whatever thread, in a new dict; up to 3.12, and for functions alone. NULL without
 * an exception: they cannot be read. */
pb_pyobject *pb_frames_locals_of(const struct pb_python *py, pb_pyobject *frame, pb_pyobject *marker);

/* Python's name (the pthread handle) for the main thread, 0 where it cannot be read. */
unsigned long pb_frames_main_ident(const struct pb_python *py);

/* The thread state of a thread of the main interpreter; NULL: there is none, or it cannot be read. Valid
 * until the caller lets go of the GIL. */
void *pb_frames_tstate(const struct pb_python *py, unsigned long ident);
