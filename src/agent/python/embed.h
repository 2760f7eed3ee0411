/* embed: the Python part that the agent carries inside itself, so that a target in a container needs no
 * files. */
#pragma once

/* The text of python/probing/NAME.py, ended with NUL; NULL: there is no such file. It stays for good. */
const char *pb_embed_file(const char *name);

/* For a development tree: reads each file from this folder if possible, so that a change needs no rebuild.
 * "": the built-in files. Called by the resident thread before any file is used. */
void pb_embed_override(const char *python_dir);

/* Where the program `probing` is that brought this agent in, for probing.query; "": not known. Written by the
 * resident thread before any file is used. */
extern char pb_embed_program[512];
