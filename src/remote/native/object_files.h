/* object_files: opens the files that the target has mapped, and their separate debug files.
 *
 * Three ways, the most reliable first: the kernel's own link to the mapped file (map_files, for root), the
 * path inside the target's root if it is still the same file, the target's memory. The target chose the path:
 * no symbolic link is followed out of its root, and only regular files are opened. */
#pragma once

struct pb_native;
struct pb_file;
struct pb_range;

/* Opens f->object; r is a mapping of it. */
int pb_file_open(struct pb_native *n, struct pb_file *f, const struct pb_range *r);

/* Opens f->debug by the build id of f->object, in the target's root and in ours. -ENOENT: there is none. */
int pb_debug_open(struct pb_native *n, struct pb_file *f);
