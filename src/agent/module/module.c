/* module: see module.h. */
#include "agent/module/module.h"

#include "agent/core/agent.h"
#include "agent/core/agent_clock.h"
#include "agent/core/part.h"
#include "agent/core/recorder.h"
#include "agent/module/live_tables.h"
#include "agent/module/trace_table.h"
#include "agent/python/embed.h"
#include "agent/python/enter.h"
#include "agent/python/job.h"
#include "control/status.h"
#include "table/names.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define NAME       "_probing"
#define MODULE     "module" /* the key of the module in the shared state */
#define AFTER_FORK "after_fork"

/* --- where things are kept ------------------------------------------------------------------------- */

/* A dict of the interpreter, so that it ends with the interpreter if a program ends Python and starts it
 * again; before 3.8, which has no such dict, one that stays. */
pb_pyobject *pb_module_shared(const struct pb_python *py)
{
    static pb_pyobject *kept; /* only accessed with the GIL */
    static const char here;
    char key[48];

    pb_pyobject *dict =
        py->interpreter_dict && py->main_interpreter ? py->interpreter_dict(py->main_interpreter()) : NULL;
    if (!dict) {
        if (!kept)
            kept = py->dict_new();
        return kept;
    }
    /* By an address in this library: another agent in the same process has its own. */
    snprintf(key, sizeof(key), "probing %p", (const void *)&here);
    pb_pyobject *state = py->dict_get(dict, key);
    if (state)
        return state;
    state = py->dict_new();
    if (!state || py->dict_set(dict, key, state) < 0)
        return NULL;
    py->decref(state); /* the dict holds a reference */
    return state;
}

pb_pyobject *pb_module_interrupt(const struct pb_python *py)
{
    pb_pyobject *shared = pb_module_shared(py), *ours = shared ? py->dict_get(shared, "interrupt") : NULL;
    return ours ? ours : *py->keyboard_interrupt;
}

unsigned pb_module_header_known;

unsigned pb_module_find_header(const struct pb_python *py)
{
    pb_pyobject *size = py->get_attr(py->object_type, "__basicsize__");
    long n = size ? py->int_as(size) : 0;
    if (size)
        py->decref(size);
    if (n < 16 || n > 64) {
        py->err_clear();
        n = py->free_threaded ? 32 : 16;
    }
    return pb_module_header_known = (unsigned)n;
}

/* Not for sub-interpreters: types and tables belong to the main interpreter. */
static int is_main_interpreter(const struct pb_python *py)
{
    if (!py->main_interpreter) /* 3.6: the first in the list is the newest, the last the main one */
        return !py->first_interpreter || !py->next_interpreter(py->first_interpreter());
    void *here = py->current_interpreter ? py->current_interpreter()
                                         : *(void **)((char *)py->current_tstate_checked() + 16);
    return here == py->main_interpreter();
}

/* --- functions ------------------------------------------------------------------------------------- */

/* source(name): the text of a file of the Python part. */
static pb_pyobject *source(pb_pyobject *self, pb_pyobject *name)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    const char *wanted = py->utf8_of(name), *text = wanted ? pb_embed_file(wanted) : NULL;
    if (!text) {
        if (wanted)
            py->err_set_object(*py->import_error, name);
        return NULL;
    }
    return py->str_from_utf8(text, (long)strlen(text), "strict");
}

/* part(name): a file of the agent's own Python part, as a module. */
static pb_pyobject *part(pb_pyobject *self, pb_pyobject *name)
{
    const struct pb_python *py = pb_python_here();
    const char *text = py->utf8_of(name);
    (void)self;

    pb_pyobject *module = text ? pb_job_load(py, text) : NULL;
    if (!module && text)
        py->err_set_object(*py->import_error, name);
    return module;
}

/* program(): the path of the program that brought the agent in; "": not known. */
static pb_pyobject *program(pb_pyobject *self, pb_pyobject *unused)
{
    (void)self;
    (void)unused;
    return pb_python_here()->str_from(pb_embed_program, (long)strlen(pb_embed_program));
}

#define START_MS 2000

