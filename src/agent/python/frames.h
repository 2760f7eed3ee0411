/* frames: the local variables of the functions that the program's main thread is executing, read without
 * changing anything.
 *
 * `frame.f_locals` writes into the frame up to 3.12: it replaces what exec() and locals() left there. So the
 * slots of the frames are read directly. The caller holds the GIL and is called from Python code; nothing
 * here runs Python code or releases the GIL, so no frame changes meanwhile. No frame is kept, and of the
 * values only the requested one. */
#pragma once

#include "agent/python/python.h"

/* The value of a name in the innermost function of user code that has it: a new reference, or NULL without an
 * exception. User code is neither below the folder of the standard library (stdlib; "": not known) nor an
 * installed package; if the thread executes none, its innermost function counts. marker: an object that the
 * first argument of the calling Python function refers to, to check that the layout fits. */
pb_pyobject *pb_frames_local(const struct pb_python *py, pb_pyobject *name, const char *stdlib,
                             pb_pyobject *marker);

/* A new list of all such names, possibly more than once; NULL with an exception. */
pb_pyobject *pb_frames_names(const struct pb_python *py, const char *stdlib, pb_pyobject *marker);

/* The current frames of the threads of the main interpreter. A new list, alternating: each thread's ident
 * (the pthread handle) and its innermost frame or None. NULL with an exception. Empty if this build's thread
 * states cannot be read: without a GIL they change meanwhile. marker as above. */
pb_pyobject *pb_frames_threads(const struct pb_python *py, pb_pyobject *marker);

/* A new list of the frames of one thread, innermost first; empty if there is no such thread. */
pb_pyobject *pb_frames_stack(const struct pb_python *py, unsigned long ident, pb_pyobject *marker);

/* The locals of a frame of any thread, in a new dict; up to 3.12, and for functions only. NULL without an
 * exception: they cannot be read. */
pb_pyobject *pb_frames_locals_of(const struct pb_python *py, pb_pyobject *frame, pb_pyobject *marker);

/* Whether code of that file is Python's own or an installed package's; stdlib as above. */
int pb_frames_is_library(const char *file, const char *stdlib);

/* Python's ident of the main thread (the pthread handle), 0 if it cannot be read. */
unsigned long pb_frames_main_ident(const struct pb_python *py);

/* The thread state of a thread of the main interpreter; NULL: there is none, or it cannot be read. Valid
 * until the caller releases the GIL. */
void *pb_frames_tstate(const struct pb_python *py, unsigned long ident);
