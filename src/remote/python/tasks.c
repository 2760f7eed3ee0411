/* tasks: the asyncio tasks of a thread's event loop, with what each awaits; see python_reader.h.
 *
 * Up to 3.13 they are in a WeakSet of asyncio.tasks, reached through the globals of the loop's own frame;
 * from 3.14 on in a list of the thread state. No header has the layout of a Task: its coroutine is the one
 * field that points at a coroutine, and its name is the string that follows. */
#include <errno.h>
#include <stdlib.h>

#include "remote/python/dict.h"
#include "remote/python/value.h"

#define CHAIN_MAX    64
#define TASK_LEN     320
#define NODE_SEARCH  40 /* words from the head of a Task to its link in the list */
#define TYPE_SIZE    48
#define SET_MAX      (1 << 16) /* slots or links that are read */
#define TASKS_TRIED  4096
#define GATHERED_MAX 256

enum { AFTER_HEAD_0 = 0, AFTER_HEAD_1 = 8 };

struct chain {
    uint64_t codes[CHAIN_MAX];
    struct copy copies[CHAIN_MAX];
    struct pb_py_frame frames[CHAIN_MAX];
    size_t n;
    uint64_t awaited; /* by the innermost; 0: none */
    bool running;
};

struct tour {
    struct pb_py *py;
    int (*visit)(void *arg, const struct pb_py_task *task);
    void *arg;
    size_t max, n, tried;
    uint64_t loop; /* tasks of others are left out; 0: it is not known */
};

static bool type_name(struct pb_py *py, uint64_t object, char *ret)
{
    uint64_t type, at;

    memset(ret, 0, TYPE_SIZE);
    return object && object % 8 == 0 && read_u64(py, object + py->layout.object.type, &type) == 0 &&
           type % 8 == 0 && read_u64(py, type + py->layout.type.name, &at) == 0 &&
           (pb_source_read(py->source, at, ret, TYPE_SIZE - 1) == 0 ||
            pb_source_read(py->source, at, ret, 16) == 0);
}

static uint64_t field(struct pb_py *py, uint64_t object, unsigned after_head)
{
    uint64_t value;
    return read_u64(py, object + py->layout.object.size + after_head, &value) == 0 ? value : 0;
}

/* The object that a suspended frame awaits, on top of its stack. 0: it does not await, or runs. */
static uint64_t top_of(struct pb_py *py, uint64_t frame, uint64_t *ret_running)
{
    const struct pb_py_layout *l = &py->layout;
    uint64_t top = 0, value = 0, base = 0;
    int32_t count = -1;

    *ret_running = 0;
    if (l->frame.valuestack && read_u64(py, frame + l->frame.valuestack, &base) < 0)
        return 0;
    if (l->version == 0x030a || l->frame.stacktop) {
        uint32_t at = l->frame.stacktop ? l->frame.stacktop : l->frame.top;
        if (pb_source_read(py->source, frame + at, &count, sizeof(count)) < 0)
            return 0;
        *ret_running = count < 0;
        top = count > 0 ? (base ? base : frame + l->frame.locals) + 8 * (uint64_t)count : 0;
    } else if (read_u64(py, frame + l->frame.top, &top) == 0) {
        *ret_running = top == 0;
    }
    if (!top || read_u64(py, top - 8, &value) < 0)
        return 0;
    /* 3.15 keeps an index, or NULL, above the awaited object. */
    if (l->tagged && ((value & 3) == 3 || !untag(py, value)) && read_u64(py, top - 16, &value) < 0)
        return 0;
    return untag(py, value);
}

/* The coroutine, generator or asynchronous generator of an awaited object. 0: not one of these. */
static uint64_t generator_of(struct pb_py *py, uint64_t object)
{
    char type[TYPE_SIZE];

    if (!type_name(py, object, type))
        return 0;
    if (strcmp(type, "coroutine") == 0 || strcmp(type, "generator") == 0 ||
        strcmp(type, "async_generator") == 0)
        return object;
    if (strcmp(type, "coroutine_wrapper") == 0 || strncmp(type, "async_generator_", 16) == 0)
        return field(py, object, AFTER_HEAD_0);
    return 0;
}