/* Waits until the agent is up or has failed, without the GIL. NULL: it is up. */
static const char *wait_for_agent(void)
{
    const struct timespec pause = {.tv_nsec = 50000};

    for (uint64_t until = pb_now_ns() + START_MS * PB_NS_PER_MS; pb_now_ns() < until;) {
        uint32_t state = __atomic_load_n(&pb_agent_status.state, __ATOMIC_ACQUIRE);
        if (state == PB_AGENT_READY)
            return NULL;
        if (state == PB_AGENT_FAILED)
            return pb_agent_status.text;
        nanosleep(&pause, NULL);
    }
    return "timed out: the agent did not start within 2 s";
}

/* start(options): what an injection does, from inside. None, or the reason why there is no agent. */
static pb_pyobject *start_agent(pb_pyobject *self, pb_pyobject *options)
{
    const struct pb_python *py = pb_python_here();
    const char *text = py->utf8_of(options);
    (void)self;

    if (!text)
        return NULL;
    void *state = py->save_thread();
    pb_agent_start(text);
    const char *why = wait_for_agent();
    py->restore_thread(state);
    if (why)
        return py->str_from_utf8(why, (long)strlen(why), "replace");
    py->incref(py->none);
    return py->none;
}

static pb_pyobject *is_recording(pb_pyobject *self, pb_pyobject *unused)
{
    uint32_t place;
    (void)self;
    (void)unused;

    int records = pb_recorder_enter(&place) != NULL;
    if (records)
        pb_recorder_leave(place);
    return pb_python_here()->bool_from(records);
}

/* is_name(text, table): whether it is a valid name of a table (else: of a column). */
static pb_pyobject *is_name(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *text = py->tuple_get(args, 0), *table = text ? py->tuple_get(args, 1) : NULL;
    const char *name = table ? py->utf8_of(text) : NULL;
    (void)self;

    if (!name)
        return NULL;
    return py->bool_from(py->is_true(table) ? pb_name_is_table(name) : pb_name_is_column(name));
}

/* tell_registered(name, kind, function, active): a table whose rows come from a function (live_tables.h). */
static pb_pyobject *tell_registered(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    const char *text[3];
    (void)self;

    for (int i = 0; i < 3; i++) {
        pb_pyobject *given = py->tuple_get(args, i);
        text[i] = given ? py->utf8_of(given) : NULL;
        if (!text[i])
            return NULL;
    }
    pb_pyobject *active = py->tuple_get(args, 3);
    if (!active)
        return NULL;
    pb_live_tell(text[0], text[1], text[2], py->is_true(active));
    py->incref(py->none);
    return py->none;
}

/* left_behind(ident): see pb_enter_left_behind. */
static pb_pyobject *left_behind(pb_pyobject *self, pb_pyobject *ident)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    unsigned long long number = py->uint64_as(ident);
    return py->err_occurred() ? NULL : py->bool_from(pb_enter_left_behind((unsigned long)number));
}

/* In the child's only thread, between two bytecodes. */
static int call_after_fork(void *unused)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *shared = pb_module_shared(py), *function = shared ? py->dict_get(shared, AFTER_FORK) : NULL;
    (void)unused;

    pb_pyobject *result = function ? py->call(function, (void *)NULL) : NULL;
    if (result)
        py->decref(result);
    py->err_clear();
    return 0;
}

static void begin_tables(struct pb_agent *agent)
{
    (void)agent;
    pb_live_begin();
}

static void forget(void)
{
    struct pb_python py;

    pb_trace_forget_ids();
    pb_calls_forget();
    if (pb_python_known(&py) == 0 && py.minor == 6) /* it has no hook for fork */
        py.add_pending_call(call_after_fork, NULL);
}

const struct pb_part pb_part_module = {.ready = begin_tables, .forget = forget};

static struct pb_py_method own_methods[] = {
    {"left_behind", (pb_py_function)left_behind, PB_METH_O, NULL},
    {"is_name", (pb_py_function)is_name, PB_METH_VARARGS, NULL},
    {"tell_registered", (pb_py_function)tell_registered, PB_METH_VARARGS, NULL},
    {"part", (pb_py_function)part, PB_METH_O, NULL},
    {"program", (pb_py_function)program, PB_METH_NOARGS, NULL},
    {"source", (pb_py_function)source, PB_METH_O, NULL},
    {"start", (pb_py_function)start_agent, PB_METH_O, NULL},
    {"is_recording", (pb_py_function)is_recording, PB_METH_NOARGS, NULL},
    {0},
};

