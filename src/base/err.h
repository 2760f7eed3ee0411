/* err: the one error struct that carries a sentence for a person.
 *
 * Functions return negative errno; the sentence is written where the cause is first known, and callers
 * pass the struct on untouched. A NULL pb_err is allowed everywhere: then only the number travels. */
#pragma once

struct pb_err {
    char text[512]; /* "" if no message was set; never ends in a newline */
};

/* Writes the sentence and returns r, so that a failure is one statement: return pb_fail(err, -EINVAL, ...).
 * An earlier sentence is replaced. */
__attribute__((format(printf, 3, 4))) int pb_fail(struct pb_err *err, int r, const char *fmt, ...);

/* The exit status of a program of ours that was called wrongly. */
enum { PB_EXIT_USAGE = 2 };
/* That of a diagnosis that has found something: an answer, and no failure. */
enum { PB_EXIT_FOUND = 10 };

/* What leads the errors of every command on stderr. */
#define PB_ERR_LEADS "probing: "
/* An error as a command printed it, without that. */
const char *pb_err_without_program(const char *text);

/* The sentence, or the text of the errno r where no sentence was written. Lives as long as err. */
const char *pb_err_text(const struct pb_err *err, int r);
