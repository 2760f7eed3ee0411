/* python: CPython's C API, found at run time in whatever process this is.
 *
 * The agent links no libpython: the functions are looked up by name, the same set for every version from 3.6
 * on. */
#pragma once

#include <stddef.h>

typedef struct pb_pyobject pb_pyobject; /* PyObject: opaque */

typedef void (*pb_py_function)(void);

/* PyMethodDef, and PyType_Slot and PyType_Spec: parts of CPython's stable ABI, the same from 3.6 to 3.15. */
struct pb_py_method {
    const char *name;
    pb_py_function function;
    int flags;
    const char *doc;
};
struct pb_py_slot {
    int id;
    void *function;
};
struct pb_py_spec {
    const char *name;
    int size, item_size;
    unsigned flags;
    struct pb_py_slot *slots;
};

/* PyMemAllocatorEx: how one domain of Python's memory allocates, the same from 3.5 on. */
struct pb_py_allocator {
    void *ctx;
    void *(*malloc)(void *ctx, size_t size);
    void *(*calloc)(void *ctx, size_t count, size_t size);
    void *(*realloc)(void *ctx, void *block, size_t size);
    void (*free)(void *ctx, void *block);
};
enum { PB_PY_MEMORY_RAW, PB_PY_MEMORY_MEM, PB_PY_MEMORY_OBJECT };

/* How a function takes its arguments. FAST is (self, args, nargs, kwnames): pb_py_fast_flags. */
enum { PB_METH_VARARGS = 1, PB_METH_KEYWORDS = 2, PB_METH_NOARGS = 4, PB_METH_O = 8, PB_METH_FAST = 0x80 };

/* return type, name in struct, name of the symbol, parameters */
#define PB_PY_FUNCTIONS(X)                                                                                   \
    X(int, is_initialized, Py_IsInitialized, (void))                                                         \
    X(const char *, get_version, Py_GetVersion, (void))                                                      \
    X(int, gil_ensure, PyGILState_Ensure, (void))                                                            \
    X(void, gil_release, PyGILState_Release, (int))                                                          \
    X(void *, save_thread, PyEval_SaveThread, (void))                                                        \
    X(void, restore_thread, PyEval_RestoreThread, (void *))                                                  \
    X(void *, tstate_new, PyThreadState_New, (void *))                                                       \
    X(pb_pyobject *, capsule_new, PyCapsule_New, (void *, const char *, void (*)(pb_pyobject *)))            \
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
    X(pb_pyobject *, call_tuple, PyObject_Call, (pb_pyobject *, pb_pyobject *, pb_pyobject *))               \
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
    X(pb_pyobject *, get_attr_object, PyObject_GetAttr, (pb_pyobject *, pb_pyobject *))                      \
    X(pb_pyobject *, get_item, PyObject_GetItem, (pb_pyobject *, pb_pyobject *))                             \
    X(pb_pyobject *, mapping_keys, PyMapping_Keys, (pb_pyobject *))                                          \
    X(long, size_of, PyObject_Size, (pb_pyobject *))                                                         \
    X(int, str_compare, PyUnicode_Compare, (pb_pyobject *, pb_pyobject *))                                   \
    X(pb_pyobject *, list_new, PyList_New, (long))                                                           \
    X(int, list_append, PyList_Append, (pb_pyobject *, pb_pyobject *))                                       \
    X(int, list_set_slice, PyList_SetSlice, (pb_pyobject *, long, long, pb_pyobject *))                      \
    X(pb_pyobject *, dict_get_object, PyDict_GetItem, (pb_pyobject *, pb_pyobject *))                        \
    X(int, dict_set_object, PyDict_SetItem, (pb_pyobject *, pb_pyobject *, pb_pyobject *))                   \
    X(int, dict_next, PyDict_Next, (pb_pyobject *, long *, pb_pyobject **, pb_pyobject **))                  \
    X(int, dict_del, PyDict_DelItemString, (pb_pyobject *, const char *))                                    \
    X(void, err_set_object, PyErr_SetObject, (pb_pyobject *, pb_pyobject *))                                 \
    X(void, err_restore, PyErr_Restore, (pb_pyobject *, pb_pyobject *, pb_pyobject *))                       \
    X(void, err_set, PyErr_SetString, (pb_pyobject *, const char *))                                         \
    X(void, exc_info, PyErr_GetExcInfo, (pb_pyobject **, pb_pyobject **, pb_pyobject **))                    \
    X(pb_pyobject *, err_occurred, PyErr_Occurred, (void))                                                   \
    X(int, err_matches, PyErr_ExceptionMatches, (pb_pyobject *))                                             \
    X(pb_pyobject *, module_new, PyModule_New, (const char *))                                               \
    X(int, module_add_functions, PyModule_AddFunctions, (pb_pyobject *, struct pb_py_method *))              \
    X(pb_pyobject *, module_def_init, PyModuleDef_Init, (void *))                                            \
    X(int, set_attr, PyObject_SetAttrString, (pb_pyobject *, const char *, pb_pyobject *))                   \
    X(pb_pyobject *, type_from_spec, PyType_FromSpec, (struct pb_py_spec *))                                 \
    X(pb_pyobject *, type_alloc, PyType_GenericAlloc, (pb_pyobject *, long))                                 \
    X(void, object_free, PyObject_Free, (void *))                                                            \
    X(pb_pyobject *, str_from_utf8, PyUnicode_DecodeUTF8, (const char *, long, const char *))                \
    X(pb_pyobject *, str_encode, PyUnicode_AsEncodedString, (pb_pyobject *, const char *, const char *))     \
    X(const char *, utf8_size, PyUnicode_AsUTF8AndSize, (pb_pyobject *, long *))                             \
    X(long long, int64_as, PyLong_AsLongLong, (pb_pyobject *))                                               \
    X(unsigned long long, uint64_as, PyLong_AsUnsignedLongLong, (pb_pyobject *))                             \
    X(pb_pyobject *, int64_from, PyLong_FromLongLong, (long long))                                           \
    X(pb_pyobject *, number_index, PyNumber_Index, (pb_pyobject *))                                          \
    X(double, float_as, PyFloat_AsDouble, (pb_pyobject *))                                                   \
    X(pb_pyobject *, float_from, PyFloat_FromDouble, (double))                                               \
    X(int, is_true, PyObject_IsTrue, (pb_pyobject *))                                                        \
    X(int, is_callable, PyCallable_Check, (pb_pyobject *))                                                   \
    X(int, is_instance, PyObject_IsInstance, (pb_pyobject *, pb_pyobject *))                                 \
    X(long, list_size, PyList_Size, (pb_pyobject *))                                                         \
    X(pb_pyobject *, list_get, PyList_GetItem, (pb_pyobject *, long))                                        \
    X(pb_pyobject *, thread_dict, PyThreadState_GetDict, (void))                                             \
    X(pb_pyobject *, repr_of, PyObject_Repr, (pb_pyobject *))                                                \
    X(pb_pyobject *, modules_dict, PyImport_GetModuleDict, (void))                                           \
    X(pb_pyobject *, module_dict, PyModule_GetDict, (pb_pyobject *))                                         \
    X(pb_pyobject *, instance_dict, PyObject_GenericGetDict, (pb_pyobject *, void *))                        \
    X(pb_pyobject *, dict_items, PyDict_Items, (pb_pyobject *))                                              \
    X(pb_pyobject *, weakref_new, PyWeakref_NewRef, (pb_pyobject *, pb_pyobject *))                          \
    X(int, type_is_subtype, PyType_IsSubtype, (pb_pyobject *, pb_pyobject *))                                \
    X(void *, type_slot, PyType_GetSlot, (pb_pyobject *, int))

