/* abilities: what of the kernel SQL is kept safe with, and whether this machine has it: an old kernel or a
 * container may refuse any of it. Looks only, changes nothing of the process. */
#pragma once

/* 0, or the negative errno with which it is refused. */
struct pb_sql_abilities {
    int seccomp;  /* filters for all threads: without them there is no worker, and no SQL */
    int landlock; /* without it archived rows are refused */
    int pidfd;    /* without it a worker that hangs ends itself, a second later */
    int memfd;    /* without it live tables go through a file without a name */
};

void pb_sql_abilities(struct pb_sql_abilities *ret);
