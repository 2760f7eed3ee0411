/* line_keys: what is pressed on a terminal in raw mode, key by key. Used by line_*.c alone. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/* A key is a byte of text, PB_CTRL of a letter, PB_ALT of a byte, or one of these. */
#define PB_CTRL(letter) ((letter)&0x1f)
#define PB_ALT(byte)    (0x100 | (byte))
enum pb_key {
    PB_KEY_UP = 0x200,
    PB_KEY_DOWN,
    PB_KEY_LEFT,
    PB_KEY_RIGHT,
    PB_KEY_WORD_LEFT,
    PB_KEY_WORD_RIGHT,
    PB_KEY_HOME,
    PB_KEY_END,
    PB_KEY_DELETE,
    PB_KEY_PASTE,  /* a pasted text follows: pb_line_keys_paste */
    PB_KEY_SIGNAL, /* no key: a signal came */
    PB_KEY_GONE,   /* the terminal is */
    PB_KEY_NONE    /* nothing that we know */
};

/* Zero but for `in` and `mask` at first. What has been read and not been used stays for the next. */
struct pb_line_keys {
    int in;
    sigset_t mask; /* signals that wait while a key is waited for: those that end the waiting are not in it */
    unsigned char block[4096];
    size_t n, at;
};

/* Waits for a key. */
int pb_line_key(struct pb_line_keys *k);

/* Whether there is more to read at once. */
bool pb_line_keys_waiting(const struct pb_line_keys *k);

/* The text after PB_KEY_PASTE, of malloc: line ends as \n, without control characters. -EFBIG beyond what a
 * prompt takes, the paste is passed over; -ENOMEM. */
int pb_line_keys_paste(struct pb_line_keys *k, char **ret, size_t *ret_n);
