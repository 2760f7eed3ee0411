/* profile_screen: see profile_screen.h. */
#include "cli/profile_screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define ENTER "\033[?1049h\033[?25l"
#define LEAVE "\033[?25h\033[?1049l"

static struct termios before;
static volatile sig_atomic_t open_now;

/* Async-signal-safe. */
static void restore(void)
{
    if (!open_now)
        return;
    open_now = 0;
    (void)!write(STDOUT_FILENO, LEAVE, sizeof(LEAVE) - 1);
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static void on_crash(int number)
{
    restore();
    raise(number); /* the handler is gone by now (SA_RESETHAND) */
}

int pb_screen_open(void)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGQUIT};
    struct sigaction action = {.sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND | SA_NODEFER};
    struct termios raw;

    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &before) < 0)
        return -ENOTTY;
    for (size_t i = 0; i < sizeof(crashes) / sizeof(crashes[0]); i++)
        sigaction(crashes[i], &action, NULL);
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VSUSP] = _POSIX_VDISABLE; /* stopped, we would leave the terminal as ours */
    open_now = 1;
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    (void)!write(STDOUT_FILENO, ENTER, sizeof(ENTER) - 1);
    return 0;
}

void pb_screen_close(void)
{
    restore();
}

void pb_screen_size(int *ret_rows, int *ret_columns)
{
    struct winsize size;

    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0;
    *ret_rows = known ? size.ws_row : 24;
    *ret_columns = known ? size.ws_col : 80;
}

/* The bytes of a line that fill so many columns; escapes take none, a character one. */
static size_t cut(const char *line, size_t len, int columns)
{
    size_t i = 0;

    for (int used = 0; i < len;) {
        if (line[i] == '\033') {
            while (i < len && line[i] != 'm')
                i++;
            i += i < len;
            continue;
        }
        if (((unsigned char)line[i] & 0xc0) != 0x80 && used++ == columns)
            break;
        i++;
    }
    return i;
}

void pb_screen_show(const char *text)
{
    int rows, columns;

    pb_screen_size(&rows, &columns);
    fputs("\033[H", stdout);
    for (int row = 0; row < rows && *text; row++) {
        size_t len = strcspn(text, "\n");
        fwrite(text, 1, cut(text, len, columns), stdout);
        fputs(row + 1 < rows ? "\033[0m\033[K\n" : "\033[0m\033[K", stdout);
        text += len + (text[len] == '\n');
    }
    fputs("\033[J", stdout);
    fflush(stdout);
}

int pb_screen_key(void)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    char key;

    return poll(&in, 1, 0) > 0 && read(STDIN_FILENO, &key, 1) == 1 ? (unsigned char)key : 0;
}
