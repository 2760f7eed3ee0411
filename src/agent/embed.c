/* embed: see embed.h. The header with the text is made by the build (cmake/embed.cmake). */
#include "agent/embed.h"

#include "agent/files.h"
#include "agent_remote_py.h"

#include <stdio.h>

static struct pb_block from_folder;

const char *pb_embed_remote_py(void)
{
    return from_folder.size ? from_folder.data : (const char *)embedded_remote_py;
}

void pb_embed_override(const char *python_dir)
{
    char path[320];

    pb_block_done(&from_folder);
    if (!python_dir[0])
        return;
    snprintf(path, sizeof(path), "%s/_remote.py", python_dir);
    pb_file_slurp(path, &from_folder);
}
