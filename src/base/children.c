/* children: see children.h. */
#include "base/children.h"

#include <signal.h>
#include <stdbool.h>

static bool was_ignored;

void pb_children_begin(void)
{
    was_ignored = signal(SIGCHLD, SIG_DFL) == SIG_IGN;
}

void pb_children_end(void)
{
    if (was_ignored)
        signal(SIGCHLD, SIG_IGN);
}
