/* dialog: a conversation with a prompt inside the process, in messages over a channel.
 *
 * A message is a letter, a number that its answer repeats, a length and that many bytes; which letters there
 * are is told in python/probing/_prompt.py. What comes is the target's word: lengths are bounded, texts may
 * hold anything. */
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
    const char *text; /* not terminated; until the next pb_dialog_next */
    size_t size;
};

struct pb_dialog {
    pid_t pid; /* of the target */
    struct pb_session session;
    struct pb_talk talk;
    uint32_t last_number;
    char *buf; /* what was received */
    size_t len, used;
    char reason[256]; /* why it ended */
    bool ended;
};

/* Opens a channel of that kind with the target of the call, which gets the agent first where it has none. The
 * caller keeps *ret where it is. */
int pb_dialog_open(const struct pb_call *call, const char *kind, const char *arguments, struct pb_dialog *ret,
                   struct pb_err *err);
void pb_dialog_close(struct pb_dialog *d);

/* The number of the message, or negative errno. -EMSGSIZE: longer than PB_DIALOG_MAX. */
int64_t pb_dialog_send(struct pb_dialog *d, char letter, const char *text, size_t size);

/* Stops the code that runs there. */
int pb_dialog_interrupt(struct pb_dialog *d);

/* Bytes as they come, for kinds that do not speak in messages: at most size of them, 0 at the end; -ETIMEDOUT
 * and the others as below. */
long pb_dialog_read(struct pb_dialog *d, char *ret, size_t size, int timeout_ms);

/* The next message. timeout_ms < 0: waits for ever. -ETIMEDOUT; -EINTR: a signal came; -ENODATA: the prompt
 * has ended (pb_dialog_reason); -EPROTO, -ECONNRESET. */
int pb_dialog_next(struct pb_dialog *d, struct pb_dialog_message *ret, int timeout_ms);

/* Why the prompt ended, as the agent says it; "" where it does not. */
const char *pb_dialog_reason(const struct pb_dialog *d);

/* A question to a kind that answers with "ok TEXT" and ends: the text, cut to size. Otherwise the error is
 * the reason that the agent gives for the end. */
int pb_dialog_ask(const struct pb_call *call, const char *kind, const char *words, char *ret, size_t size,
                  struct pb_err *err);
