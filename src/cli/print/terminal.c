/* terminal: see terminal.h. */
#include "cli/print/terminal.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static const int ends[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGQUIT, SIGTERM, SIGHUP, SIGINT};
#define ENDS (sizeof(ends) / sizeof(ends[0]))

static struct {
    struct termios before;
    int in, out;
    const char *leave;
    struct sigaction actions[ENDS];
} taken;
static volatile sig_atomic_t is_taken;

/* Async-signal-safe. */
static void restore_terminal(void)
{
    if (!is_taken)
        return;
    is_taken = 0;
    (void)!write(taken.out, taken.leave, strlen(taken.leave));
    tcsetattr(taken.in, TCSANOW, &taken.before);
}

static void on_end(int number)
{
    restore_terminal();
    raise(number); /* the handler is gone by now (SA_RESETHAND) */
}

/* Signals that the program handles itself are left to it: its own code restores the terminal. */
static void guard_against_signals(void)
{
    struct sigaction action = {.sa_handler = on_end, .sa_flags = (int)SA_RESETHAND | SA_NODEFER};

    for (size_t i = 0; i < ENDS; i++) {
        sigaction(ends[i], NULL, &taken.actions[i]);
        if (taken.actions[i].sa_handler == SIG_DFL)
            sigaction(ends[i], &action, NULL);
    }
}

int pb_terminal_take(int in, int out, enum pb_terminal_mode mode, const char *enter, const char *leave)
{
    struct termios changed;

    if (is_taken || !isatty(in) || !isatty(out) || tcgetattr(in, &taken.before) < 0)
        return -ENOTTY;
    taken.in = in;
    taken.out = out;
    taken.leave = leave;
    changed = taken.before;
    changed.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    /* Ctrl-Z would stop the program with the terminal in raw mode. */
    changed.c_cc[VSUSP] = _POSIX_VDISABLE;
    if (mode == PB_TERMINAL_RAW) {
        changed.c_lflag &= ~(tcflag_t)(ISIG | IEXTEN);
        changed.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IXON | BRKINT | ISTRIP);
        changed.c_cc[VMIN] = 1;
        changed.c_cc[VTIME] = 0;
    }
    guard_against_signals();
    is_taken = 1;
    tcsetattr(in, TCSANOW, &changed);
    (void)!write(out, enter, strlen(enter));
    return 0;
}

void pb_terminal_give_back(void)
{
    if (!is_taken)
        return;
    restore_terminal();
    for (size_t i = 0; i < ENDS; i++)
        if (taken.actions[i].sa_handler == SIG_DFL)
            sigaction(ends[i], &taken.actions[i], NULL);
}

void pb_terminal_size(int out, int *ret_rows, int *ret_columns)
{
    struct winsize size;

    bool known = ioctl(out, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0;
    *ret_rows = known ? size.ws_row : 24;
    *ret_columns = known ? size.ws_col : 80;
}
