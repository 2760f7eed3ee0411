/* torch_names: the module of a call, its name in its model, and the texts of rows.
 *
 * A module is identified by its address, as long as it lives: a weak reference reports its end, since
 * addresses are reused. Its name is its path in the outermost called module, as in named_modules(); the
 * outermost itself has the name of its class. Paths are found by reading the `_modules` dicts, which runs no
 * code of the program, once per model and again when an unknown module appears. Texts and places are made
 * once and kept, so that replicas that come and go with each step (DataParallel) take no memory. Everything
 * is in one mapping of a fixed size; when that is full, calls have no rows. */
#include "agent/core/notes.h"
#include "agent/module/module.h"
#include "agent/probes/torch/torch.h"
#include "agent/python/imported.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define MODULES     (1u << 15)
#define SLOTS       (2 * MODULES)
#define FIRST_SLOTS 1024u
#define TEXTS       (1u << 15)
#define PLACES      (1u << 15)
#define TEXT_BYTES  (4u << 20)
#define PATH_BYTES  512
#define MOST_SHAPES 6 /* of a module: if each batch has another shape, they are left out */
#define MOST_DEEP   40
#define CLASSES     8
#define GONE        UINT32_MAX        /* a slot of the index whose module has ended */
#define COMPILED    "OptimizedModule" /* what torch.compile puts around a module */
#define FIELD       '\x1f'

struct known_module {
    pb_pyobject *module; /* borrowed: used only as an address; NULL: free, and `name` is the next free one */
    pb_pyobject *weak;
    uint32_t name;
    uint32_t place;               /* its last place */
    uint32_t shapes[MOST_SHAPES]; /* texts that it was called with; 0: free */
    uint8_t walked;               /* its whole tree has names */
};

struct name_text {
    uint32_t at, length, next;
};

/* Modules lie in the order in which they were named, about that of their calls, and the index is as small as
 * it can be: between two calls of modules torch fills the caches, and each page of ours that a call touches
 * costs it more than all of our instructions. */
struct memory {
    struct known_module modules[MODULES]; /* from 1 */
    uint32_t index[SLOTS];                /* of modules, hashed by their address; 0: free */
    struct name_text texts[TEXTS];
    struct pb_torch_place places[PLACES];
    uint32_t text_lists[TEXTS], place_lists[PLACES];
    char bytes[TEXT_BYTES];
};

static struct memory *memory;
static uint32_t nmodules, ntexts, nplaces, nbytes;
static uint32_t most_modules; /* entries ever used */
static uint32_t free_module;  /* 0: none below most_modules */
static uint32_t slots_used;   /* of the index, dead entries included */
static uint32_t mask = FIRST_SLOTS - 1;
static struct known_module *last_module; /* of the last lookup */
/* Classes of optimizers and data loaders, which are asked for in each step. By the text too: an address may
 * be that of another class by now. */
static struct class_known {
    const pb_pyobject *type;
    uint32_t name;
    char shown[52];
} classes[CLASSES];
static uint32_t backward_name; /* 0: not made yet */
/* Threads that look up a name by calls of Python, in which another thread may get the GIL: the memory must
 * stay mapped meanwhile. A greenlet that never returns keeps it mapped, which only costs memory. */
static unsigned naming;

