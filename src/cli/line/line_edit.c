/* line_edit: see line_edit.h. Keys to edits; the text is in line_text.c, the screen in line_draw.c. */
#include "cli/line/line_edit.h"

#include "base/cleanup.h"
#include "cli/line/line_draw.h"
#include "cli/line/line_history.h"
#include "cli/line/line_keys.h"
#include "cli/line/line_text.h"
#include "cli/line/line_words.h"
#include "cli/print/terminal.h"
#include "print/glyph.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bracketed paste: pasted text comes between marks, so that its line ends are not Enter. */
#define ENTER_TERMINAL "\033[?2004h"
#define LEAVE_TERMINAL "\033[?2004l"
#define BELL           "\a"

struct pb_line {
    struct pb_line_keys keys;
    int out;
    const struct pb_line_hooks *hooks;
    struct pb_line_history history;
    struct pb_line_screen screen;
    bool plain; /* the terminal knows no escapes */

    /* The current question: */
    const char *prompt, *more;
    struct pb_line_text text, killed;
    size_t entry; /* index of the history entry shown; the length of the history: none */
    char *draft;  /* the typed text, while a history entry is shown */
};

static volatile sig_atomic_t resized, stopped, continued;

static void on_signal(int number)
{
    if (number == SIGWINCH)
        resized = 1;
    else if (number == SIGTSTP)
        stopped = 1;
    else
        continued = 1;
}

int pb_line_open(int in, int out, const struct pb_line_hooks *hooks, const char *history,
                 struct pb_line **ret)
{
    const char *term = getenv("TERM");

    if (!isatty(in) || !isatty(out))
        return -ENOTTY;
    struct pb_line *l = calloc(1, sizeof(*l));
    if (!l)
        return -ENOMEM;
    l->keys.in = in;
    l->out = l->screen.out = out;
    l->hooks = hooks;
    l->plain = !term || !*term || strcmp(term, "dumb") == 0;
    int r = pb_line_history_open(history, &l->history);
    if (r < 0) {
        free(l);
        return r;
    }
    *ret = l;
    return 0;
}

void pb_line_close(struct pb_line *l)
{
    if (!l)
        return;
    pb_line_history_done(&l->history);
    pb_line_text_done(&l->text);
    pb_line_text_done(&l->killed);
    free(l->draft);
    free(l);
}

static void ring_bell(const struct pb_line *l)
{
    pb_line_write(l->out, BELL, 1);
}

static void draw_input(struct pb_line *l)
{
    pb_line_draw(&l->screen, l->prompt, l->more, &l->text);
}

/* --- deleting and undoing --- */

static void erase_text(struct pb_line *l, size_t from, size_t to)
{
    pb_line_text_erase(&l->text, from, to);
}

/* Deletes text and keeps it for Ctrl-Y. */
static void kill_text(struct pb_line *l, size_t from, size_t to)
{
    if (from >= to)
        return;
    l->killed.n = l->killed.cursor = 0;
    pb_line_text_insert(&l->killed, l->text.at + from, to - from);
    erase_text(l, from, to);
}

static void insert_text(struct pb_line *l, const char *text, size_t n)
{
    if (pb_line_text_insert(&l->text, text, n) < 0)
        ring_bell(l);
}

/* The start of the blank-separated word before the cursor, as in shells: a whole "schema.table". */
static size_t blank_left(const struct pb_line_text *t)
{
    size_t at = t->cursor;

    while (at > 0 && strchr(" \t\n", t->at[at - 1]))
        at--;
    while (at > 0 && !strchr(" \t\n", t->at[at - 1]))
        at--;
    return at;
}

/* Swaps the characters before and at the cursor. */
static void swap_characters(struct pb_line *l)
{
    struct pb_line_text *t = &l->text;
    size_t at = t->cursor == t->n ? pb_line_text_left(t, t->cursor) : t->cursor;
    size_t before = pb_line_text_left(t, at), end = pb_line_text_right(t, at);
    char moved[64];

    if (before == at || end - at > sizeof(moved))
        return;
    memcpy(moved, t->at + at, end - at);
    memmove(t->at + before + (end - at), t->at + before, at - before);
    memcpy(t->at + before, moved, end - at);
    t->cursor = end;
}

