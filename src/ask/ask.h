/* ask: what a question to a process brings along, whoever asks it: a command, the service, another node.
 *
 * The functions of src/ask/ answer with data. They print nothing, keep no globals and change nothing of the
 * calling process: not its environment, not its signals, not its priority. What a person should know beside
 * the answer (something was left out, or is a fraction of a second old) goes to the caller's note. */
#pragma once

struct pb_ask {
    const char *archive; /* the folder of archives; NULL: the one that PROBING_ARCHIVE or the default names */
    void (*note)(void *arg, const char *text); /* one sentence, without a newline; NULL: not wanted */
    void *note_arg;
};

__attribute__((format(printf, 2, 3))) void pb_ask_note(const struct pb_ask *ask, const char *format, ...);
