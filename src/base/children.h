/* children: what a program needs before it starts any. Tools only. */
#pragma once

/* At the entry of a program: SIGCHLD that the caller has left ignored would lose the statuses of children. */
void pb_children_begin(void);
/* Before this process becomes a program of the user's: as the caller has left it. */
void pb_children_end(void);
