/* crash_columns: the columns of python.exceptions and python.crash_frames (`probing catch`), defined once:
 * the agent and its Python part write them, and SQL knows them before the first row. Each is X(name, type,
 * comment); struct pb_column is in table/arena.h. */
#pragma once

#define PB_EXCEPTIONS_NAME  "python.exceptions"
#define PB_EXCEPTIONS_ABOUT "uncaught exceptions and fatal signals (probing catch)"
#define PB_EXCEPTIONS_COLUMNS(X)                                                                             \
    X("timestamp", PB_TIMESTAMP, "when the row was appended, UTC")                                           \
    X("id", PB_I64, "the same as in python.crash_frames")                                                    \
    X("kind", PB_STRING, "exception, signal, or survived: the program went on after that signal")            \
    X("type", PB_STRING, "class of the exception, name of the signal")                                       \
    X("message", PB_STRING, "text of the exception, what the signal was for")                                \
    X("thread_id", PB_I64, "tid")                                                                            \
    X("thread", PB_STRING, "its name")                                                                       \
    X("function", PB_STRING, "where it was raised")                                                          \
    X("file", PB_STRING, "of that function")                                                                 \
    X("line", PB_I32, "in that file")                                                                        \
    X("traceback", PB_STRING, "as Python prints it; of a signal, the stack")

/* The columns for the frames of all threads at an event. The arguments describe its id and the column that
 * marks one thread. */
#define PB_SCENE_COLUMNS(X, about_id, about_thread, marked, about_marked)                                    \
    X("timestamp", PB_TIMESTAMP, "when the row was appended, UTC")                                           \
    X("id", PB_I64, about_id)                                                                                \
    X("thread_id", PB_I64, about_thread)                                                                     \
    X("thread", PB_STRING, "its name")                                                                       \
    X(marked, PB_BOOL, about_marked)                                                                         \
    X("depth", PB_I32, "0: the innermost")                                                                   \
    X("language", PB_STRING, "python or native")                                                             \
    X("function", PB_STRING, "its name")                                                                     \
    X("file", PB_STRING, "of native code, the library where no source is known")                             \
    X("line", PB_I32, "in that file; NULL: not known")                                                       \
    X("locals", PB_STRING, "name = value, a line each")

#define PB_CRASH_FRAMES_NAME  "python.crash_frames"
#define PB_CRASH_FRAMES_ABOUT "the stacks of all threads at each of python.exceptions"
#define PB_CRASH_FRAMES_COLUMNS(X)                                                                           \
    PB_SCENE_COLUMNS(X, "the same as in python.exceptions", "tid; NULL: not known", "failed",                \
                     "whether this is the thread that failed")

#define PB_HANG_FRAMES_NAME  "python.hang_frames"
#define PB_HANG_FRAMES_ABOUT "the stacks of all threads at each hang of python.alerts"
#define PB_HANG_FRAMES_COLUMNS(X)                                                                            \
    PB_SCENE_COLUMNS(X, "of the hang: the same for all of its frames", "tid", "stepping",                    \
                     "whether this is the thread that steps")

#define PB_CRASH_COLUMN(name, type, comment) {name, type, 0, NULL, comment},