static void follow(struct pb_py *py, uint64_t coroutine, struct chain *c)
{
    const struct pb_py_layout *l = &py->layout;

    while (coroutine && c->n < CHAIN_MAX) {
        uint64_t frame = coroutine + l->gen.frame, code, running;
        uint64_t instr = 0;
        if (l->frames == PB_PY_FRAMES_HEAP && (read_u64(py, frame, &frame) < 0 || !frame))
            return;
        if (read_u64(py, frame + l->frame.code, &code) < 0)
            return;
        pb_source_read(py->source, frame + l->frame.instr, &instr, l->frames == PB_PY_FRAMES_HEAP ? 4 : 8);
        code = untag(py, code);
        int64_t at = l->frames != PB_PY_FRAMES_HEAP ? (int64_t)(instr - (code + l->code.adaptive))
                                                    : (int64_t)(int32_t)instr * (l->lasti_units ? 2 : 1);
        uint32_t index = 0;
        if (l->frame.tlbc && pb_source_read(py->source, frame + l->frame.tlbc, &index, sizeof(index)) < 0)
            return;
        c->copies[c->n] = (struct copy){instr, index};
        c->codes[c->n] = code;
        c->frames[c->n++] = (struct pb_py_frame){
            .addr = frame, .at = at < 0 || at > INT32_MAX ? -1 : (int32_t)at, .flags = PB_PY_GENERATOR};
        c->awaited = top_of(py, frame, &running);
        c->running = running;
        if (running)
            return;
        coroutine = generator_of(py, c->awaited);
    }
}

static void reverse(struct chain *c)
{
    for (size_t i = 0; i < c->n / 2; i++) {
        struct pb_py_frame f = c->frames[i];
        struct copy copy = c->copies[i];
        uint64_t code = c->codes[i];
        c->copies[i] = c->copies[c->n - 1 - i];
        c->copies[c->n - 1 - i] = copy;
        c->frames[i] = c->frames[c->n - 1 - i];
        c->codes[i] = c->codes[c->n - 1 - i];
        c->frames[c->n - 1 - i] = f;
        c->codes[c->n - 1 - i] = code;
    }
}

static bool is_task(struct pb_py *py, uint64_t object)
{
    char type[TYPE_SIZE];
    size_t len = type_name(py, object, type) ? strlen(type) : 0;

    return len >= 4 && strcmp(type + len - 4, "Task") == 0;
}

/* The first task of a set. */
static uint64_t task_in_set(struct pb_py *py, uint64_t set)
{
    uint64_t mask, table, key;

    if (read_u64(py, set + py->layout.set.mask, &mask) < 0 ||
        read_u64(py, set + py->layout.set.table, &table) < 0)
        return 0;
    for (uint64_t i = 0; i <= mask && i < GATHERED_MAX; i++)
        if (read_u64(py, table + 16 * i, &key) == 0 && is_task(py, key))
            return key;
    return 0;
}

/* The task to which a field of a future leads. From 3.14 on a future names the tasks that wait for it, one or
 * a set. Before, what it calls at its end belongs to one: its wakeup, or a method of its TaskGroup. */
static uint64_t waiting_task(struct pb_py *py, uint64_t value)
{
    char type[TYPE_SIZE];
    uint64_t of = 0;

    if (is_task(py, value))
        return value;
    if (!type_name(py, value, type))
        return 0;
    if (strcmp(type, "set") == 0)
        return task_in_set(py, value);
    if (strstr(type, "TaskWakeupMethWrapper"))
        of = field(py, value, AFTER_HEAD_0);
    else if (strcmp(type, "builtin_function_or_method") == 0)
        of = field(py, value, AFTER_HEAD_1);
    else if (strcmp(type, "method") == 0 &&
             pb_py_attribute(py, field(py, value, AFTER_HEAD_1), "_parent_task", &of) < 0)
        of = 0;
    return is_task(py, of) ? of : 0;
}

