/* stop: Ctrl-C and the signals like it, noted instead of died of, so that what was begun can be put away
 * first. */
#pragma once

#include <signal.h>

/* Handles a signal, without SA_RESTART, so that a wait ends. A signal that is ignored when the program starts
 * (nohup, a shell's background job) stays ignored. */
void pb_signal_take(int number, void (*handler)(int));

/* Between the two SIGINT, SIGTERM and SIGHUP are noted, where they are not ignored. They nest; the outermost
 * forgets what was noted before. */
void pb_stop_begin(void);
void pb_stop_end(void);

/* The signal that came; 0: none. For who looks by itself, also as a pointer. */
int pb_stop_signal(void);
extern volatile sig_atomic_t pb_stop_flag;
