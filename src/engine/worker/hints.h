/* hints: turns errors of DuckDB into messages that say what to do. */
#pragma once

#include "engine/worker/catalog.h"

#include <stddef.h>

/* Writes the message into ret. timeout_ms: the limit after which the statement was interrupted; 0: it was
 * not. */
void pb_hint(const struct pb_catalog *c, const char *error, unsigned timeout_ms, char *ret, size_t size);
