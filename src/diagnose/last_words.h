/* last_words: the last output of an ended process, and the kernel's messages about its end. */
#pragma once

#include "diagnose/facts.h"

/* Reads the end of the file that its errors went to (path in its view while it lives, else in ours); of a
 * file that several ranks write, only lines that torch marks with the rank. Then the kernel's log, where that
 * may be read. May wait for a file system: in a child. */
void pb_last_words_read(const char *path, uint64_t inode, bool shared, struct pb_diag_ended *ret);
void pb_last_words_of_kernel(struct pb_diag_ended *ended, size_t n);

/* The same from the file in which a child of torchrun leaves its exception, if it has and nothing else is
 * known. */
void pb_last_words_of_torchrun(const char *path, struct pb_diag_ended *ret);
