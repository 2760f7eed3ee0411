/* dialog_prompt: see dialog_prompt.h. */
#include "cli/talk/dialog_prompt.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/cli.h"
#include "cli/line/line_edit.h"
#include "cli/print/rows.h"
#include "cli/print/terminal.h"
#include "cli/stop.h"
#include "control/message.h"
#include "print/glyph.h"
#include "print/outlet.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WHOLE_MS    1500 /* for the process to say whether an input is complete */
#define COMPLETE_MS 3000
#define PATIENCE_MS 3000 /* after this time a note names what it waits for */
#define GRACE_MS    1500 /* for an interrupt to take effect */
#define PRESSES     3    /* of Ctrl-C for one input: the last one leaves the prompt */

struct python_prompt {
    struct pb_dialog *dialog;
    char ask[80], more[80];
    bool over, colour;
    int status;
};

static volatile sig_atomic_t presses;

static void count_press(int signal)
{
    (void)signal;
    presses++;
}

/* --- messages of the process --- */

/* Prints a traceback line by line: places in one colour, the exception in another. */
static void show_traceback(const char *text, size_t size, bool colour)
{
    while (size > 0) {
        const char *end = memchr(text, '\n', size);
        size_t n = end ? (size_t)(end - text) : size;
        const char *paint = n > 8 && memcmp(text, "  File \"", 8) == 0      ? pb_style(PB_CYAN)
                            : n > 10 && memcmp(text, "Traceback ", 10) == 0 ? pb_style(PB_DIM)
                            : n > 0 && text[0] != ' '                       ? pb_style(PB_BOLD_RED)
                                                                            : NULL;
        if (colour && paint)
            fputs(paint, stderr);
        fwrite(text, 1, n, stderr);
        if (colour && paint)
            fputs(pb_style(PB_PLAIN), stderr);
        if (end)
            putc('\n', stderr);
        text += end ? n + 1 : n;
        size -= end ? n + 1 : n;
    }
}

/* Stores the prompt's text, which the process chooses: without control characters. */
static void take_prompt(struct python_prompt *p, const char *text, size_t size)
{
    size_t n = 0;

    struct pb_glyph g;

    for (size_t i = 0; i < size; i += g.bytes) {
        pb_glyph_read(text + i, size - i, &g);
        size_t length = strlen(g.shown);
        if (n + length >= sizeof(p->ask))
            break;
        memcpy(p->ask + n, g.shown, length);
        n += length;
    }
    p->ask[n] = '\0';
    memset(p->more, ' ', sizeof(p->more));
    size_t dots = n > 4 ? n - 4 : 0;
    snprintf(p->more + dots, sizeof(p->more) - dots, "... ");
}

static void take_output(struct python_prompt *p, const struct pb_dialog_message *m)
{
    FILE *to = m->letter == '0' + PB_STREAM_OUT || m->letter == '0' + PB_STREAM_VALUE ? stdout : stderr;

    if (m->letter == '0' + PB_STREAM_TRACEBACK)
        show_traceback(m->text, m->size, p->colour);
    else
        fwrite(m->text, 1, m->size, to);
    fflush(to);
}

/* Message d: the input is done; e: the prompt has ended too. */
static bool is_done(struct python_prompt *p, const struct pb_dialog_message *m)
{
    if ((m->letter != 'd' && m->letter != 'e') || m->size < 1)
        return false;
    p->status = (unsigned char)m->text[0];
    p->over = m->letter == 'e';
    take_prompt(p, m->text + 1, m->size - 1);
    return true;
}

static int explain_end(const struct python_prompt *p, int r, struct pb_err *err)
{
    const char *reason = pb_dialog_reason(p->dialog);

    if (reason[0])
        return pb_fail(err, r, "%s", reason);
    return pb_fail(err, r, "the process ended, or its agent was detached");
}

/* Prints output until the input is done. Ctrl-C interrupts the code there. */
static int print_until_done(struct python_prompt *p, uint32_t number, struct pb_err *err)
{
    struct pb_dialog_message m;
    uint64_t began = pb_now_ns();
    bool answered = false, noted = false;
    uint64_t pressed = 0;
    int seen = 0;

    for (;;) {
        if (presses > seen) {
            seen = presses;
            if (seen >= PRESSES)
                return pb_fail(
                    err, -EINTR,
                    "gave up waiting; the code was interrupted, but may still be running in the process");
            pb_dialog_interrupt(p->dialog);
            pressed = pb_now_ns();
        }
        if (pressed && pb_now_ns() - pressed > GRACE_MS * PB_NS_PER_MS) {
            fputs("note: the code was interrupted, but is inside a C function; it stops when that returns "
                  "(Ctrl-C stops waiting)\n",
                  stderr);
            pressed = 0;
        }
        int r = pb_dialog_next(p->dialog, &m, 200);
        if (r == -ETIMEDOUT || r == -EINTR) {
            if (!answered && !noted && pb_now_ns() - began > PATIENCE_MS * PB_NS_PER_MS && number == 0) {
                fputs("note: waiting for the GIL of the process (Ctrl-C leaves)\n", stderr);
                noted = true;
            }
            continue;
        }
        if (r < 0)
            return explain_end(p, r, err);
        answered = true;
        if (m.letter >= '1' && m.letter <= '4')
            take_output(p, &m);
        else if (m.number == number && is_done(p, &m))
            return 0;
    }
}

static int run_input(struct python_prompt *p, const char *text, size_t size, struct pb_err *err)
{
    int64_t number = pb_dialog_send(p->dialog, 'x', text, size);

    if (number == -EMSGSIZE)
        return pb_fail(err, -EMSGSIZE, "the code is larger than 1 MB");
    if (number < 0)
        return explain_end(p, (int)number, err);
    presses = 0;
    return print_until_done(p, (uint32_t)number, err);
}

