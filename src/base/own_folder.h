/* own_folder: the user's private folder for sockets and their files: below XDG_RUNTIME_DIR, or in /tmp under
 * a name with the uid. Tools only. */
#pragma once

#include <stddef.h>

/* The folder's path, whether or not it exists: RUNTIME/name, or /tmp/fallback-UID. */
void pb_own_folder_path(const char *name, const char *fallback, char *ret, size_t size);
