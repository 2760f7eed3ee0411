/* torch: the probe that records calls of PyTorch modules, phases and steps.
 *
 * Nothing visible to Python code is changed: the slots of classes (tp_call of modules, tp_iternext of data
 * loaders' iterators) and the C function of the autograd engine are replaced by functions of ours, which call
 * the originals. Only classes whose slot has the function shared by all of them are changed. torch.compile
 * does not see slots. Two hooks of ours are in torch's own list for all optimizers, if that list was empty;
 * they stay, since removing them while another thread iterates over the list would raise an exception there.
 *
 * Start and stop run in the resident thread, which has no GIL: a thread of ours takes it and does the rest,
 * also once a second, for classes made since. After stop our functions only call the originals, whether or
 * not that thread has restored the slots already. */
#include "agent/probes/torch/torch.h"
#include "agent/core/agent_clock.h"
#include "agent/core/fork_gate.h"
#include "agent/core/notes.h"
#include "agent/core/small_files.h"
#include "agent/crash/hang.h"
#include "agent/module/module.h"
#include "agent/probes/probe.h"
#include "agent/python/gil_work.h"
#include "agent/python/imported.h"
#include "agent/python/tensor.h"
#include "control/settings.h"
#include "table/clock.h"

#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define LOOK_NS       (200 * PB_NS_PER_MS) /* until torch is imported */
#define AGAIN_NS      PB_NS_PER_S
#define MOST_TYPES    100000
#define MOST_DEEP     60
#define HANG_LEAST_NS (30 * (int64_t)PB_NS_PER_S)

/* Offsets in a type object and a method descriptor, on LP64 with a GIL: the same from 3.6 to 3.15. */
#define TYPE_CALL      128
#define TYPE_NEXT      224
#define DESCR_METHOD   40
#define SLOT_ITERNEXT  63
#define METH_KEYWORDED (PB_METH_VARARGS | PB_METH_KEYWORDS)

struct pb_torch pb_torch = {.rate = 1};

static uint32_t wanted; /* the resident thread's word */
static uint32_t runs;   /* with the GIL */
static uint32_t slots_in;
static struct pb_py_method *backward_method; /* torch's; NULL: not found yet */
/* Set by the resident thread, from the settings of the process and of the probe; read with the GIL. */
static double rate_wanted = 1, budget_wanted = 1;
static double rate_given = -1, budget_given = -1; /* of the probe's own settings; -1: none */
static double rate_set = 1, budget_set = 1;       /* of the process */
static double hang_seconds = 0;                   /* 0: ten usual steps; negative: off */
static int switched = -1;                         /* the last value of probing.torch.profiling */
static int64_t hangs_since;                       /* of the reported hang; 0: none */
static char trouble[160];                         /* why nothing is recorded; "": no problem is known */

/* --- with the GIL ---------------------------------------------------------------------------------- */

static void **slot_at(pb_pyobject *type, size_t offset)
{
    return (void **)(void *)((char *)type + offset);
}

struct swap {
    pb_pyobject *subclasses; /* type.__subclasses__ */
    size_t offset;
    void *from, *to;
    unsigned left;
};

static void swap_tree(const struct pb_python *py, struct swap *swap, pb_pyobject *type, int deep)
{
    void **slot = slot_at(type, swap->offset);

    if (*slot == swap->from)
        __atomic_store_n(slot, swap->to, __ATOMIC_RELEASE);
    pb_pyobject *below =
        deep < MOST_DEEP && swap->left-- ? py->call(swap->subclasses, type, (void *)NULL) : NULL;
    for (long i = 0, n = below ? py->list_size(below) : 0; i < n; i++)
        swap_tree(py, swap, py->list_get(below, i), deep + 1);
    if (below)
        py->decref(below);
    py->err_clear();
}

