/* line_keys: reads keys from a terminal in raw mode. Used by line_*.c alone. */
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
    PB_KEY_GONE,   /* the terminal is closed */
    PB_KEY_NONE    /* an unknown key */
};

/* Zeroed at first except `in` and `mask`. Bytes read but not used stay for the next key. */
struct pb_line_keys {
    int in;
    sigset_t mask; /* while waiting for a key: without the signals that interrupt the wait */
    unsigned char block[4096];
    size_t n, at;
};

int pb_line_key(struct pb_line_keys *k);

/* Whether more input can be read without waiting. */
bool pb_line_keys_waiting(const struct pb_line_keys *k);

/* The text after PB_KEY_PASTE, from malloc: line ends as newlines, no control characters. -EFBIG: longer than
 * an input may be, the paste is skipped; -ENOMEM. */
int pb_line_keys_paste(struct pb_line_keys *k, char **ret, size_t *ret_n);
