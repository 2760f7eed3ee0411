/* embed: see embed.h. The header with the files is made by the build (cmake/embed_python.cmake). */
#include "agent/python/embed.h"

#include "agent/core/small_files.h"
#include "agent_python_part.h"

#include <stdio.h>
#include <string.h>

#define FILES (sizeof(embedded_files) / sizeof(embedded_files[0]))

static struct pb_block from_folder[FILES];
char pb_embed_program[512];

const char *pb_embed_file(const char *name)
{
    for (size_t i = 0; i < FILES; i++)
        if (strcmp(embedded_files[i].name, name) == 0)
            return from_folder[i].size ? from_folder[i].data : (const char *)embedded_files[i].text;
    return NULL;
}

void pb_embed_override(const char *python_dir)
{
    char path[320];

    for (size_t i = 0; i < FILES; i++) {
        pb_block_done(&from_folder[i]);
        if (!python_dir[0])
            continue;
        snprintf(path, sizeof(path), "%s/%s.py", python_dir, embedded_files[i].name);
        pb_file_slurp(path, &from_folder[i]);
    }
}
