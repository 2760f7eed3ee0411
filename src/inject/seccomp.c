/* seccomp: see seccomp.h. This file: the interpreter of filters and the checks. seccomp_calls.c has the table
 * of calls. */
#include "inject/seccomp.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <linux/audit.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/procfs.h"
#include "base/time.h"
#include "inject/find.h"
#include "remote/interrupted.h"
#include "remote/procinfo.h"
#include "remote/trace.h"
#include "remote/transfer.h"

#ifndef PTRACE_SECCOMP_GET_FILTER
#define PTRACE_SECCOMP_GET_FILTER 0x420c
#endif

enum {
    FILTERS_MAX = 64,
    CODE_MAX = BPF_MAXINSNS,
};

#define STOP_LIMIT (100 * PB_NS_PER_MS)

#if defined(__x86_64__)
#define OUR_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OUR_ARCH AUDIT_ARCH_AARCH64
#endif

struct bpf_machine {
    uint32_t a, x, memory[BPF_MEMWORDS];
};

/* 0: continue with the next instruction. */
static int run_alu(struct bpf_machine *m, const struct sock_filter *f)
{
    uint32_t operand = BPF_SRC(f->code) == BPF_X ? m->x : f->k;
    switch (BPF_OP(f->code)) {
    case BPF_ADD:
        m->a += operand;
        return 0;
    case BPF_SUB:
        m->a -= operand;
        return 0;
    case BPF_MUL:
        m->a *= operand;
        return 0;
    case BPF_DIV: /* division by zero ends a program with 0, which kills */
        m->a = operand ? m->a / operand : 0;
        return operand ? 0 : 1;
    case BPF_AND:
        m->a &= operand;
        return 0;
    case BPF_OR:
        m->a |= operand;
        return 0;
    case BPF_XOR:
        m->a ^= operand;
        return 0;
    case BPF_LSH:
        m->a = operand < 32 ? m->a << operand : 0;
        return 0;
    case BPF_RSH:
        m->a = operand < 32 ? m->a >> operand : 0;
        return 0;
    case BPF_NEG:
        m->a = 0u - m->a;
        return 0;
    }
    return -EINVAL;
}

static int run_load(struct bpf_machine *m, const struct sock_filter *f, const struct seccomp_data *data)
{
    uint32_t *to = BPF_CLASS(f->code) == BPF_LDX ? &m->x : &m->a;
    if (BPF_SIZE(f->code) != BPF_W)
        return -EINVAL;
    switch (BPF_MODE(f->code)) {
    case BPF_IMM:
        *to = f->k;
        return 0;
    case BPF_ABS: /* seccomp data: whole words only, into A */
        if (to != &m->a || f->k % 4 || f->k > sizeof(*data) - 4)
            return -EINVAL;
        memcpy(to, (const char *)data + f->k, 4);
        return 0;
    case BPF_MEM:
        if (f->k >= BPF_MEMWORDS)
            return -EINVAL;
        *to = m->memory[f->k];
        return 0;
    case BPF_LEN:
        *to = sizeof(*data);
        return 0;
    }
    return -EINVAL;
}

static int run_jump(const struct bpf_machine *m, const struct sock_filter *f, uint32_t *ret_skip)
{
    uint32_t operand = BPF_SRC(f->code) == BPF_X ? m->x : f->k;
    bool taken;
    switch (BPF_OP(f->code)) {
    case BPF_JA:
        *ret_skip = f->k;
        return 0;
    case BPF_JEQ:
        taken = m->a == operand;
        break;
    case BPF_JGT:
        taken = m->a > operand;
        break;
    case BPF_JGE:
        taken = m->a >= operand;
        break;
    case BPF_JSET:
        taken = m->a & operand;
        break;
    default:
        return -EINVAL;
    }
    *ret_skip = taken ? f->jt : f->jf;
    return 0;
}

static int run_misc(struct bpf_machine *m, const struct sock_filter *f)
{
    if (BPF_MISCOP(f->code) == BPF_TAX)
        m->x = m->a;
    else if (BPF_MISCOP(f->code) == BPF_TXA)
        m->a = m->x;
    else
        return -EINVAL;
    return 0;
}

static int run_store(struct bpf_machine *m, const struct sock_filter *f)
{
    if (f->k >= BPF_MEMWORDS)
        return -EINVAL;
    m->memory[f->k] = BPF_CLASS(f->code) == BPF_STX ? m->x : m->a;
    return 0;
}

