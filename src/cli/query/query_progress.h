/* query_progress: how far a long query is, in one line on stderr that is gone when the query is. Nothing
 * where stderr is no terminal, and nothing for a query that takes less than half a second. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pb_progress {
    bool on, shown;
    uint64_t began;
};

void pb_progress_begin(struct pb_progress *p);
void pb_progress_show(struct pb_progress *p, uint64_t scanned, uint64_t known);

/* Takes the line away, before something else is written to the terminal. */
void pb_progress_clear(struct pb_progress *p);
