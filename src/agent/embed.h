/* embed: the Python part that the agent carries inside itself, so that a target in a container needs no
 * files. */
#pragma once

/* The text of python/probing/_remote.py, ended with NUL. */
const char *pb_embed_remote_py(void);

/* In a development tree: take the text from this folder where it can be read, so that a change needs no
 * rebuild.
 * "": the text built in. */
void pb_embed_override(const char *python_dir);