/* --- history --- */

static void show_entry(struct pb_line *l, size_t entry)
{
    if (l->entry == l->history.n) {
        free(l->draft);
        l->draft = strdup(l->text.n ? l->text.at : "");
    }
    l->entry = entry;
    const char *text = entry < l->history.n ? l->history.at[entry] : l->draft;
    pb_line_text_set(&l->text, text ? text : "");
}

static void show_older_entry(struct pb_line *l)
{
    if (pb_line_text_up(&l->text))
        return;
    if (l->entry > 0)
        show_entry(l, l->entry - 1);
    else
        ring_bell(l);
}

static void show_newer_entry(struct pb_line *l)
{
    if (pb_line_text_down(&l->text))
        return;
    if (l->entry < l->history.n)
        show_entry(l, l->entry + 1);
    else
        ring_bell(l);
}

/* The newest entry before `before` that contains the words and differs from `other`; else `before`. */
static size_t find_entry(const struct pb_line *l, const char *words, size_t before, const char *other)
{
    for (size_t i = before; i-- > 0;)
        if (strstr(l->history.at[i], words) && (!other || strcmp(l->history.at[i], other) != 0))
            return i;
    return before;
}

static void draw_search(struct pb_line *l, const char *words, bool found)
{
    char prompt[320];

    snprintf(prompt, sizeof(prompt), "(%s '%s') ", found ? "search" : "not found:", words);
    pb_line_draw(&l->screen, prompt, l->more, &l->text);
}

/* Ctrl-R. Returns the key that ended the search, to be handled next; 0: cancelled, the text is unchanged. */
static int search_history(struct pb_line *l)
{
    char words[256] = "";
    size_t n = 0, at = l->history.n;
    bool found = true;

    for (;;) {
        draw_search(l, words, found);
        int key = pb_line_key(&l->keys);
        size_t from = at;
        if (key == PB_KEY_SIGNAL)
            continue;
        if (key == PB_CTRL('G') || key == PB_CTRL('C')) {
            show_entry(l, l->history.n);
            return 0;
        }
        if ((key == PB_CTRL('H') || key == 127) && n > 0) {
            words[--n] = '\0';
            from = l->history.n;
        } else if (key >= ' ' && key < 256 && key != 127 && n + 1 < sizeof(words)) {
            words[n++] = (char)key;
            words[n] = '\0';
            from = at < l->history.n ? at + 1 : at;
        } else if (key != PB_CTRL('R')) {
            return key;
        }
        if (n == 0)
            continue;
        size_t entry = find_entry(l, words, from, key == PB_CTRL('R') && found ? l->text.at : NULL);
        found = entry < from;
        if (found)
            show_entry(l, at = entry);
    }
}

/* --- completion --- */

static void complete_word(struct pb_line *l)
{
    _cleanup_(pb_line_words_done) struct pb_line_words words = {0};
    struct pb_line_text *t = &l->text;

    if (!l->hooks->complete) {
        insert_text(l, "    ", 4);
        return;
    }
    size_t from = l->hooks->complete(l->hooks->arg, t->n ? t->at : "", t->cursor, &words);
    if (words.n == 0 || from > t->cursor) {
        ring_bell(l);
        return;
    }
    size_t typed = t->cursor - from, common = pb_line_words_common(&words);
    const char *word = words.at[0];
    bool further = common > typed || (common == typed && memcmp(word, t->at + from, typed) != 0);
    if (further || words.n == 1) {
        erase_text(l, from, t->cursor);
        insert_text(l, word, common);
        if (words.n == 1 && !l->hooks->bare && !strchr("(.", word[common ? common - 1 : 0]))
            insert_text(l, " ", 1);
        return;
    }
    pb_line_draw_end(&l->screen, "");
    pb_line_words_show(&words, l->out);
}

/* --- the rest --- */

static void end_screen(struct pb_line *l, const char *after)
{
    l->text.cursor = l->text.n;
    draw_input(l);
    pb_line_draw_end(&l->screen, after);
}

