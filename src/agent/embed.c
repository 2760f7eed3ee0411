/* embed: see embed.h. PROBING_PYTHON_DIR is the folder of the sources at build time. */
#include "agent/embed.h"

#include "agent/files.h"

#include <stdio.h>

__asm__(".pushsection .rodata\n"
        ".hidden pb_embedded_remote_py\n"
        ".globl pb_embedded_remote_py\n"
        "pb_embedded_remote_py:\n"
        ".incbin \"" PROBING_PYTHON_DIR "/_remote.py\"\n"
        ".byte 0\n"
        ".popsection\n");
extern const char pb_embedded_remote_py[];

static struct pb_block from_folder;

const char *pb_embed_remote_py(void)
{
    return from_folder.size ? from_folder.data : pb_embedded_remote_py;
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
