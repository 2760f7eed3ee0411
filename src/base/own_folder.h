/* own_folder: a folder of the user's own, for sockets and what belongs to them: below XDG_RUNTIME_DIR, or in
 * /tmp under a name with the user's number. Tools only. */
#pragma once

#include <stddef.h>

/* Where it is, whether or not it is there: RUNTIME/name, or /tmp/fallback-UID. */
void pb_own_folder_path(const char *name, const char *fallback, char *ret, size_t size);