static uint64_t mix(uint64_t h, uint64_t n)
{
    h = (h ^ n) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

/* --- texts ----------------------------------------------------------------------------------------- */

static uint32_t intern(const char *bytes, size_t length)
{
    uint64_t h = length;
    for (size_t i = 0; i < length; i++)
        h = mix(h, (unsigned char)bytes[i]);
    uint32_t *list = &memory->text_lists[h % TEXTS];

    for (uint32_t i = *list, n = 0; i && n < TEXTS; n++, i = memory->texts[i].next)
        if (memory->texts[i].length == length &&
            memcmp(memory->bytes + memory->texts[i].at, bytes, length) == 0)
            return i;
    if (ntexts + 1 >= TEXTS || length > TEXT_BYTES - nbytes)
        return 0;
    uint32_t made = ++ntexts;
    memcpy(memory->bytes + nbytes, bytes, length);
    memory->texts[made] = (struct name_text){.at = nbytes, .length = (uint32_t)length, .next = *list};
    nbytes += (uint32_t)length;
    *list = made;
    return made;
}

const char *pb_torch_text(uint32_t text, size_t *length)
{
    *length = memory->texts[text].length;
    return memory->bytes + memory->texts[text].at;
}

unsigned pb_torch_names_count(void)
{
    return nmodules;
}

/* --- places ---------------------------------------------------------------------------------------- */

static const char *const stages[] = {
    [PB_TORCH_FORWARD] = "forward",    [PB_TORCH_BACKWARD] = "backward", [PB_TORCH_OPTIMIZER] = "optimizer",
    [PB_TORCH_LOADER] = "dataloader",  [PB_TORCH_STEP] = "step",         [PB_TORCH_EVAL] = "eval",
    [PB_TORCH_RECOMPUTE] = "recompute"};

/* The nth of the fields of a name: path, class, model. */
static const char *name_field(uint32_t name, int n, int *length)
{
    size_t size = 0;
    const char *at = name ? pb_torch_text(name, &size) : "", *end = at + size;

    for (; n > 0 && at < end; n--) {
        const char *next = memchr(at, FIELD, (size_t)(end - at));
        at = next ? next + 1 : end;
    }
    const char *next = at < end ? memchr(at, FIELD, (size_t)(end - at)) : NULL;
    *length = (int)((next ? next : end) - at);
    return at;
}

const char *pb_torch_path(uint32_t name, size_t *length)
{
    int n;
    const char *path = name_field(name, 0, &n);

    *length = (size_t)n;
    return path;
}

static uint32_t make_text(const struct pb_torch_place *p)
{
    char text[2 * PATH_BYTES];
    const char *field[4];
    int length[4];

    for (int i = 0; i < 3; i++)
        field[i] = name_field(p->name, i, &length[i]);
    field[3] = name_field(p->parent ? memory->places[p->parent].name : 0, 0, &length[3]);
    size_t shapes_length = 0;
    const char *shapes = p->shapes ? pb_torch_text(p->shapes, &shapes_length) : "";
    int n =
        snprintf(text, sizeof(text), "%s%c%.*s%c%.*s%c%.*s%c%u%c%d%c%.*s%c%.*s", stages[p->stage], FIELD,
                 length[0], field[0], FIELD, length[1], field[1], FIELD, length[3], field[3], FIELD, p->depth,
                 FIELD, (int)p->tid, FIELD, length[2], field[2], FIELD, (int)shapes_length, shapes);
    return n > 0 && (size_t)n < sizeof(text) ? intern(text, (size_t)n) : 0;
}

struct pb_torch_place *pb_torch_place_at(uint32_t place)
{
    return &memory->places[place];
}

static inline int is_place(const struct pb_torch_place *p, enum pb_torch_stage stage, uint32_t name,
                           uint32_t parent, int32_t tid, unsigned depth, uint32_t shapes)
{
    return p->shapes == shapes && p->name == name && p->parent == parent && p->tid == tid &&
           p->stage == stage && p->depth == depth;
}

uint32_t pb_torch_shapes_text(const char *text, size_t length)
{
    uint32_t made = last_module && length ? intern(text, length) : 0;

    for (int i = 0; made && i < MOST_SHAPES; i++) {
        if (!last_module->shapes[i])
            last_module->shapes[i] = made;
        if (last_module->shapes[i] == made)
            return made;
    }
    return 0;
}

uint32_t pb_torch_place(enum pb_torch_stage stage, uint32_t name, uint32_t parent, int32_t tid,
                        unsigned depth, uint32_t shapes)
{
    if (pb_torch_is_call(stage) && last_module && last_module->place &&
        is_place(&memory->places[last_module->place], stage, name, parent, tid, depth, shapes))
        return last_module->place;
    uint32_t *list =
        &memory->place_lists[mix(mix(mix(name, parent), shapes), (uint64_t)tid << 8 | (unsigned)stage) %
                             PLACES];
    uint32_t found = *list;
    for (int n = 0; found && !is_place(&memory->places[found], stage, name, parent, tid, depth, shapes); n++)
        found = n < (int)PLACES ? memory->places[found].next : 0;
    if (!found && nplaces + 1 < PLACES) {
        struct pb_torch_place made = {.name = name,
                                      .parent = parent,
                                      .shapes = shapes,
                                      .tid = tid,
                                      .depth = (uint16_t)depth,
                                      .stage = (uint8_t)stage,
                                      .next = *list};
        made.text = make_text(&made);
        if (made.text) {
            found = *list = ++nplaces;
            memory->places[found] = made;
        }
    }
    if (pb_torch_is_call(stage) && last_module)
        last_module->place = found;
    return found;
}

/* --- modules --------------------------------------------------------------------------------------- */

/* The module's slot, or the free slot at the end of its chain; if there is neither, a dummy slot. */
static uint32_t *find_slot(const pb_pyobject *module)
{
    static uint32_t none;
    uint32_t at = (uint32_t)mix(0, (uintptr_t)module) & mask;

    for (uint32_t n = 0; n <= mask; n++, at = (at + 1) & mask) {
        uint32_t *slot = &memory->index[at];
        if (!*slot || (*slot != GONE && memory->modules[*slot].module == module))
            return slot;
    }
    none = 0;
    return &none;
}

/* NULL: it is not known. */
static inline struct known_module *find_module(const pb_pyobject *module)
{
    uint32_t found = *find_slot(module);

    return found ? &memory->modules[found] : NULL;
}

/* At most half of the index is in use, so that chains are short and always end. */
static void make_index(uint32_t slots)
{
    mask = slots - 1;
    slots_used = nmodules;
    memset(memory->index, 0, slots * sizeof(memory->index[0]));
    for (uint32_t i = 1; i <= most_modules; i++)
        if (memory->modules[i].module)
            *find_slot(memory->modules[i].module) = i;
}

static void forget_module(uint32_t at)
{
    *find_slot(memory->modules[at].module) = GONE;
    memory->modules[at] = (struct known_module){.name = free_module};
    free_module = at;
    nmodules--;
}

/* The callback of a weak reference; self is the number of the entry, as an int. */
static pb_pyobject *module_ended(pb_pyobject *self, pb_pyobject *weak)
{
    const struct pb_python *py = pb_python_here();
    unsigned long at = (unsigned long)py->int_as(self);

    if (memory && at && at < MODULES && memory->modules[at].weak == weak) {
        forget_module((uint32_t)at);
        last_module = NULL;
        py->decref(weak);
    }
    py->incref(py->none);
    return py->none;
}

static struct pb_py_method ended_method = {"ended", (pb_py_function)module_ended, PB_METH_O, NULL};

/* A free entry; NULL: all are taken. */
static struct known_module *take_module(void)
{
    uint32_t at = free_module ? free_module : most_modules + 1;

    if (at >= MODULES)
        return NULL;
    if (slots_used >= (mask + 1) / 2)
        make_index(nmodules >= (mask + 1) / 4 && mask + 1 < SLOTS ? 2 * (mask + 1) : mask + 1);
    if (free_module)
        free_module = memory->modules[at].name;
    else
        most_modules = at;
    return &memory->modules[at];
}

static void give_back(struct known_module *m)
{
    *m = (struct known_module){.name = free_module};
    free_module = (uint32_t)(m - memory->modules);
}

static struct known_module *add_module(const struct pb_python *py, pb_pyobject *module)
{
    struct known_module *m = take_module();
    if (!m)
        return NULL;
    uint32_t at = (uint32_t)(m - memory->modules);
    pb_pyobject *number = py->int_signed((long)at);
    pb_pyobject *callback = number ? py->cfunction(&ended_method, number, NULL) : NULL;
    pb_pyobject *weak = callback ? py->weakref_new(module, callback) : NULL;
    if (callback)
        py->decref(callback);
    if (number)
        py->decref(number);
    /* Making them may have collected garbage, or let another thread add it. */
    uint32_t *slot = find_slot(module);
    if (!weak || *slot) {
        py->err_clear();
        if (weak)
            py->decref(weak);
        give_back(m);
        return weak && *slot ? &memory->modules[*slot] : NULL;
    }
    *m = (struct known_module){.module = module, .weak = weak};
    *slot = at;
    nmodules++;
    slots_used++;
    return m;
}

/* The class's name without field separators. */
static void class_name(const struct pb_python *py, pb_pyobject *object, char *ret, size_t size)
{
    const unsigned header = pb_module_header(py);

    snprintf(ret, size, "%.100s", pb_program_class(py, pb_type_of(object, header), header));
    for (char *c = ret; *c; c++)
        *c = (unsigned char)*c < 0x20 ? '?' : *c;
}

static uint32_t make_name(const struct pb_python *py, pb_pyobject *module, const char *path,
                          const char *model)
{
    char text[PATH_BYTES + 256], kind[128];

    class_name(py, module, kind, sizeof(kind));
    const char *name = path[0] ? path : strcmp(kind, COMPILED) == 0 && model[0] ? model : kind;
    int n = snprintf(text, sizeof(text), "%s%c%s%c%s", name, FIELD, kind, FIELD, model);
    return n > 0 && (size_t)n < sizeof(text) ? intern(text, (size_t)n) : 0;
}

/* The children of a module, as pairs of name and module; NULL: none. From dicts: code of the module's class
 * does not run. */
static pb_pyobject *list_children(const struct pb_python *py, pb_pyobject *module)
{
    pb_pyobject *children = pb_own_field(py, module, "_modules");
    pb_pyobject *pairs = children ? py->dict_items(children) : NULL;

    py->err_clear();
    if (children && !pairs) { /* of a ScriptModule: an object around the dict */
        pb_pyobject *inner = pb_own_field(py, children, "_python_modules");
        pairs = inner ? py->dict_items(inner) : NULL;
        if (inner)
            py->decref(inner);
        py->err_clear();
    }
    if (children)
        py->decref(children);
    return pairs;
}

/* Says of a module that torch.compile compiles, around it or in place, that its parts may be missing. */
static void note_compiled(const struct pb_python *py, pb_pyobject *module, const char *name)
{
    char kind[128];
    pb_pyobject *in_place = pb_own_field(py, module, "_compiled_call_impl");

    class_name(py, module, kind, sizeof(kind));
    if (strcmp(kind, COMPILED) == 0 || (in_place && in_place != py->none))
        pb_note_log(
            "torch",
            "%.200s is compiled by torch.compile: of the modules inside it, only those are seen that its "
            "graphs leave out",
            name);
    if (in_place)
        py->decref(in_place);
    py->err_clear();
}

/* Gives names to all modules under this one. `path` is its own, and unchanged on return. What is within a
 * wrapper has the path of the wrapper; wrapped: the name of the child that this one is around, NULL: it
 * may be a wrapper. */
static void walk(const struct pb_python *py, pb_pyobject *module, char *path, const char *model,
                 const char *wrapped, int deep)
{
    pb_pyobject *pairs = deep < MOST_DEEP ? list_children(py, module) : NULL;
    size_t length = strlen(path);
    const char *then = NULL;

    note_compiled(py, module, path[0] ? path : model);
    if (!wrapped)
        wrapped = pb_torch_wrapped(py, module, &then);

    for (long i = 0, n = pairs ? py->list_size(pairs) : 0; i < n; i++) {
        pb_pyobject *key = py->tuple_get(py->list_get(pairs, i), 0);
        pb_pyobject *child = py->tuple_get(py->list_get(pairs, i), 1);
        const char *name = child != py->none ? py->utf8_of(key) : NULL;
        if (!name || length + strlen(name) + 2 > PATH_BYTES)
            continue;
        snprintf(path + length, PATH_BYTES - length, "%s%s", length ? "." : "", name);
        for (char *c = path + length; *c; c++)
            *c = (unsigned char)*c < 0x20 ? '?' : *c;
        int is_wrapped =
            (wrapped && strcmp(name, wrapped) == 0) || strcmp(name, "_original_module") == 0; /* of Fabric */
        if (is_wrapped)
            path[length] = '\0';
        struct known_module *m = find_module(child);
        uint32_t given = make_name(py, child, path, model);
        m = m ? m : add_module(py, child);
        if (m && given) {
            m->name = given;
            m->walked = 0;
            walk(py, child, path, model, is_wrapped ? then : NULL, deep + 1);
        }
        path[length] = '\0';
    }
    if (pairs)
        py->decref(pairs);
    py->err_clear();
}

static struct known_module *name_tree(const struct pb_python *py, pb_pyobject *root)
{
    char path[PATH_BYTES] = "", model[128];

    class_name(py, pb_torch_unwrap(py, root), model, sizeof(model));
    struct known_module *m = find_module(root);
    m = m ? m : add_module(py, root);
    if (!m)
        return NULL;
    m->name = make_name(py, root, "", model);
    m->walked = 1;
    walk(py, root, path, model, NULL, 0);
    return find_module(root);
}

/* The name that the module has itself: Keras names its layers. */
static int own_name(const struct pb_python *py, pb_pyobject *module, char *ret, size_t size)
{
    pb_pyobject *name = pb_own_field(py, module, "name");
    const char *text =
        name && pb_type_of(name, pb_module_header(py)) == py->str_type ? py->utf8_of(name) : NULL;
    int is = text && text[0];

    py->err_clear();
    if (is)
        snprintf(ret, size, "%.100s", text);
    for (char *c = ret; *c; c++)
        *c = (unsigned char)*c < 0x20 ? '?' : *c;
    if (name)
        py->decref(name);
    return is;
}

/* Whether a place is of a module with a path, not of a model itself. */
static int is_inner(uint32_t place)
{
    return place && memory->places[place].depth > 0;
}

/* A module that is in no model by `_modules`: if another module called it, it is named after that. */
static struct known_module *name_stranger(const struct pb_python *py, pb_pyobject *module, uint32_t parent)
{
    char path[PATH_BYTES], kind[128], model[128];
    uint32_t around = parent ? memory->places[parent].name : 0;
    int length, model_length;

    const char *outer = name_field(around, 0, &length);
    const char *outer_model = name_field(around, 2, &model_length);
    class_name(py, module, kind, sizeof(kind));
    if (own_name(py, module, kind, sizeof(kind)))
        snprintf(path, sizeof(path), "%.*s%s%s", is_inner(parent) && length < 300 ? length : 0, outer,
                 is_inner(parent) ? "." : "", kind);
    else
        snprintf(path, sizeof(path), "%.*s.(%s)", length < 300 ? length : 300, outer, kind);
    snprintf(model, sizeof(model), "%.*s", model_length < 120 ? model_length : 120, outer_model);
    struct known_module *m = add_module(py, module);
    if (m)
        m->name = make_name(py, module, path, model);
    if (m)
        walk(py, module, path, model, NULL, 1);
    return find_module(module);
}

uint32_t pb_torch_name(const struct pb_python *py, pb_pyobject *module, int is_root, uint32_t parent_place)
{
    struct known_module *m = find_module(module);

    if (__builtin_expect(!m || !m->name, 0)) {
        naming++;
        m = is_root ? name_tree(py, module) : name_stranger(py, module, parent_place);
        naming--;
    }
    last_module = m;
    return m ? m->name : 0;
}

uint32_t pb_torch_name_of_class(const struct pb_python *py, pb_pyobject *object)
{
    unsigned header = pb_module_header(py);
    const pb_pyobject *type = pb_type_of(object, header);
    struct class_known *c = &classes[mix(0, (uintptr_t)type) % CLASSES];

    if (c->name && c->type == type && strcmp(c->shown, pb_type_name(type, header)) == 0)
        return c->name;
    naming++;
    uint32_t name = make_name(py, object, "", "");
    naming--;
    *c = (struct class_known){.type = type, .name = name};
    if (snprintf(c->shown, sizeof(c->shown), "%s", pb_type_name(type, header)) >= (int)sizeof(c->shown))
        c->name = 0; /* not all of it could be compared */
    return name;
}

uint32_t pb_torch_name_of_backward(void)
{
    static const char text[] = "backward\x1f" /* FIELD */ "backward\x1f";

    if (!backward_name)
        backward_name = intern(text, sizeof(text) - 1);
    return backward_name;
}

int pb_torch_names_begin(const struct pb_python *py)
{
    int r = pb_torch_names_end(py);
    if (r < 0)
        return r;
    void *p = mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return -errno;
    memory = p;
    return 0;
}

int pb_torch_names_end(const struct pb_python *py)
{
    struct memory *old = memory;
    uint32_t used = most_modules;

    if (naming)
        return -EBUSY;
    memory = NULL;
    last_module = NULL;
    nmodules = ntexts = nplaces = nbytes = 0;
    most_modules = free_module = slots_used = backward_name = 0;
    memset(classes, 0, sizeof(classes));
    mask = FIRST_SLOTS - 1;
    if (!old)
        return 0;
    for (uint32_t i = 1; i <= used; i++)
        if (old->modules[i].weak)
            py->decref(old->modules[i].weak);
    munmap(old, sizeof(*old));
    return 0;
}

int pb_torch_name_seen(const pb_pyobject *module, const char **ret)
{
    const struct known_module *m = memory ? find_module(module) : NULL;
    int length = 0;

    *ret = m && m->name ? name_field(m->name, 0, &length) : "";
    return length;
}
