/* python: CPython's C API, found at run time in whatever process this is.
 *
 * The agent links no libpython: the functions are looked up by name, the same set for every version from 3.6
 * on. */
#pragma once

#include <stddef.h>

typedef struct pb_pyobject pb_pyobject; /* PyObject: only ever passed around */

/* return type, name in struct, name of the symbol, parameters */
#define PB_PY_FUNCTIONS(X)                                                                                   \
    X(int, is_initialized, Py_IsInitialized, (void))                                                         \
    X(const char *, get_version, Py_GetVersion, (void))                                                      \
    X(int, gil_ensure, PyGILState_Ensure, (void))                                                            \
    X(void, gil_release, PyGILState_Release, (int))                                                          \
    X(void *, save_thread, PyEval_SaveThread, (void))                                                        \
    X(void, restore_thread, PyEval_RestoreThread, (void *))                                                  \
    X(unsigned long, thread_ident, PyThread_get_thread_ident, (void))                                        \
    X(int, set_async_exc, PyThreadState_SetAsyncExc, (unsigned long, pb_pyobject *))                         \
    X(int, add_pending_call, Py_AddPendingCall, (int (*)(void *), void *))                                   \
    X(void, incref, Py_IncRef, (pb_pyobject *))                                                              \
    X(void, decref, Py_DecRef, (pb_pyobject *))                                                              \
    X(void, err_clear, PyErr_Clear, (void))                                                                  \
    X(void, err_fetch, PyErr_Fetch, (pb_pyobject **, pb_pyobject **, pb_pyobject **))                        \
    X(void, err_normalize, PyErr_NormalizeException, (pb_pyobject **, pb_pyobject **, pb_pyobject **))       \
    X(pb_pyobject *, tuple_get, PyTuple_GetItem, (pb_pyobject *, long))                                      \
    X(pb_pyobject *, str_of, PyObject_Str, (pb_pyobject *))                                                  \
    X(const char *, utf8_of, PyUnicode_AsUTF8, (pb_pyobject *))                                              \
    X(pb_pyobject *, dict_new, PyDict_New, (void))                                                           \
    X(int, dict_set, PyDict_SetItemString, (pb_pyobject *, const char *, pb_pyobject *))                     \
    X(pb_pyobject *, dict_get, PyDict_GetItemString, (pb_pyobject *, const char *))                          \
    X(pb_pyobject *, builtins, PyEval_GetBuiltins, (void))                                                   \
    X(pb_pyobject *, compile, Py_CompileString, (const char *, const char *, int))                           \
    X(pb_pyobject *, eval_code, PyEval_EvalCode, (pb_pyobject *, pb_pyobject *, pb_pyobject *))              \
    X(pb_pyobject *, call, PyObject_CallFunctionObjArgs, (pb_pyobject *, ...))                               \
    X(pb_pyobject *, cfunction, PyCFunction_NewEx, (void *, pb_pyobject *, pb_pyobject *))                   \
    X(pb_pyobject *, bytes_from, PyBytes_FromStringAndSize, (const char *, long))                            \
    X(int, bytes_as, PyBytes_AsStringAndSize, (pb_pyobject *, char **, long *))                              \
    X(pb_pyobject *, str_from, PyUnicode_DecodeFSDefaultAndSize, (const char *, long))                       \
    X(pb_pyobject *, int_from, PyLong_FromUnsignedLong, (unsigned long))                                     \
    X(pb_pyobject *, int_signed, PyLong_FromLong, (long))                                                    \
    X(long, int_as, PyLong_AsLong, (pb_pyobject *))                                                          \
    X(pb_pyobject *, bool_from, PyBool_FromLong, (long))                                                     \
    X(void *, current_tstate_checked, PyThreadState_Get, (void))                                             \
    X(pb_pyobject *, eval_frame, PyEval_GetFrame, (void))                                                    \
    X(pb_pyobject *, get_attr, PyObject_GetAttrString, (pb_pyobject *, const char *))                        \
    X(pb_pyobject *, get_item, PyObject_GetItem, (pb_pyobject *, pb_pyobject *))                             \
    X(pb_pyobject *, mapping_keys, PyMapping_Keys, (pb_pyobject *))                                          \
    X(long, size_of, PyObject_Size, (pb_pyobject *))                                                         \
    X(int, str_compare, PyUnicode_Compare, (pb_pyobject *, pb_pyobject *))                                   \
    X(pb_pyobject *, list_new, PyList_New, (long))                                                           \
    X(int, list_append, PyList_Append, (pb_pyobject *, pb_pyobject *))                                       \
    X(int, list_set_slice, PyList_SetSlice, (pb_pyobject *, long, long, pb_pyobject *))                      \
    X(pb_pyobject *, dict_get_object, PyDict_GetItem, (pb_pyobject *, pb_pyobject *))                        \
    X(int, dict_set_object, PyDict_SetItem, (pb_pyobject *, pb_pyobject *, pb_pyobject *))                   \
    X(int, dict_del, PyDict_DelItemString, (pb_pyobject *, const char *))                                    \
    X(void, err_set_object, PyErr_SetObject, (pb_pyobject *, pb_pyobject *))                                 \
    X(void, err_restore, PyErr_Restore, (pb_pyobject *, pb_pyobject *, pb_pyobject *))

