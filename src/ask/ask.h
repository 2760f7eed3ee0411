/* ask: what a question to a process brings along, whoever asks it: a command, the service, another node.
 *
 * The functions of src/ask/ answer with data. They print nothing, keep no globals and change nothing of the
 * calling process: not its environment, not its signals, not its priority. */
#pragma once

struct pb_ask {
    const char *archive; /* the folder of archives; NULL: the one that PROBING_ARCHIVE or the default names */
};
