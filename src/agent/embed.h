/* embed: the Python part that the agent carries inside itself, so that a target in a container needs no
 * files. */
#pragma once

/* The text of python/probing/NAME.py, ended with NUL; NULL: there is no such file. It stays for good. */
const char *pb_embed_file(const char *name);

/* In a development tree: take each file from this folder where it can be read, so that a change needs no
 * rebuild. "": the files built in. Called by the resident thread before anybody can ask for a file: threads
 * of the program open none. */
void pb_embed_override(const char *python_dir);