/* Swaps the slot of a class and all its subclasses. */
static void swap_slots(const struct pb_python *py, pb_pyobject *type, size_t offset, void *from, void *to)
{
    pb_pyobject *meta = pb_type_of(py->object_type, pb_module_header(py)); /* type */
    struct swap swap = {.subclasses = py->get_attr(meta, "__subclasses__"),
                        .offset = offset,
                        .from = from,
                        .to = to,
                        .left = MOST_TYPES};

    if (swap.subclasses)
        swap_tree(py, &swap, type, 0);
    if (swap.subclasses)
        py->decref(swap.subclasses);
    py->err_clear();
}

/* The slot of a class, if its offset is as expected. */
static void *read_slot(const struct pb_python *py, pb_pyobject *type, size_t offset, int id)
{
    void *function = py->type_slot(type, id);

    py->err_clear();
    return function && function == *slot_at(type, offset) ? function : NULL;
}

/* Replaces the function shared by all classes by ours. */
static void put_slots(const struct pb_python *py)
{
    pb_pyobject *module = pb_imported(py, "torch.nn.modules.module", "Module");
    pb_pyobject *loader = pb_imported(py, "torch.utils.data.dataloader", "_BaseDataLoaderIter");

    if (module && !pb_torch.original_call) {
        void *call = read_slot(py, module, TYPE_CALL, PB_SLOT_CALL);
        memcpy(&pb_torch.original_call, &call, sizeof(call));
        if (!call)
            snprintf(trouble, sizeof(trouble), "the classes of this Python are laid out otherwise");
    }
    if (loader && !pb_torch.original_next) {
        void *next = read_slot(py, loader, TYPE_NEXT, SLOT_ITERNEXT);
        memcpy(&pb_torch.original_next, &next, sizeof(next));
    }
    if (module && pb_torch.original_call)
        swap_slots(py, module, TYPE_CALL, (void *)pb_torch.original_call, (void *)pb_torch_call_module);
    if (loader && pb_torch.original_next)
        swap_slots(py, loader, TYPE_NEXT, (void *)pb_torch.original_next, (void *)pb_torch_next_batch);
    slots_in = 1;
    pb_pyobject *held[] = {module, loader};
    for (int i = 0; i < 2; i++)
        if (held[i])
            py->decref(held[i]);
}

static void take_slots(const struct pb_python *py)
{
    pb_pyobject *module = pb_imported(py, "torch.nn.modules.module", "Module");
    pb_pyobject *loader = pb_imported(py, "torch.utils.data.dataloader", "_BaseDataLoaderIter");

    if (module)
        swap_slots(py, module, TYPE_CALL, (void *)pb_torch_call_module, (void *)pb_torch.original_call);
    if (loader)
        swap_slots(py, loader, TYPE_NEXT, (void *)pb_torch_next_batch, (void *)pb_torch.original_next);
    slots_in = 0;
    pb_pyobject *held[] = {module, loader};
    for (int i = 0; i < 2; i++)
        if (held[i])
            py->decref(held[i]);
}

/* Copies through the kernel: unexpected memory is an error and not a signal. */
static int copy_checked(void *to, const void *from, size_t size, int write)
{
    struct iovec here = {.iov_base = write ? (void *)(uintptr_t)from : to, .iov_len = size};
    struct iovec there = {.iov_base = write ? to : (void *)(uintptr_t)from, .iov_len = size};
    ssize_t n = write ? process_vm_writev(getpid(), &here, 1, &there, 1, 0)
                      : process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    return n == (ssize_t)size ? 0 : -EFAULT;
}

/* The method run_backward of the autograd engine, defined by torch's C++ code. */
static struct pb_py_method *find_backward(const struct pb_python *py)
{
    pb_pyobject *engine = pb_imported(py, "torch._C", "_ImperativeEngine");
    pb_pyobject *method = engine ? py->get_attr(engine, "run_backward") : NULL;
    struct pb_py_method *found = NULL, copy;
    char name[sizeof("run_backward")] = "";

