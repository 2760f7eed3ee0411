/* abilities: which kernel features the SQL sandbox needs, and whether this machine has them: an old kernel or
 * a container may refuse any. Only checks; changes nothing of the process. */
#pragma once

/* 0, or the negative errno of the refusal. */
struct pb_sql_abilities {
    int seccomp;  /* filters for all threads: without them there is no worker, and no SQL */
    int landlock; /* without it archived rows are refused */
    int pidfd;    /* without it a hanging worker ends itself, a second later */
    int memfd;    /* without it live tables go through an unlinked file */
};

void pb_sql_abilities(struct pb_sql_abilities *ret);