static void start_over(struct pb_line *l)
{
    end_screen(l, "^C");
    pb_line_text_done(&l->text);
    l->entry = l->history.n;
}

static int take_terminal(const struct pb_line *l)
{
    return pb_terminal_take(l->keys.in, l->out, PB_TERMINAL_RAW, ENTER_TERMINAL, LEAVE_TERMINAL);
}

/* Ctrl-Z: gives the terminal back to the shell, stops, and redraws when continued. */
static void suspend_process(struct pb_line *l)
{
    struct sigaction before, standard = {.sa_handler = SIG_DFL};
    sigset_t ours;

    pb_line_draw_end(&l->screen, "");
    pb_terminal_give_back();
    sigaction(SIGTSTP, &standard, &before);
    raise(SIGTSTP);
    sigprocmask(SIG_SETMASK, &l->keys.mask, &ours); /* the process stops here */
    sigprocmask(SIG_SETMASK, &ours, NULL);
    sigaction(SIGTSTP, &before, NULL);
    take_terminal(l);
}

static void after_signal(struct pb_line *l)
{
    if (stopped) {
        stopped = 0;
        suspend_process(l);
    }
    if (continued) {
        /* SIGSTOP gives no warning: the terminal may have any settings now. */
        continued = 0;
        pb_terminal_give_back();
        take_terminal(l);
    }
    resized = 0;
}

/* Inserts pasted text without control characters. */
static void insert_paste(struct pb_line *l)
{
    char *text = NULL;
    size_t n = 0;

    if (pb_line_keys_paste(&l->keys, &text, &n) == 0)
        insert_text(l, text, n);
    free(text);
}

static bool is_whole(const struct pb_line *l)
{
    return l->hooks->is_whole(l->hooks->arg, l->text.n ? l->text.at : "", l->text.n);
}

static bool move_cursor(struct pb_line *l, int key)
{
    struct pb_line_text *t = &l->text;

    switch (key) {
    case PB_CTRL('A'):
    case PB_KEY_HOME:
        t->cursor = pb_line_text_line_begin(t, t->cursor);
        return true;
    case PB_CTRL('E'):
    case PB_KEY_END:
        t->cursor = pb_line_text_line_end(t, t->cursor);
        return true;
    case PB_CTRL('B'):
    case PB_KEY_LEFT:
        t->cursor = pb_line_text_left(t, t->cursor);
        return true;
    case PB_CTRL('F'):
    case PB_KEY_RIGHT:
        t->cursor = pb_line_text_right(t, t->cursor);
        return true;
    case PB_ALT('b'):
    case PB_KEY_WORD_LEFT:
        t->cursor = pb_line_text_word_left(t, t->cursor);
        return true;
    case PB_ALT('f'):
    case PB_KEY_WORD_RIGHT:
        t->cursor = pb_line_text_word_right(t, t->cursor);
        return true;
    case PB_CTRL('P'):
    case PB_KEY_UP:
        show_older_entry(l);
        return true;
    case PB_CTRL('N'):
    case PB_KEY_DOWN:
        show_newer_entry(l);
        return true;
    default:
        return false;
    }
}

static bool delete_by_key(struct pb_line *l, int key)
{
    struct pb_line_text *t = &l->text;

    switch (key) {
    case PB_CTRL('H'):
    case 127:
        erase_text(l, pb_line_text_left(t, t->cursor), t->cursor);
        return true;
    case PB_CTRL('D'):
    case PB_KEY_DELETE:
        erase_text(l, t->cursor, pb_line_text_right(t, t->cursor));
        return true;
    case PB_CTRL('K'):
        kill_text(l, t->cursor, pb_line_text_line_end(t, t->cursor));
        return true;
    case PB_CTRL('U'):
        kill_text(l, pb_line_text_line_begin(t, t->cursor), t->cursor);
        return true;
    case PB_CTRL('W'):
        kill_text(l, blank_left(t), t->cursor);
        return true;
    case PB_ALT(127):
    case PB_ALT(PB_CTRL('H')):
        kill_text(l, pb_line_text_word_left(t, t->cursor), t->cursor);
        return true;
    case PB_ALT('d'):
        kill_text(l, t->cursor, pb_line_text_word_right(t, t->cursor));
        return true;
    default:
        return false;
    }
}