static struct pb_py_method *const all_methods[] = {
    own_methods,          pb_own_files_methods, pb_job_methods,    pb_prompt_methods,  pb_table_methods,
    pb_own_table_methods, pb_span_methods,      pb_log_methods,    pb_crash_methods,   pb_call_methods,
    pb_comm_methods,      pb_halt_methods,      pb_track_methods,  pb_gpu_methods,     pb_object_methods,
    pb_history_methods,   pb_catch_methods,     pb_tensor_methods, pb_channel_methods, pb_probe_methods};

/* --- the module ------------------------------------------------------------------------------------ */

/* Functions that take their arguments as an array: 3.6 always passes the names of keywords, later versions if
 * the flags say so. */
static void set_fast_flags(const struct pb_python *py, struct pb_py_method *methods)
{
    for (; methods->name; methods++)
        if (methods->flags & PB_METH_FAST)
            methods->flags = PB_METH_FAST | (py->minor >= 7 ? PB_METH_KEYWORDS : 0);
}

int pb_module_add_type(const struct pb_python *py, pb_pyobject *shared, const char *name,
                       struct pb_py_spec *spec)
{
    for (struct pb_py_slot *slot = spec->slots; slot->id; slot++)
        if (slot->id == PB_SLOT_METHODS)
            set_fast_flags(py, slot->function);
    pb_pyobject *type = py->type_from_spec(spec);
    int r = type ? py->dict_set(shared, name, type) : -1;
    if (type)
        py->decref(type);
    return r;
}

static pb_pyobject *make_module(const struct pb_python *py, pb_pyobject *shared)
{
    pb_pyobject *module = py->module_new(NAME);
    int r = module ? py->set_attr(module, "shared", shared) : -1;

    pb_pyobject *version =
        r == 0 ? py->str_from_utf8(PROBING_VERSION, (long)strlen(PROBING_VERSION), "strict") : NULL;
    if (r == 0)
        r = version ? py->set_attr(module, "version", version) : -1;
    if (version)
        py->decref(version);
    if (r == 0)
        r = pb_module_add_table_type(py, shared);
    if (r == 0)
        r = pb_module_add_span_type(py, shared);
    for (size_t i = 0; r == 0 && i < sizeof(all_methods) / sizeof(all_methods[0]); i++) {
        set_fast_flags(py, all_methods[i]);
        r = py->module_add_functions(module, all_methods[i]);
    }
    if (r < 0 && module)
        py->decref(module);
    return r < 0 ? NULL : module;
}

pb_pyobject *pb_module_get(const struct pb_python *py)
{
    pb_pyobject *shared = pb_module_shared(py);
    pb_pyobject *module = shared ? py->dict_get(shared, MODULE) : NULL;

    if (module || !shared)
        return module;
    module = make_module(py, shared);
    if (!module)
        return NULL;
    /* Making it may have released the GIL: another thread was first. */
    pb_pyobject *other = py->dict_get(shared, MODULE);
    int r = other ? 0 : py->dict_set(shared, MODULE, module);
    py->decref(module); /* the dict has it */
    return r < 0 ? NULL : other ? other : module;
}

/* --- as an extension that Python imports ----------------------------------------------------------- */

/* The fields of a PyModuleDef after the object's header, the same in every version from 3.5 on. */
struct definition {
    void *init;
    long index;
    void *copy;
    const char *name, *doc;
    long size;
    void *methods, *slots, *traverse, *clear, *free;
};

enum { SLOT_CREATE = 1, SLOT_INTERPRETERS = 3, SLOT_GIL = 4 };
#define INTERPRETERS_NOT_SUPPORTED NULL
#define GIL_NOT_USED               ((void *)1)

