/* terminal: sets the mode of the terminal for a program that reads keys, and restores it however the program
 * ends.
 *
 * One terminal at a time. A crash or a fatal signal restores it first; after SIGKILL it keeps the changed
 * mode. */
#pragma once

enum pb_terminal_mode {
    PB_TERMINAL_KEYS, /* keys come as they are pressed, without echo; Ctrl-C still interrupts */
    PB_TERMINAL_RAW,  /* every key comes to the program, Ctrl-C and Ctrl-Z too */
};

/* Sets the mode. enter, leave: texts written to the terminal now and when it is restored; they must stay
 * valid until then. -ENOTTY: in or out is no terminal. */
int pb_terminal_take(int in, int out, enum pb_terminal_mode mode, const char *enter, const char *leave);

/* Restores the terminal, if it was taken. */
void pb_terminal_give_back(void);

/* The size of the terminal at out; 24 rows of 80 columns where it is unknown. */
void pb_terminal_size(int out, int *ret_rows, int *ret_columns);