/* The same for functions that not every version has, with the versions (3.x) that have them: NULL in others.
 * Others are not looked up, since a failed dlsym allocates: for the first malloc of a thread glibc reserves
 * 64 MB of address space. */
#define PB_PY_OPTIONAL(X)                                                                                    \
    X(int, is_finalizing, Py_IsFinalizing, (void), 13, 99)                                                   \
    X(int, is_finalizing_private, _Py_IsFinalizing, (void), 7, 12)                                           \
    X(int, threads_initialized, PyEval_ThreadsInitialized, (void), 0, 6)                                     \
    X(void, init_threads, PyEval_InitThreads, (void), 0, 6)                                                  \
    X(void *, current_tstate, _PyThreadState_UncheckedGet, (void), 0, 11)                                    \
    X(void *, unchecked_tstate_private, _PyThreadState_UncheckedGet, (void), 0, 12)                          \
    X(void *, unchecked_tstate, PyThreadState_GetUnchecked, (void), 13, 99)                                  \
    X(void, get_allocator, PyMem_GetAllocator, (int, struct pb_py_allocator *), 0, 99)                       \
    X(void, set_allocator, PyMem_SetAllocator, (int, const struct pb_py_allocator *), 0, 99)                 \
    X(void *, mem_malloc, PyMem_Malloc, (size_t), 0, 99)                                                     \
    X(void, mem_free, PyMem_Free, (void *), 0, 99)                                                           \
    X(void *, object_malloc, PyObject_Malloc, (size_t), 0, 99)                                               \
    X(int, frame_line, PyFrame_GetLineNumber, (pb_pyobject *), 0, 10)                                        \
    X(int, code_line, PyCode_Addr2Line, (pb_pyobject *, int), 11, 99)                                        \
    X(void *, main_interpreter, PyInterpreterState_Main, (void), 7, 99)                                      \
    X(void *, first_interpreter, PyInterpreterState_Head, (void), 0, 6)                                      \
    X(void *, next_interpreter, PyInterpreterState_Next, (void *), 0, 6)                                     \
    X(void, tstate_delete, PyThreadState_Delete, (void *), 0, 99)                                            \
    X(void, tstate_clear, PyThreadState_Clear, (void *), 0, 99)                                              \
    X(void *, tstate_of_thread, PyGILState_GetThisThreadState, (void), 0, 99)                                \
    X(void *, tstate_prealloc, _PyThreadState_Prealloc, (void *), 0, 11)                                     \
    X(void, tstate_bind, _PyThreadState_Init, (void *), 0, 10)                                               \
    X(void, tstate_bind_3_8, _PyThreadState_Init, (void *, void *), 8, 8)                                    \
    X(void, tstate_bind_3_11, _PyThreadState_SetCurrent, (void *), 11, 11)                                   \
    X(int, add_pending_call_anywhere, _PyEval_AddPendingCall, (void *, int (*)(void *), void *, int), 12,    \
      99)                                                                                                    \
    X(int, at_exit, Py_AtExit, (void (*)(void)), 0, 7)                                                       \
    X(void *, first_tstate, PyInterpreterState_ThreadHead, (void *), 0, 99)                                  \
    X(void *, next_tstate, PyThreadState_Next, (void *), 0, 99)                                              \
    X(pb_pyobject *, interpreter_dict, PyInterpreterState_GetDict, (void *), 8, 99)                          \
    X(pb_pyobject *, tstate_frame, PyThreadState_GetFrame, (void *), 11, 99)                                 \
    X(pb_pyobject *, frame_back, PyFrame_GetBack, (pb_pyobject *), 11, 99)                                   \
    X(void, set_trace, PyEval_SetTrace, (int (*)(void *, void *, int, void *), pb_pyobject *), 0, 11)        \
    X(int, set_trace_of, _PyEval_SetTrace, (void *, int (*)(void *, void *, int, void *), pb_pyobject *), 9, \
      11)                                                                                                    \
    X(void *, swap_tstate, PyThreadState_Swap, (void *), 0, 11)                                              \
    X(void, locals_to_fast, PyFrame_LocalsToFast, (pb_pyobject *, int), 0, 12)                               \
    X(int, gc_disable, PyGC_Disable, (void), 11, 11)                                                         \
    X(int, gc_enable, PyGC_Enable, (void), 11, 11)                                                           \
    X(pb_pyobject *, frame_code, PyFrame_GetCode, (pb_pyobject *), 13, 99)                                   \
    X(pb_pyobject *, frame_locals, PyFrame_GetLocals, (pb_pyobject *), 13, 99)                               \
    X(int, dict_get_reference, PyDict_GetItemRef, (pb_pyobject *, pb_pyobject *, pb_pyobject **), 13, 99)    \
    X(void *, current_interpreter, PyInterpreterState_Get, (void), 9, 99)                                    \
    X(pb_pyobject *, context_new, PyContextVar_New, (const char *, pb_pyobject *), 7, 99)                    \
    X(int, context_get, PyContextVar_Get, (pb_pyobject *, pb_pyobject *, pb_pyobject **), 7, 99)             \
    X(pb_pyobject *, context_set, PyContextVar_Set, (pb_pyobject *, pb_pyobject *), 7, 99)                   \
    X(int, context_reset, PyContextVar_Reset, (pb_pyobject *, pb_pyobject *), 7, 99)                         \
    X(void, critical_begin, PyCriticalSection_Begin, (void *, pb_pyobject *), 13, 99)                        \
    X(void, critical_end, PyCriticalSection_End, (void *), 13, 99)

