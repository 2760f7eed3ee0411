/* interpreter: see interpreter.h. The names are of CPython 3.6 to 3.15, and of glibc and musl. */
#include "profile/interpreter.h"

#include <stddef.h>
#include <string.h>

/* A star at the end matches anything. Suffixes of compilers (".isra.0", ".cold") are ignored. */
static const char *const names[] = {
    /* The loop. */
    "_PyEval_*",
    "PyEval_EvalCode*",
    "PyEval_EvalFrame*",
    "function_code_fastcall",
    "fast_function",
    "_PyFunction_FastCall*",
    "_PyFunction_Vectorcall",
    "call_function",
    "do_call_core",
    "gen_send_ex*",
    "gen_iternext",
    /* Calls through objects. */
    "PyObject_Call*",
    "PyObject_Vectorcall*",
    "_PyObject_Call*",
    "_PyObject_FastCall*",
    "_PyObject_Vectorcall*",
    "_PyObject_MakeTpCall",
    "PyVectorcall_*",
    "_PyVectorcall_*",
    "_PyCFunction_*",
    "_PyMethodDef_*",
    "_PyMethodDescr_*",
    "_PyStack_*",
    "method_vectorcall*",
    "method_call",
    "vectorcall_*",
    "cfunction_call*",
    "cfunction_vectorcall_*",
    "object_vacall",
    "slot_tp_call",
    /* How a program begins. */
    "pymain_*",
    "Py_RunMain",
    "Py_BytesMain",
    "Py_Main",
    "_Py_UnixMain",
    "PyRun_*",
    "_PyRun_*",
    "pyrun_*",
    "run_mod",
    "run_eval_code_obj",
    "_start",
    "_start_c",
    "__libc_start_*",
    "libc_start_main_*",
    "generic_start_main",
    /* How a thread begins. */
    "pythread_wrapper",
    "thread_run",
    "t_bootstrap",
    "start_thread",
    "clone",
    "clone3",
    "__clone",
    "__clone3",
};

bool pb_interpreter_function(const char *name)
{
    size_t len = strcspn(name, ".");

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t n = strlen(names[i]);
        bool any = names[i][n - 1] == '*';
        n -= any;
        if (len >= n && (any || len == n) && strncmp(name, names[i], n) == 0)
            return true;
    }
    return false;
}
