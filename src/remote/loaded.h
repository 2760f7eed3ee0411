/* loaded: the first objects of a process, from its own loader's list.
 *
 * The kernel takes half a millisecond to list the mappings of a process with 400 of them: longer than reading
 * all its stacks. libpython, which is looked for most, is among the first in the loader's list. A hint only:
 * the list is in the target's memory, and a static program has none. A caller that finds nothing reads all
 * mappings. */
#pragma once

struct pb_maps;
struct pb_source;

/* The program, and the first library in the list whose file name begins with `prefix`; as mappings of their
 * ELF headers. -ENOENT: not found, or not a live process. */
int pb_loaded_find(struct pb_source *s, const char *prefix, struct pb_maps *ret);
