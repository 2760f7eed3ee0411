/* hints: what a person can do about an error of DuckDB's, in our words. */
#pragma once

#include "engine/worker/catalog.h"

#include <stddef.h>

/* Writes the message for a person into ret. timeout_ms: after which we told the statement to stop; 0: we did
 * not. */
void pb_hint(const struct pb_catalog *c, const char *error, unsigned timeout_ms, char *ret, size_t size);
