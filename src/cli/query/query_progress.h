/* query_progress: shows the progress of a long query in one line on stderr, removed at the end. Nothing is
 * shown where stderr is no terminal, or for queries of less than half a second. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pb_progress {
    bool on, shown;
    uint64_t began;
};

void pb_progress_begin(struct pb_progress *p);
void pb_progress_show(struct pb_progress *p, uint64_t scanned, uint64_t known);

/* Removes the line, before other output goes to the terminal. */
void pb_progress_clear(struct pb_progress *p);