    if (method)
        found = *(struct pb_py_method *const *)(const void *)((const char *)method + DESCR_METHOD);
    if (!found || copy_checked(&copy, found, sizeof(copy), 0) < 0 ||
        copy_checked(name, copy.name, sizeof(name), 0) < 0 || strcmp(name, "run_backward") != 0 ||
        copy.flags != METH_KEYWORDED ||
        copy_checked(&found->function, &copy.function, sizeof(copy.function), 1) < 0) /* may be written? */
        found = NULL;
    py->err_clear();
    pb_pyobject *held[] = {engine, method};
    for (int i = 0; i < 2; i++)
        if (held[i])
            py->decref(held[i]);
    return found;
}

static void put_backward(const struct pb_python *py)
{
    if (!backward_method)
        backward_method = find_backward(py);
    if (!backward_method || backward_method->function == (pb_py_function)pb_torch_run_backward)
        return;
    if (!pb_torch.original_backward)
        memcpy(&pb_torch.original_backward, &backward_method->function, sizeof(pb_torch.original_backward));
    if ((pb_py_function)pb_torch.original_backward == backward_method->function)
        __atomic_store_n(&backward_method->function, (pb_py_function)pb_torch_run_backward, __ATOMIC_RELEASE);
}

static void take_backward(void)
{
    if (backward_method && backward_method->function == (pb_py_function)pb_torch_run_backward)
        __atomic_store_n(&backward_method->function, (pb_py_function)pb_torch.original_backward,
                         __ATOMIC_RELEASE);
}

/* One hook for all optimizers, once per process. */
static void put_hook(const struct pb_python *py, const char *list, const char *function,
                     struct pb_py_method *method)
{
    pb_pyobject *hooks = pb_imported(py, "torch.optim.optimizer", list);
    pb_pyobject *put =
        hooks && py->size_of(hooks) == 0 ? pb_imported(py, "torch.optim.optimizer", function) : NULL;
    pb_pyobject *hook = put ? py->cfunction(method, NULL, NULL) : NULL;
    pb_pyobject *handle = hook ? py->call(put, hook, (void *)NULL) : NULL;

    py->err_clear();
    pb_pyobject *held[] = {hooks, put, hook, handle};
    for (int i = 0; i < 4; i++)
        if (held[i])
            py->decref(held[i]);
}

static void put_hooks(const struct pb_python *py)
{
    put_hook(py, "_global_optimizer_pre_hooks", "register_optimizer_step_pre_hook", &pb_torch_before_step);
    put_hook(py, "_global_optimizer_post_hooks", "register_optimizer_step_post_hook", &pb_torch_after_step);
}

static void take_settings(void)
{
    __atomic_load(&rate_wanted, &pb_torch.rate, __ATOMIC_RELAXED);
    __atomic_load(&budget_wanted, &pb_torch.budget, __ATOMIC_RELAXED);
    if (pb_torch.budget <= 0)
        pb_torch.thin = 1;
}

static void begin_run(const struct pb_python *py)
{
    int r = pb_torch_names_begin(py);
    if (r < 0) { /* busy: the next tick tries again */
        if (r != -EBUSY)
            snprintf(trouble, sizeof(trouble), "out of memory for the names of modules");
        return;
    }
    take_settings();
    pb_torch.calls = pb_torch.lost = 0;
    pb_torch_calls_reset();
    pb_torch_cost_reset();
    pb_tensor_begin(py);
    pb_torch_steps_reset(pb_clock_mono());
    runs = runs + 1 ? runs + 1 : 1;
    __atomic_store_n(&pb_torch.run, runs, __ATOMIC_SEQ_CST);
    /* The resident thread stores in the opposite order, so one of the threads sees the other. */
    if (!__atomic_load_n(&wanted, __ATOMIC_SEQ_CST))
        __atomic_store_n(&pb_torch.run, 0, __ATOMIC_SEQ_CST);
}

