/* core: the stacks of a process that died, from its core file. The same readers and formats as
 * `backtrace`. */
#include "base/err.h"
#include "cli/cli.h"
#include "cli/print/stacks_print.h"

#include <stdio.h>
#include <string.h>

/* The options of backtrace that apply to a core file, by the same names. */
static const struct pb_option options[] = {
    {0, "locals", NULL, "arguments and local variables of each frame, shortened; secrets left out"},
    {0, "native", NULL, "native frames too, where they were called; without Python they are shown anyhow"},
    {0, "merge", NULL, "equal stacks once, the rarest first"},
    {0, "force", NULL, "take the nearest known layout for an unknown version of CPython"},
    {0, "root", PB_TEXT("DIR"),
     "the file system of the process, if it ran in a container or on another machine (default /)"},
    {0},
};

static int run(const struct pb_call *call, struct pb_err *err)
{
    const char *slash = strrchr(call->args[0], '/');
    struct pb_target target = {.core = call->args[0], .root = pb_call_option(call, "root")};
    struct pb_call backtrace = *call;

    if (call->nargs > 1 && strcmp(call->args[1], "backtrace") != 0 && strcmp(call->args[1], "dump") != 0)
        return pb_fail(err, PB_USAGE,
                       "a core file has a backtrace, but no '%s' (probing core FILE backtrace)",
                       call->args[1]);
    target.labelled_by = PB_LABEL_BY_NAME;
    snprintf(target.label, sizeof(target.label), "%s", slash ? slash + 1 : call->args[0]);
    backtrace.targets = (struct pb_targets){.at = &target, .n = 1};
    return pb_backtrace(&backtrace, err);
}

const struct pb_command pb_cmd_core = {
    .name = "core",
    .summary = "the stacks of a process that died, from its core file",
    .synopsis = "FILE [backtrace]",
    .text = "Shows Python stacks with lines and locals, the thread that held the GIL, native "
            "frames, and the cause of death. Reads cores of the kernel and of gdb (gcore PID). "
            "Nothing is executed, and neither Python nor a debugger is needed.\n\n"
            "Most cores leave out code and constants. These are read from the mapped files, if "
            "they are unchanged (by build id, else by size). For a core from a container, --root "
            "names its file system. Unpack a compressed core first.",
    .example = "probing core /tmp/core.4711 backtrace --native\nprobing core core --locals --root /mnt/image",
    .options = options,
    .min_args = 1,
    .max_args = 2,
    .flags = PB_CMD_ROWS,
    .run = run,
};
