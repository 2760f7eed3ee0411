/* stop: Ctrl-C (SIGINT), SIGTERM and SIGHUP set a flag instead of ending the program, so that a command can
 * clean up first. */
#pragma once

#include <signal.h>

/* Sets a handler without SA_RESTART, so that a signal ends a wait. A signal that was ignored at the start
 * (nohup, a shell's background job) stays ignored. */
void pb_signal_take(int number, void (*handler)(int));

/* Between begin and end SIGINT, SIGTERM and SIGHUP are noted, unless ignored. Calls nest; the outermost
 * forgets signals noted before. */
void pb_stop_begin(void);
void pb_stop_end(void);

/* The signal that was received; 0: none. The flag itself is for functions that take a pointer to it
 * (pb_sql_query.cancel). */
int pb_stop_signal(void);
extern volatile sig_atomic_t pb_stop_flag;
