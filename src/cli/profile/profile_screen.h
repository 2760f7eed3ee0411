/* profile_screen: a full-screen display on the terminal, which is restored however the program ends. One at a
 * time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Switches to the alternate screen, hides the cursor and reads single keys. -ENOTTY. */
int pb_screen_open(void);
void pb_screen_close(void);

/* Rows and columns. */
void pb_screen_size(int *ret_rows, int *ret_columns);

/* Shows the text in one write, cut to the screen. Lines may hold colours. */
void pb_screen_show(const char *text);

/* A key that was pressed; 0: none. Does not block. */
int pb_screen_key(void);