/* The coroutine of a task and its name, by their types. ret_parent: the task that waits for it; or NULL. */
static uint64_t read_task(struct pb_py *py, uint64_t task, char *name, size_t size, uint64_t *ret_parent)
{
    uint64_t words[TASK_LEN / 8];
    char type[TYPE_SIZE];

    name[0] = '\0';
    if (pb_source_read(py->source, task, words, sizeof(words)) < 0)
        return 0;
    for (size_t i = py->layout.object.size / 8; i + 1 < TASK_LEN / 8; i++) {
        if (!type_name(py, words[i], type) ||
            (strcmp(type, "coroutine") != 0 && strcmp(type, "generator") != 0))
            continue;
        if (type_name(py, words[i + 1], type) && strcmp(type, "str") == 0)
            pb_py_text(py, words[i + 1], name, size, NULL);
        else if (strcmp(type, "int") == 0) { /* 3.12 on: a number until the program reads the name */
            struct value_out o = {.py = py, .buf = name, .size = size};
            pb_py_put(&o, "Task-");
            pb_py_put_value(&o, words[i + 1], 0);
        }
        /* The word before the coroutine is what the task itself waits for. */
        for (size_t k = py->layout.object.size / 8; ret_parent && !*ret_parent && k + 1 < i; k++)
            *ret_parent = waiting_task(py, words[k]);
        return words[i];
    }
    return 0;
}

/* The future of the iterator that `await` makes of it. */
static uint64_t future_of(struct pb_py *py, uint64_t object)
{
    char type[TYPE_SIZE];

    if (!object || !type_name(py, object, type))
        return 0;
    return strstr(type, "FutureIter") ? field(py, object, AFTER_HEAD_0) : object;
}

/* The tasks of a future that asyncio.gather made. */
static size_t read_gathered(struct pb_py *py, uint64_t future, uint64_t ret[GATHERED_MAX])
{
    char type[TYPE_SIZE];
    uint64_t list, n, items;

    if (!type_name(py, future, type) || !strstr(type, "GatheringFuture") ||
        pb_py_attribute(py, future, "_children", &list) < 0 ||
        read_u64(py, list + py->layout.list.size, &n) < 0 ||
        read_u64(py, list + py->layout.list.data, &items) < 0)
        return 0;
    n = n < GATHERED_MAX ? n : GATHERED_MAX;
    return pb_source_read(py->source, items, ret, n * sizeof(*ret)) == 0 ? n : 0;
}

/* "Task-3", or the type of what is awaited. */
static void name_awaited(struct pb_py *py, uint64_t object, char *ret, size_t size)
{
    char type[TYPE_SIZE];

    ret[0] = '\0';
    if (!type_name(py, object, type))
        return;
    const char *dot = strrchr(type, '.');
    if (!strstr(type, "Task") || !read_task(py, object, ret, size, NULL) || !ret[0])
        strncat(ret, dot ? dot + 1 : type, size - 1);
}

static int show_task(struct tour *tour, uint64_t task)
{
    struct pb_py_task shown = {.addr = task};
    struct chain c = {0};
    uint64_t gathered[GATHERED_MAX];

    if (++tour->tried > TASKS_TRIED || is_late(&tour->py->budget))
        return 1;
    if (tour->loop && field(tour->py, task, AFTER_HEAD_0) != tour->loop)
        return 0;
    uint64_t coroutine = read_task(tour->py, task, shown.name, sizeof(shown.name), &shown.parent);

    if (!coroutine)
        return 0;
    follow(tour->py, coroutine, &c);
    if (c.n == 0) /* it has ended */
        return 0;
    reverse(&c);
    if (pb_py_codes(tour->py, c.codes, c.frames, c.n) < 0 ||
        pb_py_at_of_copies(tour->py, c.copies, c.frames, c.n) < 0)
        return 0;
    shown.running = c.running;
    if (!c.running) {
        shown.frames = c.frames;
        shown.n = c.n;
        uint64_t future = future_of(tour->py, c.awaited);
        name_awaited(tour->py, future, shown.waits_for, sizeof(shown.waits_for));
        shown.gathered = gathered;
        shown.ngathered = read_gathered(tour->py, future, gathered);
    }
    tour->n++;
    return tour->visit(tour->arg, &shown);
}

static int find_item(struct pb_py *py, struct items *it, const char *const *names, uint64_t *ret)
{
    uint64_t key, value;
    char text[PB_PY_NAME_MAX];

    for (int n = 0; n < 1024 && pb_py_items_next(py, it, &key, &value) == 1; n++)
        for (size_t i = 0; names[i]; i++)
            if (pb_py_text(py, key, text, sizeof(text), NULL) >= 0 && strcmp(text, names[i]) == 0) {
                *ret = value;
                return 0;
            }
    return -ENOENT;
}

