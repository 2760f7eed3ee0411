/* terminal: the terminal as a program of keys has it, given back as it was however that program ends.
 *
 * One terminal at a time. A crash or a signal that ends us gives it back first; after SIGKILL it stays as it
 * was. */
#pragma once

enum pb_terminal_mode {
    PB_TERMINAL_KEYS, /* keys come as they are pressed, unseen; Ctrl-C still interrupts */
    PB_TERMINAL_RAW,  /* every key comes to the program, Ctrl-C and Ctrl-Z too */
};

/* Takes the terminal. enter and leave: what is written to it at either end; they live as long as it is taken.
 * -ENOTTY: in or out is none. */
int pb_terminal_take(int in, int out, enum pb_terminal_mode mode, const char *enter, const char *leave);

/* Gives it back, if it was taken. */
void pb_terminal_give_back(void);

/* Of the terminal at out; 24 rows of 80 columns where it does not say. */
void pb_terminal_size(int out, int *ret_rows, int *ret_columns);