/* The same for functions that not every version has, with the versions (3.x) that are asked for them: NULL in
 * others. Nothing is asked for in vain, since a failed dlsym allocates: for the first malloc of a thread
 * glibc reserves 64 MB of address space. */
#define PB_PY_OPTIONAL(X)                                                                                    \
    X(int, is_finalizing, Py_IsFinalizing, (void), 13, 99)                                                   \
    X(int, is_finalizing_private, _Py_IsFinalizing, (void), 7, 12)                                           \
    X(int, threads_initialized, PyEval_ThreadsInitialized, (void), 0, 6)                                     \
    X(void, init_threads, PyEval_InitThreads, (void), 0, 6)                                                  \
    X(void *, current_tstate, _PyThreadState_UncheckedGet, (void), 0, 11)                                    \
    X(void *, main_interpreter, PyInterpreterState_Main, (void), 7, 99)                                      \
    X(void *, first_interpreter, PyInterpreterState_Head, (void), 0, 6)                                      \
    X(void *, next_interpreter, PyInterpreterState_Next, (void *), 0, 6)                                     \
    X(void *, first_tstate, PyInterpreterState_ThreadHead, (void *), 0, 99)                                  \
    X(void *, next_tstate, PyThreadState_Next, (void *), 0, 99)                                              \
    X(pb_pyobject *, interpreter_dict, PyInterpreterState_GetDict, (void *), 8, 99)                          \
    X(pb_pyobject *, tstate_frame, PyThreadState_GetFrame, (void *), 13, 99)                                 \
    X(pb_pyobject *, frame_back, PyFrame_GetBack, (pb_pyobject *), 13, 99)                                   \
    X(pb_pyobject *, frame_code, PyFrame_GetCode, (pb_pyobject *), 13, 99)                                   \
    X(pb_pyobject *, frame_locals, PyFrame_GetLocals, (pb_pyobject *), 13, 99)                               \
    X(int, dict_get_reference, PyDict_GetItemRef, (pb_pyobject *, pb_pyobject *, pb_pyobject **), 13, 99)    \
    X(void, critical_begin, PyCriticalSection_Begin, (void *, pb_pyobject *), 13, 99)                        \
    X(void, critical_end, PyCriticalSection_End, (void *), 13, 99)

struct pb_python {
#define PB_PY_FIELD(ret, name, symbol, args, ...) ret(*name) args;
    PB_PY_FUNCTIONS(PB_PY_FIELD)
    PB_PY_OPTIONAL(PB_PY_FIELD)
#undef PB_PY_FIELD
    pb_pyobject **keyboard_interrupt, **key_error;
    pb_pyobject *none;
    const void *tuple_type, *cell_type;
    void **finalizing_tstate; /* 3.6 */
    int minor, micro;         /* of 3.minor.micro */
    int free_threaded;        /* built without the GIL, whether or not it uses one now */
};

/* The API of this process. 0; -ENOENT: there is no Python here; -ENOSYS: one that lacks a function we need
 * (*missing names it). Looks it up the first time, which may wait for the loader; from then on it does not
 * wait. Takes no lock of Python's. */
int pb_python_find(struct pb_python *ret, const char **missing);

/* What was found before, without looking: for threads that must not wait. -ENOENT: not looked for, or not
 * there. */
int pb_python_known(struct pb_python *ret);

/* 1 while Python code can run here; 0 before the interpreter is up or once it shuts down. */
int pb_python_usable(const struct pb_python *py);