int pb_seccomp_run(const struct sock_filter *code, size_t n, const struct seccomp_data *data, uint32_t *ret)
{
    struct bpf_machine m = {0};
    /* Jumps go forward only, so that every program ends. */
    for (size_t pc = 0; pc < n; pc++) {
        const struct sock_filter *f = &code[pc];
        uint32_t skip = 0;
        int r = 0;
        switch (BPF_CLASS(f->code)) {
        case BPF_LD:
        case BPF_LDX:
            r = run_load(&m, f, data);
            break;
        case BPF_ST:
        case BPF_STX:
            r = run_store(&m, f);
            break;
        case BPF_ALU:
            r = run_alu(&m, f);
            break;
        case BPF_JMP:
            r = run_jump(&m, f, &skip);
            break;
        case BPF_MISC:
            r = run_misc(&m, f);
            break;
        case BPF_RET:
            *ret = BPF_RVAL(f->code) == BPF_A ? m.a : f->k;
            return 0;
        }
        if (r < 0)
            return r;
        if (r == 1) {
            *ret = 0;
            return 0;
        }
        if (skip >= n - pc)
            return -EINVAL;
        pc += skip;
    }
    return -EINVAL;
}

/* The lowest action as a signed number counts; of equal ones, the newer. */
enum pb_seccomp_verdict pb_seccomp_judge(const uint32_t *answers, size_t n)
{
    int32_t strictest = (int32_t)SECCOMP_RET_ALLOW;
    for (size_t i = 0; i < n; i++) {
        int32_t action = (int32_t)(answers[i] & SECCOMP_RET_ACTION_FULL);
        if (action < strictest)
            strictest = action;
    }
    switch ((uint32_t)strictest) {
    case SECCOMP_RET_ALLOW:
    case SECCOMP_RET_LOG:
        return PB_SECCOMP_ALLOWED;
    case SECCOMP_RET_ERRNO:
        return PB_SECCOMP_ERROR;
    }
    return PB_SECCOMP_FATAL;
}

struct filters {
    struct sock_filter *code[FILTERS_MAX];
    size_t len[FILTERS_MAX];
    size_t n;
};

static void filters_done(struct filters *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->code[i]);
}

/* For a thread in a ptrace stop. -EACCES: not allowed. */
static int copy_filters(pid_t tid, struct filters *ret)
{
    for (; ret->n < FILTERS_MAX; ret->n++) {
        struct sock_filter *code = reallocarray(NULL, CODE_MAX, sizeof(*code));
        if (!code)
            return -ENOMEM;
        long len = ptrace(PTRACE_SECCOMP_GET_FILTER, tid, ret->n, code);
        if (len <= 0) {
            int error = errno;
            free(code);
            return ret->n && error == ENOENT ? 0 : error == ESRCH ? -ESRCH : -EACCES;
        }
        ret->code[ret->n] = code;
        ret->len[ret->n] = (size_t)len;
    }
    return -EACCES;
}

static unsigned count_filters(pid_t pid, pid_t tid)
{
    char name[40], text[8192];
    snprintf(name, sizeof(name), "task/%d/status", tid);
    return pb_proc_read(pid, name, text, sizeof(text)) < 0
               ? 0
               : (unsigned)pb_proc_number(text, "Seccomp_filters", 10);
}

/* The thread that makes the calls: that of an agent already there, else the first of the process. */
static pid_t find_maker(pid_t pid)
{
    char name[40], text[32];
    pid_t found = pid;
    snprintf(name, sizeof(name), "/proc/%d/task", pid);
    DIR *dir = opendir(name);
    for (struct dirent *d; dir && (d = readdir(dir));) {
        snprintf(name, sizeof(name), "task/%.10s/comm", d->d_name);
        if (pb_proc_read(pid, name, text, sizeof(text)) > 0 && strcmp(text, "probing\n") == 0)
            found = (pid_t)atoi(d->d_name);
    }
    if (dir)
        closedir(dir);
    return found;
}

/* A thread to stop in order to read the filters: with as many as the thread that makes the calls, and in no
 * wait that a stop would make longer or cut short. 0: none now. */
static pid_t choose_thread(const struct pb_procinfo *p)
{
    char path[32];
    pid_t found = 0;
    unsigned wanted = count_filters(p->pid, find_maker(p->pid));
    snprintf(path, sizeof(path), "/proc/%d/task", p->pid);
    DIR *dir = opendir(path);
    if (!dir)
        return 0;
    for (struct dirent *d; !found && (d = readdir(dir));) {
        struct pb_waiting waiting;
        pid_t tid = (pid_t)atoi(d->d_name);
        if (tid <= 0 || count_filters(p->pid, tid) != wanted)
            continue;
        int r = pb_waiting_read(p->pid, tid, -1, &waiting);
        if (r == 0 ||
            (r == 1 && !pb_transfer_waits(p->pid, tid, &waiting) &&
             (pb_waiting_keeps_its_time(&waiting) || !pb_waiting_would_begin_anew(p->pid, &waiting))))
            found = tid;
    }
    closedir(dir);
    return found;
}