static void put_in_or_take_out(const struct pb_python *py)
{
    if (!__atomic_load_n(&wanted, __ATOMIC_SEQ_CST)) {
        if (slots_in)
            take_slots(py);
        take_backward();
        pb_torch_comm_take(py);
        pb_torch_track_take(py);
        pb_torch_number_take(py);
        pb_torch_gpu_take(py);
        pb_torch_backward_cancel();
        if (!pb_torch_run())
            pb_torch_names_end(py);
        return;
    }
    pb_pyobject *module = pb_imported(py, "torch.nn.modules.module", "Module");
    if (!module)
        return;
    py->decref(module);
    if (!pb_torch_run())
        begin_run(py);
    take_settings();
    pb_torch_mode_put(py);
    put_hooks(py);
    put_backward(py);
    put_slots(py);
    /* Rows are made from here on. Each of these may load a part of ours, some milliseconds: the program gets
     * the GIL in between, so that no step waits for all of them. */
    static void (*const others[])(const struct pb_python *) = {
        pb_torch_comm_put, pb_torch_track_put, pb_torch_number_put, pb_torch_gpu_put, pb_torch_backward_put};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        py->restore_thread(py->save_thread());
        if (!__atomic_load_n(&wanted, __ATOMIC_SEQ_CST))
            return; /* stopped meanwhile: the removal comes after us */
        others[i](py);
    }
}

/* --- the thread that takes the GIL ----------------------------------------------------------------- */

static int is_torch(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    return info->dlpi_name && strstr(info->dlpi_name, "libtorch_python.so") != NULL;
}

static void refuse(const char *why)
{
    snprintf(trouble, sizeof(trouble), "%s", why);
}

static int is_torch_here(void)
{
    return pb_fork_gate_each_object(is_torch, NULL);
}

static int are_left_in(void)
{
    return !__atomic_load_n(&wanted, __ATOMIC_SEQ_CST) && __atomic_load_n(&slots_in, __ATOMIC_SEQ_CST);
}

/* Do not take the GIL in a process without torch. */
static struct pb_gil_work work = {.name = "probing-torch",
                                  .possible = is_torch_here,
                                  .least_minor = 7,
                                  .run = put_in_or_take_out,
                                  .refused = refuse,
                                  .again = are_left_in};

/* --- the probe ------------------------------------------------------------------------------------- */

/* Reads `name` from the probe's settings as a number from 0 to most; `off` is 0. -1: missing. */
static int read_number(const char *settings, const char *name, double most, double *ret, char *why,
                       size_t why_size)
{
    char key[32];

    snprintf(key, sizeof(key), "%s=", name);
    const char *at = strstr(settings, key);
    *ret = -1;
    if (!at)
        return 0;
    at += strlen(key);
    size_t length = strcspn(at, " ");
    if (length == 3 && memcmp(at, "off", 3) == 0) {
        *ret = 0;
        return 0;
    }
    char *end;
    long whole = strtol(at, &end, 10);
    double number = (double)whole, unit = 0.1;
    for (end += *end == '.'; *end >= '0' && *end <= '9'; end++, unit /= 10)
        number += (*end - '0') * unit;
    if (length == 0 || end != at + length || number < 0 || number > most) {
        snprintf(why, why_size, "%s is a number from 0 to %g, such as 0.05, not '%.*s'", name, most,
                 (int)(length < 20 ? length : 20), at);
        return -EINVAL;
    }
    *ret = number;
    return 0;
}

/* The probe's own settings override those of the process. */
static void settle(void)
{
    double rate = rate_given >= 0 ? rate_given : rate_set;
    double budget = budget_given >= 0 ? budget_given : budget_set;

    __atomic_store(&rate_wanted, &rate, __ATOMIC_RELAXED);
    __atomic_store(&budget_wanted, &budget, __ATOMIC_RELAXED);
}