static void handle_other_key(struct pb_line *l, int key)
{
    char byte = (char)key;

    switch (key) {
    case '\t':
        complete_word(l);
        break;
    case PB_ALT('\r'):
    case PB_ALT('\n'):
        insert_text(l, "\n", 1);
        break;
    case PB_CTRL('Y'):
        insert_text(l, l->killed.at, l->killed.n);
        break;
    case PB_CTRL('T'):
        swap_characters(l);
        break;
    case PB_CTRL('L'):
        pb_line_write(l->out, "\033[H\033[2J", 7);
        l->screen = (struct pb_line_screen){.out = l->out};
        break;
    case PB_CTRL('C'):
        start_over(l);
        break;
    case PB_CTRL('Z'):
        suspend_process(l);
        break;
    case PB_KEY_PASTE:
        insert_paste(l);
        break;
    case PB_KEY_SIGNAL:
        after_signal(l);
        break;
    default:
        if (key >= ' ' && key < 256)
            insert_text(l, &byte, 1);
    }
}

/* Returns 1 when the input is complete, 0 to continue. */
static int press_enter(struct pb_line *l)
{
    bool whole = is_whole(l);

    if (!whole)
        insert_text(l, "\n", 1);
    return whole;
}

static int edit_input(struct pb_line *l)
{
    for (;;) {
        if (!pb_line_keys_waiting(&l->keys))
            draw_input(l);
        int key = pb_line_key(&l->keys);
        if (key == PB_CTRL('R'))
            key = search_history(l);
        if (key == PB_KEY_GONE || (key == PB_CTRL('D') && l->text.n == 0))
            return -ENODATA;
        if ((key == '\r' || key == '\n') && press_enter(l))
            return 0;
        if (key != '\r' && key != '\n' && !move_cursor(l, key) && !delete_by_key(l, key))
            handle_other_key(l, key);
    }
}

/* TERM=dumb: reads lines with the terminal's own editing. */
static int read_plain(struct pb_line *l)
{
    char block[4096];

    for (const char *prompt = l->prompt;; prompt = l->more) {
        pb_line_write(l->out, prompt, strlen(prompt));
        ssize_t n = read(l->keys.in, block, sizeof(block));
        if (n <= 0)
            return -ENODATA;
        n -= block[n - 1] == '\n';
        if (pb_line_text_insert(&l->text, block, (size_t)n) < 0)
            return -ENOMEM;
        if (is_whole(l))
            return 0;
        insert_text(l, "\n", 1);
    }
}

/* The signals are blocked except while a key is awaited: none is missed just before the wait, and none stops
 * the program while the terminal is in raw mode. */
static int read_edited(struct pb_line *l)
{
    static const int numbers[] = {SIGWINCH, SIGTSTP, SIGCONT};
    struct sigaction before[3], action = {.sa_handler = on_signal};
    sigset_t ours;

    sigemptyset(&ours);
    for (int i = 0; i < 3; i++)
        sigaddset(&ours, numbers[i]);
    sigprocmask(SIG_BLOCK, &ours, &l->keys.mask);
    int r = take_terminal(l);
    if (r == 0) {
        for (int i = 0; i < 3; i++)
            sigaction(numbers[i], &action, &before[i]);
        r = edit_input(l);
        end_screen(l, "");
        pb_terminal_give_back();
        for (int i = 0; i < 3; i++)
            sigaction(numbers[i], &before[i], NULL);
    }
    sigprocmask(SIG_SETMASK, &l->keys.mask, NULL);
    return r;
}

int pb_line_read(struct pb_line *l, const char *prompt, const char *more, char **ret)
{
    l->prompt = prompt;
    l->more = more;
    l->entry = l->history.n;
    pb_line_text_done(&l->text);
    int r = l->plain ? read_plain(l) : read_edited(l);
    if (r < 0)
        return r;
    char *text = strdup(l->text.n ? l->text.at : "");
    if (!text)
        return -ENOMEM;
    pb_line_history_add(&l->history, text);
    *ret = text;
    return 0;
}
