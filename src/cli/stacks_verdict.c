/* stacks_verdict: what a process waits for, in one line, where it can be known; see stacks.h. */
#include "cli/stacks.h"

#include <stdio.h>

void pb_stacks_verdict(struct pb_stacks *s)
{
    s->verdict[0] = '\0';
}