static int configure(const struct pb_settings *settings, const char *changed)
{
    int before = switched;

    if (!settings) {
        switched = -1;
        return -1;
    }
    /* The default rate is for samples of stacks: modules are sampled less often only where the rate was set.
     */
    rate_set = settings->at[PB_SET_SAMPLE_RATE].origin > PB_ORIGIN_BAD_VARIABLE
                   ? settings->at[PB_SET_SAMPLE_RATE].number
                   : 1;
    budget_set = settings->at[PB_SET_TORCH_BUDGET].number;
    hang_seconds = strcmp(settings->at[PB_SET_TORCH_HANG_TIMEOUT].text, "off") == 0
                       ? -1
                       : settings->at[PB_SET_TORCH_HANG_TIMEOUT].number;
    settle();
    pb_torch_track_set(settings->at[PB_SET_TORCH_PROFILING].text);
    switched = pb_settings_switched(settings, PB_SET_TORCH_PROFILING);
    /* The same value set again counts as a change: the probe may have been stopped by name since. */
    if (changed && strcmp(changed, pb_setting_info[PB_SET_TORCH_PROFILING].name) == 0)
        return switched;
    return switched != before ? switched : -1;
}

static int start(struct pb_arena *arena, const char *settings, char *why, size_t why_size)
{
    double rate = -1, budget = -1;
    (void)arena; /* its tables are made with their first rows (torch_rows.c) */

    int r = pb_probe_check(settings, "sample_rate budget", why, why_size);
    if (r == 0)
        r = read_number(settings, "sample_rate", 1, &rate, why, why_size);
    if (r == 0)
        r = read_number(settings, "budget", 100, &budget, why, why_size);
    if (r < 0)
        return r;
    rate_given = rate;
    budget_given = budget;
    settle();
    trouble[0] = '\0';
    hangs_since = 0;
    __atomic_store_n(&wanted, 1, __ATOMIC_SEQ_CST);
    pb_gil_work_start(
        &work); /* not only with the next tick: where torch is there, so is the first row soon */
    return 0;
}

static int stop(char *why, size_t why_size)
{
    (void)why;
    (void)why_size;
    __atomic_store_n(&wanted, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&pb_torch.run, 0, __ATOMIC_SEQ_CST);
    pb_hang_dismiss_keeper();
    pb_torch_flight_stop();
    pb_gil_work_start(&work);
    return 0;
}

/* Ends blocks in which collectives are recorded, and removes their kernels from torch. */
static void end_blocks(void)
{
    pb_torch_comm_end_blocks();
    if (!__atomic_load_n(&wanted, __ATOMIC_SEQ_CST) && pb_torch_comm_installed())
        pb_gil_work_start(&work);
}

static void read_memory(void)
{
    char statm[128];
    long total, resident;

    pb_file_read("/proc/self/statm", statm, sizeof(statm));
    if (sscanf(statm, "%ld %ld", &total, &resident) == 2)
        __atomic_store_n(&pb_torch.host_bytes, (int64_t)resident * sysconf(_SC_PAGESIZE), __ATOMIC_RELAXED);
}

/* Whether a thread waits for events or input from outside the job. An event loop without work (a server, a
 * notebook) is idle, whatever it did before. */
static int waits_for_events(int32_t tid)
{
    char path[64], text[128];

    snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", (int)tid);
    pb_file_read(path, text, sizeof(text));
    char *end;
    long number = strtol(text, &end, 10);
    if (end == text)
        return 0; /* it runs, or may not be looked at */
    return number == SYS_epoll_pwait ||
#ifdef SYS_epoll_wait
           number == SYS_epoll_wait ||
#endif
#ifdef SYS_epoll_pwait2
           number == SYS_epoll_pwait2 ||
#endif
           (number == SYS_read && strtoul(end, NULL, 16) == STDIN_FILENO);
}

/* Since when nothing progressed, and what the thread waits for; 0: it does not wait. In training, progress is
 * the begin or end of a phase; else a call. */
static int64_t stuck_since(int32_t *tid, const char **what)
{
    static const char *const doing[] = {"between two phases", "in forward", "in backward",
                                        "in the step of an optimizer", "waiting for the data loader"};
    uint32_t phase = __atomic_load_n(&pb_torch.in_phase, __ATOMIC_RELAXED);

    if (!__atomic_load_n(&pb_torch.training, __ATOMIC_RELAXED)) {
        *what = doing[PB_TORCH_FORWARD + 1];
        return pb_torch_oldest_call(tid);
    }
    *tid = pb_torch_stepping_thread();
    *what = doing[phase < sizeof(doing) / sizeof(doing[0]) ? phase : 0];
    return __atomic_load_n(&pb_torch.alive, __ATOMIC_RELAXED);
}

