/* module: `_probing`, the C extension module through which Python code reaches the agent.
 *
 * The agent makes it for its own Python part, not listed in sys.modules; Python's import system makes it
 * where a program loads the agent's library as an extension (PyInit__probing): one module object either way,
 * in the main interpreter. Its functions come from several files, an array each. The agent links no
 * libpython: differences between versions are looked up or are in the tables of module.c. */
#pragma once

#include "agent/python/python.h"

#include <stdint.h>
#include <string.h>

/* The module, borrowed from the interpreter's state; NULL with an exception. With the GIL. */
pb_pyobject *pb_module_get(const struct pb_python *py);

/* A dict that outlives detach, _probing.shared: objects that the program may hold for ever (stand-ins for
 * sys.stdout), and objects made once (types). Borrowed; NULL with an exception. With the GIL. */
pb_pyobject *pb_module_shared(const struct pb_python *py);

/* The exception that stops running code: a subclass of KeyboardInterrupt (python/probing/_remote.py).
 * Borrowed; with the GIL. */
pb_pyobject *pb_module_interrupt(const struct pb_python *py);

/* Bytes of an object's header: 16, and 32 in free-threaded builds. The type is its last word. */
extern unsigned pb_module_header_known; /* 0: not yet */
unsigned pb_module_find_header(const struct pb_python *py);
static inline unsigned pb_module_header(const struct pb_python *py)
{
    return pb_module_header_known ? pb_module_header_known : pb_module_find_header(py);
}
static inline pb_pyobject *pb_type_of(const pb_pyobject *object, unsigned header)
{
    return *(pb_pyobject *const *)(const void *)((const char *)object + header - sizeof(void *));
}

/* tp_name, the first field of a type after its size: to ask the type could call its metaclass. Never NULL. */
static inline const char *pb_type_name(const pb_pyobject *type, unsigned header)
{
    const char *name = *(const char *const *)(const void *)((const char *)type + header + sizeof(long));

    return name ? name : "";
}

/* Takes the exception that is set and writes "WHAT: ValueError: its text". Many exceptions have no text, such
 * as an interrupt, so the type is always named. */
void pb_module_take_error(const struct pb_python *py, const char *what, char *ret, size_t size);

/* The same without the module that types of C have in it: names with dots between them. */
static inline const char *pb_class_name(const pb_pyobject *type, unsigned header)
{
    static const char words[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
    const char *name = pb_type_name(type, header), *dot = strrchr(name, '.');

    return dot && strspn(name, words) > (size_t)(dot - name) ? dot + 1 : name;
}

/* Slots of a type, and its flags (Py_TPFLAGS_DEFAULT as every version has it). */
enum {
    PB_SLOT_BASES = 49,
    PB_SLOT_CALL = 50,
    PB_SLOT_DEALLOC = 52,
    PB_SLOT_METHODS = 64,
    PB_SLOT_REPR = 66,
    PB_SLOT_MEMBERS = 72
};

/* The class that the program wrote. FSDP makes one of its own for each that it shards: FSDPLinear of
 * Linear. */
static inline const char *pb_program_class(const struct pb_python *py, pb_pyobject *type, unsigned header)
{
    const char *name = pb_class_name(type, header);
    pb_pyobject *bases = strncmp(name, "FSDP", 4) == 0 && name[4] ? py->type_slot(type, PB_SLOT_BASES) : NULL;
    pb_pyobject *first = bases && py->size_of(bases) == 2 ? py->tuple_get(bases, 0) : NULL;

    py->err_clear();
    return first && strcmp(pb_class_name(first, header), "FSDPModule") == 0
               ? pb_class_name(py->tuple_get(bases, 1), header)
               : name;
}
#define PB_TYPE_FLAGS (1u << 18)

/* Makes a type and puts it into the shared state under that name. -1 with an exception. */
int pb_module_add_type(const struct pb_python *py, pb_pyobject *shared, const char *name,
                       struct pb_py_spec *spec);
int pb_module_add_table_type(const struct pb_python *py, pb_pyobject *shared);
int pb_module_add_span_type(const struct pb_python *py, pb_pyobject *shared);

/* The step that the program last set; INT64_MIN: none. */
int64_t pb_span_step(void);

/* The innermost open span of the calling context; id 0: none. With the GIL. */
struct pb_span_seen {
    uint64_t id, trace;
    int64_t began; /* CLOCK_MONOTONIC, ns */
};
void pb_span_around(const struct pb_python *py, struct pb_span_seen *ret);

struct pb_part;
extern const struct pb_part pb_part_module;

/* In a forked child: no function is traced, and a lock that another thread held is free. */
void pb_calls_forget(void);

/* Functions of the module; each array ends with a name that is NULL. */
extern struct pb_py_method pb_own_files_methods[]; /* own_files.c */
extern struct pb_py_method pb_job_methods[];       /* job_python.c */
extern struct pb_py_method pb_prompt_methods[];    /* prompt.c */
extern struct pb_py_method pb_table_methods[];     /* module_table.c */
extern struct pb_py_method pb_own_table_methods[]; /* own_tables.c */
extern struct pb_py_method pb_span_methods[];      /* module_span.c */
extern struct pb_py_method pb_log_methods[];       /* module_log.c */
extern struct pb_py_method pb_crash_methods[];     /* crash_python.c */
extern struct pb_py_method pb_catch_methods[];     /* catch_hook.c */
extern struct pb_py_method pb_call_methods[];      /* module_trace.c */
extern struct pb_py_method pb_comm_methods[];      /* probes/torch/torch_comm.c */
extern struct pb_py_method pb_halt_methods[];      /* halt.c */
extern struct pb_py_method pb_track_methods[];     /* probes/torch/torch_track.c */
extern struct pb_py_method pb_gpu_methods[];       /* probes/torch/torch_gpu.c */
extern struct pb_py_method pb_history_methods[];   /* probes/allocations/allocations_cuda.c */
extern struct pb_py_method pb_object_methods[];    /* objects.c */
extern struct pb_py_method pb_tensor_methods[];    /* tensor_values.c */
extern struct pb_py_method pb_channel_methods[];   /* channel_python.c */
extern struct pb_py_method pb_probe_methods[];     /* probes/probe_requests.c */