static pb_pyobject *create(pb_pyobject *spec, void *unused)
{
    const struct pb_python *py = pb_python_here();
    (void)spec;
    (void)unused;

    pb_pyobject *module = pb_module_get(py);
    if (module)
        py->incref(module);
    return module;
}

/* Slots with the first version (3.x) that knows them: an unknown one is an error. */
static const struct {
    int minor;
    struct pb_py_slot slot;
} known_slots[] = {
    {6, {SLOT_CREATE, (void *)create}},
    {12, {SLOT_INTERPRETERS, INTERPRETERS_NOT_SUPPORTED}},
    {13, {SLOT_GIL, GIL_NOT_USED}}, /* else a free-threaded build turns its GIL on */
};
#define SLOTS (sizeof(known_slots) / sizeof(known_slots[0]))

/* The header of a static object in free-threaded builds, by version (PyObject_HEAD_INIT): 3.15 refuses a
 * definition without it. Others begin with zeros, and PyModuleDef_Init does the rest. */
#define FLAGS_AT            8  /* uint16_t, from 3.14 on */
#define STATICALLY_MADE     4u /* _Py_STATICALLY_ALLOCATED_FLAG */
#define LOCAL_REFERENCES_AT 12 /* uint32_t */

static void fill_header(const struct pb_python *py, char *header)
{
    const uint16_t flags = py->minor >= 14 ? STATICALLY_MADE : 0;
    const uint32_t immortal = UINT32_MAX;

    if (!py->free_threaded)
        return;
    memcpy(header + FLAGS_AT, &flags, sizeof(flags));
    memcpy(header + LOCAL_REFERENCES_AT, &immortal, sizeof(immortal));
}

/* The entry of the agent that was loaded first: there is one agent, wherever its library came from. */
static void *(*first_entry(void))(void)
{
    void *library = dlopen("libprobing.so", RTLD_LAZY | RTLD_NOLOAD); /* its soname; it is never unloaded */
    void *found = library ? dlsym(library, "PyInit__probing") : NULL;
    void *(*entry)(void);

    if (library)
        dlclose(library);
    memcpy(&entry, &found, sizeof(entry));
    return entry;
}

__attribute__((visibility("default"))) void *PyInit__probing(void);

void *PyInit__probing(void)
{
    static _Alignas(16) char memory[64 + sizeof(struct definition)];
    static struct pb_py_slot slots[SLOTS + 1];
    struct pb_python found;
    int n = 0;

    void *(*first)(void) = first_entry();
    if (first && first != PyInit__probing)
        return first();
    if (pb_python_find(&found, NULL) < 0)
        return NULL; /* a SystemError: this Python lacks a function that every Python has */
    const struct pb_python *py = pb_python_here();
    if (!py)
        return NULL;
    if (!is_main_interpreter(py)) {
        py->err_set(*py->import_error, "probing records the main interpreter only");
        return NULL;
    }
    if (slots[0].id) /* imported again */
        return py->module_def_init(memory);
    for (size_t i = 0; i < SLOTS; i++)
        if (py->minor >= known_slots[i].minor)
            slots[n++] = known_slots[i].slot;
    const struct definition definition = {.name = NAME, .doc = "The agent of Probing.", .slots = slots};
    fill_header(py, memory);
    memcpy(memory + pb_module_header(py), &definition, sizeof(definition));
    return py->module_def_init(memory);
}

void pb_module_take_error(const struct pb_python *py, const char *what, char *ret, size_t size)
{
    pb_pyobject *kind = NULL, *error = NULL, *trace = NULL;
    unsigned header = pb_module_header(py);

    py->err_fetch(&kind, &error, &trace);
    pb_pyobject *words = error ? py->str_of(error) : NULL;
    const char *text = words ? py->utf8_of(words) : NULL, *name = kind ? pb_type_name(kind, header) : "";
    snprintf(ret, size, "%s: %s%s%s", what, name[0] ? name : "no exception was set",
             text && text[0] ? ": " : "", text ? text : "");
    pb_pyobject *all[] = {words, kind, error, trace};
    for (int i = 0; i < 4; i++)
        if (all[i])
            py->decref(all[i]);
    py->err_clear();
}