struct pb_python {
#define PB_PY_FIELD(ret, name, symbol, args, ...) ret(*name) args;
    PB_PY_FUNCTIONS(PB_PY_FIELD)
    PB_PY_OPTIONAL(PB_PY_FIELD)
#undef PB_PY_FIELD
    pb_pyobject **keyboard_interrupt, **key_error, **type_error, **value_error, **import_error,
        **runtime_error;
    pb_pyobject *none, *true_object, *false_object;
    const void *tuple_type, *cell_type, *code_type;
    pb_pyobject *object_type, *int_type, *float_type, *str_type, *bytes_type; /* types are objects */
    void **finalizing_tstate;                                                 /* 3.6 */
    void *runtime;                                                            /* 3.8 */
    int minor, micro;                                                         /* of 3.minor.micro */
    int free_threaded; /* built without the GIL, whether or not it uses one now */
};

/* The API of this process. 0; -ENOENT: there is no Python here; -ENOSYS: it lacks a function we need
 * (*missing names it). The first call looks it up, which may wait for the loader; later calls do not wait.
 * Takes no lock of Python's. */
int pb_python_find(struct pb_python *ret, const char **missing);

/* The API if found before, for threads that must not wait. -ENOENT: not looked up yet, or no Python. */
int pb_python_known(struct pb_python *ret);

/* The same without a copy, for threads that run Python code. NULL: not looked up yet, or no Python. */
const struct pb_python *pb_python_here(void);

/* 1 while Python code can run here; 0 before the interpreter is up or once it shuts down. */
int pb_python_usable(const struct pb_python *py);
