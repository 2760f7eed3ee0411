/* loaded: the first objects of a process, as its own loader lists them.
 *
 * The kernel takes half a millisecond to list the mappings of a process with 400 of them: longer than all its
 * stacks take to read. What is looked for most, libpython, stands among the first that the loader has in its
 * list. A hint only: the list is in the target's memory, and a static program has none. A caller that finds
 * nothing asks for all mappings. */
#pragma once

struct pb_maps;
struct pb_source;

/* The program, and of the libraries that were loaded first the one whose file name begins with `prefix`; as
 * mappings of their ELF headers. -ENOENT: it cannot be told; so of all that is no live process. */
int pb_loaded_find(struct pb_source *s, const char *prefix, struct pb_maps *ret);