static int read_filters(const struct pb_procinfo *p, struct filters *ret)
{
    pid_t tid = choose_thread(p);
    int signal;
    if (!tid)
        return -EAGAIN;
    int r = pb_trace_stop_once(p->pid, tid, STOP_LIMIT, &signal);
    /* A thread that waits with a timeout is not stopped for this: the filters of the borrowed thread are
     * checked later. */
    if (r < 0)
        return r == -ESRCH ? r : r == -EPERM ? -EACCES : -EAGAIN;
    r = copy_filters(tid, ret);
    pb_trace_let_go(p->pid, tid, signal);
    return r;
}

/* Adds a name once: a call is in the table several times where filters look at its arguments. False: it was
 * there. */
static bool add_name(char *names, size_t size, const char *name)
{
    size_t used = strlen(names), length = strlen(name);
    for (const char *at = names; (at = strstr(at, name)); at += length)
        if ((at == names || at[-1] == ' ') && (at[length] == ',' || !at[length]))
            return false;
    if (used + strlen(name) + 3 < size)
        snprintf(names + used, size - used, "%s%s", used ? ", " : "", name);
    return true;
}

static enum pb_seccomp_verdict judge_call(const struct filters *f, const struct pb_seccomp_call *call)
{
    struct seccomp_data data = {.nr = call->number, .arch = OUR_ARCH};
    uint32_t answers[FILTERS_MAX];
    memcpy(data.args, call->args, sizeof(data.args));
    for (size_t i = 0; i < f->n; i++)
        if (pb_seccomp_run(f->code[i], f->len[i], &data, &answers[i]) < 0)
            answers[i] = SECCOMP_RET_KILL_PROCESS;
    return pb_seccomp_judge(answers, f->n);
}

static int judge_all(const struct filters *f, enum pb_seccomp_use use, char *names, size_t size)
{
    int fatal = 0;
    for (size_t i = 0; i < pb_seccomp_ncalls; i++) {
        if (pb_seccomp_calls[i].use != use || judge_call(f, &pb_seccomp_calls[i]) != PB_SECCOMP_FATAL)
            continue;
        fatal += add_name(names, size, pb_seccomp_calls[i].name);
    }
    return fatal;
}

/* A child that makes the calls of the table from `first` on, with arguments that have no effect, and ends
 * with the number that it survived. exit and rt_sigreturn are left out: they do not return, and every program
 * makes them. For socket, filters look at the family. */
static _Noreturn void make_calls(size_t first, enum pb_seccomp_use use, int tell)
{
    for (size_t i = first; i < pb_seccomp_ncalls; i++) {
        const struct pb_seccomp_call *call = &pb_seccomp_calls[i];
        uint16_t at = (uint16_t)i;
        if (call->use != use)
            continue;
        if (write(tell, &at, sizeof(at)) != sizeof(at))
            _exit(1);
        if (call->number == SYS_socket)
            syscall(call->number, call->args[0], call->args[1], 0ul);
        else if (call->number != SYS_exit && call->number != SYS_rt_sigreturn)
            syscall(call->number, -1L, -1L, -1L, -1L, -1L, -1L);
    }
    _exit(0);
}

/* 0: the child survived all calls from `first` on; 1: *ret_at killed it. */
static int try_from(size_t first, enum pb_seccomp_use use, size_t *ret_at)
{
    int ends[2], status;
    uint16_t at = (uint16_t)first, last = at;
    if (pipe(ends) < 0)
        return -errno;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSYS, SIG_DFL);
        make_calls(first, use, ends[1]);
    }
    close(ends[1]);
    while (child > 0 && read(ends[0], &at, sizeof(at)) == sizeof(at))
        last = at;
    close(ends[0]);
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -EAGAIN;
    *ret_at = last;
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS;
}

static int try_in_child(enum pb_seccomp_use use, char *names, size_t size)
{
    int fatal = 0;
    for (size_t first = 0, at = 0; first < pb_seccomp_ncalls; first = at + 1) {
        int r = try_from(first, use, &at);
        if (r < 0)
            return r;
        if (r == 0)
            break;
        fatal += add_name(names, size, pb_seccomp_calls[at].name);
    }
    return fatal;
}

int pb_seccomp_check_stopped(pid_t tid, char *names, size_t size)
{
    _cleanup_(filters_done) struct filters f = {.n = 0};
    names[0] = '\0';
    int r = copy_filters(tid, &f);
    return r < 0 ? r : judge_all(&f, PB_SECCOMP_AGENT, names, size);
}

int pb_seccomp_check(const struct pb_procinfo *p, enum pb_seccomp_use use, char *names, size_t size)
{
    _cleanup_(filters_done) struct filters f = {.n = 0};
    names[0] = '\0';
    int r = read_filters(p, &f);
    if (r == 0)
        return judge_all(&f, use, names, size);
    if (r != -EACCES)
        return r;
    unsigned theirs = count_filters(p->pid, p->pid), ours = count_filters(getpid(), getpid());
    if (theirs == 0 || theirs > ours)
        return -EACCES;
    return try_in_child(use, names, size);
}
