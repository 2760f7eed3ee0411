/* stop: Ctrl-C (SIGINT), SIGTERM and SIGHUP set a flag instead of ending the program, so that a command can
 * clean up first. */
#pragma once

#include <signal.h>

/* Handles a signal, without SA_RESTART, so that a wait ends. A signal that is ignored when the program starts
 * (nohup, a shell's background job) stays ignored. */
void pb_signal_take(int number, void (*handler)(int));

/* Between the two SIGINT, SIGTERM and SIGHUP are noted, where they are not ignored. They nest; the outermost
 * forgets what was noted before. */
void pb_stop_begin(void);
void pb_stop_end(void);

/* The signal that came; 0: none. The flag itself is for functions that take a pointer to it
 * (pb_sql_query.cancel). */
int pb_stop_signal(void);
extern volatile sig_atomic_t pb_stop_flag;
