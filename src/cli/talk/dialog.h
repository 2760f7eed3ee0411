/* dialog: a conversation with a prompt inside the process, in messages over a channel.
 *
 * A message is a packet (control/packet.h) whose kind is a letter: a number that its answer repeats (32
 * bits, little endian), and a text. The letters are described in python/probing/_prompt.py. Messages of the
 * target are untrusted: lengths are bounded, texts may hold any bytes. */
#pragma once

#include "control/talk.h"
#include "inject/session.h"

#include <stddef.h>
#include <stdint.h>

#define PB_DIALOG_MAX (1u << 20) /* bytes of one message */

struct pb_call;
struct pb_err;

struct pb_dialog_message {
    char letter;
    uint32_t number;
    const char *text; /* not terminated; valid until the next pb_dialog_next */
    size_t size;
};

struct pb_dialog {
    pid_t pid; /* of the target */
    struct pb_session session;
    struct pb_talk talk;
    uint32_t last_number;
    char *buf; /* received bytes */
    size_t len, used;
    char reason[256]; /* why it ended */
    int status;       /* of its end */
    bool ended;
};

/* Opens a channel of that kind with the target of the call; injects the agent first if needed. *ret must not
 * be moved. */
int pb_dialog_open(const struct pb_call *call, const char *kind, const char *arguments, struct pb_dialog *ret,
                   struct pb_err *err);
void pb_dialog_close(struct pb_dialog *d);

/* Returns the number of the message, or a negative errno. -EMSGSIZE: longer than PB_DIALOG_MAX. */
int64_t pb_dialog_send(struct pb_dialog *d, char letter, const char *text, size_t size);

/* Interrupts the code that runs there. */
int pb_dialog_interrupt(struct pb_dialog *d);

/* Reads bytes as they come, for kinds without messages: at most size of them, 0 at the end; -ETIMEDOUT and
 * other errors as below. */
long pb_dialog_read(struct pb_dialog *d, char *ret, size_t size, int timeout_ms);

/* The next message. timeout_ms < 0: no limit. -ETIMEDOUT; -EINTR: a signal came; -ENODATA: the prompt has
 * ended (pb_dialog_reason); -EPROTO, -ECONNRESET. */
int pb_dialog_next(struct pb_dialog *d, struct pb_dialog_message *ret, int timeout_ms);

/* Why the prompt ended, in the agent's words; "" where it gave no reason. */
const char *pb_dialog_reason(const struct pb_dialog *d);

/* Asks a kind that answers "ok TEXT" and ends. Returns the text, which the caller frees. Otherwise the error
 * is the reason that the agent gives for the end, PB_NOTHING where there is nothing of what was to be
 * ended; -EMSGSIZE: the answer is longer than PB_DIALOG_MAX. */
int pb_dialog_ask_whole(const struct pb_call *call, const char *kind, const char *words, char **ret,
                        struct pb_err *err);
/* The same for a word or a line, cut to size. */
int pb_dialog_ask(const struct pb_call *call, const char *kind, const char *words, char *ret, size_t size,
                  struct pb_err *err);