/* The globals of the loop's module have the module asyncio.tasks, which has the set of tasks. */
static int find_set(struct pb_py *py, const struct pb_py_stack *stack, uint64_t *ret)
{
    static const char *const module[] = {"tasks", NULL}, *const sets[] = {"_all_tasks", "_scheduled_tasks",
                                                                          NULL};
    uint64_t globals, tasks, set;
    struct items it;

    for (size_t i = 0; i < stack->n; i++) {
        if (!strstr(stack->at[i].code->file, "asyncio/base_events.py"))
            continue;
        if (read_u64(py, stack->at[i].addr + py->layout.frame.globals, &globals) < 0 ||
            pb_py_items_of_dict(py, globals, &it) < 0 || find_item(py, &it, module, &tasks) < 0 ||
            pb_py_items_of_dict(py, field(py, tasks, AFTER_HEAD_0), &it) < 0 ||
            find_item(py, &it, sets, &set) < 0)
            return -ENOENT;
        return pb_py_attribute(py, set, "data", ret);
    }
    return -ENOENT;
}

/* The set has the tasks of all threads; the loop of this one is what its method runs for. 0: not known. */
static uint64_t find_loop(struct pb_py *py, const struct pb_py_stack *stack)
{
    uint64_t loop;

    for (size_t i = 0; i < stack->n; i++)
        if (strstr(stack->at[i].code->file, "asyncio/base_events.py") &&
            strcmp(stack->at[i].code->name, "run_forever") == 0 &&
            read_u64(py, stack->at[i].addr + py->layout.frame.locals, &loop) == 0)
            return untag(py, loop);
    return 0;
}

/* A set of weak references; the first field of each is its object. */
static int walk_set(struct tour *tour, uint64_t set)
{
    struct pb_py *py = tour->py;
    uint64_t mask, table, entry[2];

    if (read_u64(py, set + py->layout.set.mask, &mask) < 0 ||
        read_u64(py, set + py->layout.set.table, &table) < 0 || mask > SET_MAX)
        return -EBADMSG;
    int r = 0;
    for (uint64_t i = 0; r == 0 && i <= mask && tour->n < tour->max && !is_late(&py->budget); i++)
        if (pb_source_read(py->source, table + 16 * i, entry, sizeof(entry)) == 0 && entry[0] &&
            entry[1] != UINT64_MAX)
            r = show_task(tour, field(py, entry[0], AFTER_HEAD_0));
    return r;
}

/* The Task that contains a link: its head is some words before, recognised by its type. */
static uint64_t task_of(struct pb_py *py, uint64_t node)
{
    char type[TYPE_SIZE];

    for (uint64_t i = 1; i < NODE_SEARCH; i++)
        if (type_name(py, node - 8 * i, type) && strstr(type, "Task"))
            return node - 8 * i;
    return 0;
}

static int walk_list(struct tour *tour, uint64_t head)
{
    uint64_t node;
    int r = read_u64(tour->py, head, &node);

    for (size_t steps = 0; r == 0 && node && node != head && steps < SET_MAX && tour->n < tour->max;
         steps++) {
        if (is_late(&tour->py->budget))
            break;
        uint64_t task = task_of(tour->py, node);
        if (task)
            r = show_task(tour, task);
        if (r == 0)
            r = read_u64(tour->py, node, &node);
    }
    return r;
}

int pb_py_tasks(struct pb_py *py, const struct pb_py_thread *t, const struct pb_py_stack *stack, size_t max,
                int (*visit)(void *arg, const struct pb_py_task *task), void *arg)
{
    struct tour tour = {.py = py, .visit = visit, .arg = arg, .max = max};
    uint64_t set;
    int r = 0;

    if (py->layout.tstate.tasks)
        r = walk_list(&tour, t->tstate + py->layout.tstate.tasks);
    else if (find_set(py, stack, &set) == 0) {
        tour.loop = find_loop(py, stack);
        r = walk_set(&tour, set);
    }
    return r < 0 ? r : (int)tour.n;
}
