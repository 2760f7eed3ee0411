/* stacks_core: why the process of a core file died. See stacks.h. */
#include "ask/stacks.h"
#include "remote/core.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

const char *pb_stacks_signal(int number, char *buf, size_t size)
{
    static const char *const names[] = {
        [SIGHUP] = "SIGHUP",   [SIGINT] = "SIGINT",       [SIGQUIT] = "SIGQUIT", [SIGILL] = "SIGILL",
        [SIGTRAP] = "SIGTRAP", [SIGABRT] = "SIGABRT",     [SIGBUS] = "SIGBUS",   [SIGFPE] = "SIGFPE",
        [SIGKILL] = "SIGKILL", [SIGUSR1] = "SIGUSR1",     [SIGSEGV] = "SIGSEGV", [SIGUSR2] = "SIGUSR2",
        [SIGPIPE] = "SIGPIPE", [SIGALRM] = "SIGALRM",     [SIGTERM] = "SIGTERM", [SIGXCPU] = "SIGXCPU",
        [SIGXFSZ] = "SIGXFSZ", [SIGVTALRM] = "SIGVTALRM", [SIGSYS] = "SIGSYS",
    };

    if (number > 0 && (size_t)number < sizeof(names) / sizeof(names[0]) && names[number])
        return names[number];
    snprintf(buf, size, "signal %d", number);
    return buf;
}

/* The signal's cause, from the kernel. */
static void put_cause(const struct pb_core_info *info, char *ret, size_t size)
{
    bool fault =
        info->signal == SIGSEGV || info->signal == SIGBUS || info->signal == SIGILL || info->signal == SIGFPE;
    unsigned long long address = info->address;

    ret[0] = '\0';
    if (info->code <= 0 && info->sender == info->pid)
        snprintf(ret, size, ", which it sent itself (abort, or kill)");
    else if (info->code <= 0 && info->sender)
        snprintf(ret, size, ", sent by process %d", (int)info->sender);
    else if (info->signal == SIGSEGV && info->code == SEGV_MAPERR)
        snprintf(ret, size, ": there is no memory at 0x%llx", address);
    else if (info->signal == SIGSEGV && info->code == SEGV_ACCERR)
        snprintf(ret, size, ": permission denied for the memory at 0x%llx", address);
    else if (info->signal == SIGBUS && info->code == BUS_ADRERR)
        snprintf(ret, size,
                 ": behind the memory at 0x%llx is no file or page (a file cut short, a full /dev/shm)",
                 address);
    else if (info->signal == SIGFPE && info->code == FPE_INTDIV)
        snprintf(ret, size, ": integer divided by zero at 0x%llx", address);
    else if (fault && info->code > 0 && info->code < 0x80)
        snprintf(ret, size, " at 0x%llx", address);
}

bool pb_stacks_died(const struct pb_stacks *s, char *ret, size_t size)
{
    const struct pb_core_info *info = pb_core_info(&s->source);
    char cause[160], buf[32], name[160] = "an unknown thread";

    if (!info || !info->signal)
        return false;
    put_cause(info, cause, sizeof(cause));
    for (size_t i = 0; i < s->n; i++)
        if (s->threads[i].native.signal) {
            pb_stacks_thread_name(&s->threads[i], name, sizeof(name));
            break;
        }
    snprintf(ret, size, "it died of %s in %s%s", pb_stacks_signal(info->signal, buf, sizeof(buf)), name,
             cause);
    return true;
}