/* --- hooks of the line editor --- */

/* Asks the process a question of the editor; a late answer is dropped. */
static int ask_process(struct python_prompt *p, char letter, const char *text, size_t size, int timeout_ms,
                       struct pb_dialog_message *ret)
{
    uint64_t end = pb_now_ns() + (uint64_t)timeout_ms * PB_NS_PER_MS;
    int64_t number = pb_dialog_send(p->dialog, letter, text, size);
    int r = number < 0 ? (int)number : 0;

    while (r == 0 || r == -EINTR) {
        uint64_t now = pb_now_ns();
        if (now >= end)
            return -ETIMEDOUT;
        r = pb_dialog_next(p->dialog, ret, (int)((end - now) / PB_NS_PER_MS) + 1);
        if (r == 0 && ret->letter == letter && ret->number == (uint32_t)number)
            return 0;
    }
    return r;
}

static bool is_whole(void *arg, const char *text, size_t length)
{
    struct pb_dialog_message m;

    if (ask_process(arg, 'w', text, length, WHOLE_MS, &m) < 0)
        return true;
    return m.size < 1 || m.text[0] != '0';
}

/* Completions are printed on the terminal: only names are accepted. */
static bool is_name(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (!isalnum((unsigned char)text[i]) && text[i] != '_' && (unsigned char)text[i] < 0x80)
            return false;
    return size > 0 && size < 200;
}

static size_t complete(void *arg, const char *text, size_t cursor, struct pb_line_words *to)
{
    struct python_prompt *p = arg;
    struct pb_dialog_message m;
    char word[256];

    size_t line = cursor;
    while (line > 0 && text[line - 1] != '\n')
        line--;
    if (strspn(text + line, " \t") >= cursor - line) { /* at the start of a line Tab indents */
        pb_line_offer(to, "    ");
        return cursor;
    }
    int r = ask_process(p, 'c', text, cursor, COMPLETE_MS, &m);
    if (r == -ETIMEDOUT)
        pb_dialog_interrupt(p->dialog);
    if (r < 0)
        return cursor;
    const char *at = m.text, *end = m.text + m.size;
    size_t start = 0;
    while (at < end && isdigit((unsigned char)*at) && start <= cursor)
        start = start * 10 + (size_t)(*at++ - '0');
    if (start > cursor)
        return cursor;
    while (at < end && *at == '\n') {
        const char *name = ++at;
        while (at < end && *at != '\n')
            at++;
        size_t n = (size_t)(at - name);
        if (!is_name(name, n) || n < cursor - start || memcmp(name, text + start, cursor - start) != 0)
            continue;
        snprintf(word, sizeof(word), "%.*s", (int)n, name);
        pb_line_offer(to, word);
    }
    return start;
}

/* --- input from a script or a person --- */

static int read_stdin(char **ret, size_t *ret_size)
{
    _cleanup_free_ char *text = malloc(PB_DIALOG_MAX + 1);
    size_t size = 0;
    ssize_t n = 1;

    while (text && n > 0 && size <= PB_DIALOG_MAX) {
        n = read(STDIN_FILENO, text + size, PB_DIALOG_MAX + 1 - size);
        if (n < 0)
            return -errno;
        size += (size_t)n;
    }
    if (!text)
        return -ENOMEM;
    *ret = pb_take_ptr(text);
    *ret_size = size;
    return 0;
}

static int run_script(struct python_prompt *p, struct pb_err *err)
{
    _cleanup_free_ char *text = NULL;
    size_t size = 0;

    int r = read_stdin(&text, &size);
    if (r < 0)
        return pb_fail(err, r, "stdin cannot be read: %s", strerror(-r));
    r = run_input(p, text, size, err);
    return r < 0 ? r : p->status ? PB_FAILED : 0;
}

static int ask_person(struct python_prompt *p, struct pb_err *err)
{
    const struct pb_line_hooks hooks = {.is_whole = is_whole, .complete = complete, .bare = true, .arg = p};
    struct pb_line *line;

    int r = pb_line_open_prompt("python", &hooks, &line, err);
    if (r < 0)
        return r;
    printf("probing " PROBING_VERSION ": Python in process %d; help() explains, Ctrl-D leaves\n",
           (int)p->dialog->pid);
    while (r == 0 && !p->over) {
        _cleanup_free_ char *text = NULL;
        fflush(stdout);
        r = pb_line_read(line, p->ask, p->more, &text);
        if (r < 0)
            break;
        /* Keys typed while code runs wait for the prompt, and are not echoed among the output. */
        pb_terminal_take(STDIN_FILENO, STDOUT_FILENO, PB_TERMINAL_KEYS, "", "");
        r = run_input(p, text, strlen(text), err);
        pb_terminal_give_back();
    }
    pb_line_close(line);
    return r == -ENODATA && !pb_dialog_reason(p->dialog)[0] ? 0 : r;
}

int pb_dialog_prompt(struct pb_dialog *t, struct pb_err *err)
{
    struct python_prompt p = {.dialog = t, .ask = ">>> ", .more = "... "};
    bool person = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);

    p.colour = pb_color() && isatty(STDERR_FILENO);
    pb_signal_take(SIGINT, count_press);
    int r = print_until_done(&p, 0, err); /* the first prompt comes once its thread has the GIL */
    if (r == 0)
        r = person ? ask_person(&p, err) : run_script(&p, err);
    return r;
}
