/* line_edit: a prompt on a terminal: editing over several lines, history, completion, search.
 *
 * Keys are those of readline's emacs mode. What is typed may go over several lines: Enter ends it when the
 * caller says that it is whole. A pasted text is taken as it is, line ends and all, and waits for Enter. The
 * terminal is ours only inside pb_line_read, and is given back however that ends. Where the terminal can do
 * nothing (TERM=dumb) plain lines are read. One prompt at a time, one thread. Knows nothing of SQL or Python:
 * that is in the hooks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define PB_LINE_MAX (1u << 20) /* bytes of one input; more is not taken */

struct pb_line;
struct pb_line_words;

struct pb_line_hooks {
    /* Whether Enter ends this text; otherwise it begins another line. */
    bool (*is_whole)(void *arg, const char *text, size_t length);
    /* Adds what the word before the cursor may become, and returns where that word begins. May be NULL. */
    size_t (*complete)(void *arg, const char *text, size_t cursor, struct pb_line_words *to);
    bool bare; /* no blank follows the only word that is offered */
    void *arg;
};

/* A candidate, copied; the caller sees to it that it begins as the word does. Twice the same counts once. */
void pb_line_offer(struct pb_line_words *to, const char *word);

/* in, out: a terminal. history: a file, made when it is first needed (0600); NULL: none is kept. hooks
 * outlive the prompt. -ENOTTY, -ENOMEM. */
int pb_line_open(int in, int out, const struct pb_line_hooks *hooks, const char *history,
                 struct pb_line **ret);
void pb_line_close(struct pb_line *l);

/* Asks once. *ret is the caller's to free. more: the prompt of further lines, as wide as the first.
 * -ENODATA: Ctrl-D, or the terminal is gone. Ctrl-C begins anew. */
int pb_line_read(struct pb_line *l, const char *prompt, const char *more, char **ret);

/* "NAME_history" in the user's state directory, which is made. -ENOENT: there is none. */
int pb_line_history_path(const char *name, char *ret, size_t size);
