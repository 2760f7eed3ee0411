/* profile_screen: a terminal that is drawn in place, and given back as it was, whatever ends us. One at a
 * time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Takes the terminal over: another screen, no cursor, keys as they are pressed. -ENOTTY. */
int pb_screen_open(void);
void pb_screen_close(void);

/* Rows and columns. */
void pb_screen_size(int *ret_rows, int *ret_columns);

/* What was printed to the text since begin is shown in one write, cut to the screen. A line may hold colours.
 */
void pb_screen_show(const char *text);

/* A key that was pressed; 0: none. Does not wait. */
int pb_screen_key(void);