/* Checks whether the job makes progress, without Python: a job that hangs may hold the GIL. */
static void look_for_hang(int64_t now)
{
    int64_t usual = __atomic_load_n(&pb_torch.usual, __ATOMIC_RELAXED);
    int32_t tid = 0;
    const char *what;
    char text[200];

    int64_t alive = stuck_since(&tid, &what);
    if (hangs_since && alive != hangs_since) {
        snprintf(text, sizeof(text), "the job goes on after %.1f s",
                 (double)((alive ? alive : now) - hangs_since) / 1e9);
        pb_note_alert(&(struct pb_alert){
            .kind = "resumed", .severity = "note", .text = text, .step = pb_torch_number(pb_torch.step)});
        hangs_since = 0;
    }
    if (hangs_since || !alive || !usual || hang_seconds < 0)
        return;
    int64_t limit = hang_seconds > 0 ? (int64_t)(hang_seconds * 1e9) : usual * 10;
    if (hang_seconds == 0 && limit < HANG_LEAST_NS)
        limit = HANG_LEAST_NS;
    if (now - alive < limit || (tid && waits_for_events(tid)))
        return;
    hangs_since = alive;
    int training = __atomic_load_n(&pb_torch.training, __ATOMIC_RELAXED) != 0;
    snprintf(text, sizeof(text), "%s for %.1f s, %s; a %s usually takes %.3g s",
             training ? "no step" : "a call does not end", (double)(now - alive) / 1e9, what,
             training ? "step" : "call", (double)usual / 1e9);
    pb_note_alert(&(struct pb_alert){.kind = "hang",
                                     .severity = "error",
                                     .subject = what,
                                     .text = text,
                                     .step = pb_torch_number(pb_torch.step),
                                     .value = (double)(now - alive) / 1e9,
                                     .has_value = 1});
    pb_hang_began(tid);
}

static uint64_t tick(uint64_t now)
{
    static uint64_t whole_ns; /* when all of it is due */
    uint64_t flight = pb_torch_run() ? now + pb_torch_flight_tick() : UINT64_MAX;

    if (now >= whole_ns || !pb_torch_run()) {
        if (pb_torch_run()) {
            read_memory();
            look_for_hang(pb_clock_mono());
        }
        pb_gil_work_start(&work);
        whole_ns = now + (pb_torch_run() ? AGAIN_NS : LOOK_NS);
    }
    return flight < whole_ns ? flight : whole_ns;
}

static void forget(void)
{
    wanted = 0;
    pb_gil_work_forget(&work);
    __atomic_store_n(&pb_torch.run, 0, __ATOMIC_SEQ_CST);
    pb_torch_comm_forget();
    pb_torch_track_forget();
    pb_torch_number_forget();
    pb_torch_gpu_forget();
    pb_torch_backward_forget();
}

static void describe_run(char *ret, size_t size)
{
    char ends[120];

    pb_torch_flight_describe(ends, sizeof(ends));
    snprintf(ret, size, "modules of %.3g%% of the steps%s; step %lld, %llu calls%s",
             pb_torch.rate * 100 / pb_torch.thin, pb_torch_comm_installed() ? ", collectives" : "",
             (long long)pb_torch_number(pb_torch.step), (unsigned long long)pb_torch.calls, ends);
}

static void describe(char *ret, size_t size)
{
    if (trouble[0])
        snprintf(ret, size, "%s", trouble);
    else if (!pb_torch_run())
        snprintf(ret, size, "waits for torch to be imported");
    else
        describe_run(ret, size);
}

const struct pb_probe pb_probe_torch = {
    .name = "torch",
    .text = "calls of PyTorch modules, phases and steps",
    .settings = "sample_rate=1 budget=1",
    .configure = configure,
    .start = start,
    .stop = stop,
    .tick = tick,
    .detach = end_blocks,
    .forked = forget,
    .describe = describe,
};
