/* json_write: JSON as it is written: every brace, comma, key and escape of the tools. Tools only.
 *
 *   struct pb_json_writer w = {.out = stdout};
 *   pb_json_open(&w, NULL, '{');
 *   pb_json_put_text(&w, "name", name);
 *   pb_json_put_number(&w, "pid", "%d", pid);
 *   pb_json_close(&w);                                  {"name": "x", "pid": 7}
 *
 * key: of a member of an object; NULL: an element of an array, or what follows pb_json_key. A failure is seen
 * by ferror at the end. A document nested deeper than PB_JSON_DEPTH is a mistake of ours. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { PB_JSON_DEPTH = 32 };

struct pb_json_writer {
    FILE *out;
    bool tight; /* no blank behind a comma or colon */

    bool keyed;           /* a key stands, its value follows */
    int line;             /* 1 + the blanks of the next line; 0: it goes on */
    unsigned depth;       /* of what is open */
    uint32_t some, array; /* a bit for each depth: it has an element; it is an array */
};

/* kind: '{' or '['. */
void pb_json_open(struct pb_json_writer *w, const char *key, char kind);
void pb_json_close(struct pb_json_writer *w);

/* The next element, key or closing bracket begins a line, behind so many blanks. */
void pb_json_line(struct pb_json_writer *w, int blanks);

void pb_json_key(struct pb_json_writer *w, const char *key);

/* NULL: null. Control characters, what turns the direction of writing, and bytes that are not UTF-8 are
 * escaped, so that the text may go to a terminal. */
void pb_json_put_text(struct pb_json_writer *w, const char *key, const char *text);
/* text may hold NUL. */
void pb_json_put_bytes(struct pb_json_writer *w, const char *key, const char *text, size_t length);
void pb_json_put_bool(struct pb_json_writer *w, const char *key, bool value);
void pb_json_put_null(struct pb_json_writer *w, const char *key);
__attribute__((format(printf, 3, 4))) void pb_json_put_number(struct pb_json_writer *w, const char *key,
                                                              const char *format, ...);
/* A text of printf's. */
__attribute__((format(printf, 3, 4))) void pb_json_put_format(struct pb_json_writer *w, const char *key,
                                                              const char *format, ...);
/* A value that is JSON already; only characters that a terminal would obey are escaped. */
void pb_json_put_value(struct pb_json_writer *w, const char *key, const char *text, size_t length);

/* A value that a program of ours has written. */
void pb_json_put_made(struct pb_json_writer *w, const char *key, const char *text, size_t length);
