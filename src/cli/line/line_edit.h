/* line_edit: a prompt on a terminal: editing over several lines, history, completion, search.
 *
 * Keys are those of readline's emacs mode. The input may have several lines: Enter ends it when the caller
 * says that it is complete. Pasted text is inserted with its line ends and waits for Enter. The terminal is
 * in raw mode only inside pb_line_read, which restores it however it ends. Without terminal capabilities
 * (TERM=dumb) plain lines are read. One prompt at a time, one thread. SQL and Python are known to the hooks
 * alone. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct pb_err;

#define PB_LINE_MAX (1u << 20) /* bytes of one input; longer input is refused */

struct pb_line;
struct pb_line_words;

struct pb_line_hooks {
    /* Whether Enter ends this text; otherwise it begins another line. */
    bool (*is_whole)(void *arg, const char *text, size_t length);
    /* Offers completions of the word before the cursor, and returns where that word begins. May be NULL. */
    size_t (*complete)(void *arg, const char *text, size_t cursor, struct pb_line_words *to);
    bool bare; /* no blank is added after a sole completion */
    void *arg;
};

/* Adds a candidate (copied); the caller makes sure that it begins with the typed word. Duplicates count
 * once. */
void pb_line_offer(struct pb_line_words *to, const char *word);

/* in, out: a terminal. history: a file, created when first needed (0600); NULL: no history is kept. hooks
 * must outlive the prompt. -ENOTTY, -ENOMEM. */
int pb_line_open(int in, int out, const struct pb_line_hooks *hooks, const char *history,
                 struct pb_line **ret);
void pb_line_close(struct pb_line *l);

/* Reads one input. The caller frees *ret. more: the prompt of further lines, as wide as the first. -ENODATA:
 * Ctrl-D, or the terminal is gone. Ctrl-C clears the input. */
int pb_line_read(struct pb_line *l, const char *prompt, const char *more, char **ret);

/* A prompt on the terminal of this process; its history is "NAME_history" in the user's state directory,
 * which is created. Without such a directory there is no history. */
int pb_line_open_prompt(const char *name, const struct pb_line_hooks *hooks, struct pb_line **ret,
                        struct pb_err *err);
