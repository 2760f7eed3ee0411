/* launch: starts a program with the agent in its Python from the first line on.
 *
 * The command replaces itself by the program (exec), with PROBING set and a folder of ours first in
 * PYTHONPATH. The sitecustomize.py in that folder starts the agent, removes the folder from sys.path and runs
 * the environment's own sitecustomize. So nothing needs to be installed in the program's environment. */
#include "ask/parts.h"
#include "base/children.h"
#include "base/err.h"
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int set_variable(const char *name, const char *value, struct pb_err *err)
{
    return setenv(name, value, 1) < 0 ? pb_fail(err, -errno, "out of memory") : 0;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    const char *init = pb_call_option(call, "init"), *before = getenv("PYTHONPATH");
    bool children = pb_call_option(call, "children");
    char folder[PB_PARTS_PATH], value[4096 + 16], *path = NULL, *command[PB_ARGS_MAX + 1];

    int r = pb_parts_launch(folder, sizeof(folder), err);
    if (r < 0)
        return r;
    if (snprintf(value, sizeof(value), "%d%s%s", children ? 2 : 1, init ? ",init:" : "", init ? init : "") >=
        (int)sizeof(value))
        return pb_fail(err, -ENAMETOOLONG, "the path of --init is too long");
    if (asprintf(&path, "%s%s%s", folder, before && before[0] ? ":" : "", before ? before : "") < 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    r = set_variable("PYTHONPATH", path, err);
    free(path);
    if (r == 0)
        r = set_variable("PROBING", value, err);
    if (r < 0)
        return r;
    for (int i = 0; i < call->nargs; i++)
        command[i] = (char *)(uintptr_t)call->args[i];
    command[call->nargs] = NULL;
    pb_children_end();
    execvp(command[0], command);
    return pb_fail(err, -errno, "cannot run %s: %s", command[0], strerror(errno));
}

static const struct pb_option options[] = {
    {0, "children", NULL,
     "in the programs that it starts too (multiprocessing, subprocess, torchrun workers)"},
    {0, "init", PB_TEXT("FILE"), "run this Python file in the program once the agent is there"},
    {0},
};

const struct pb_command pb_cmd_launch = {
    .name = "launch",
    .summary = "start a program that is probed from the beginning",
    .synopsis = "[--children] [--init FILE] -- COMMAND [ARGUMENT...]",
    .text = "Does what PROBING=1 does (PROBING=2 with --children), for a Python that has no "
            "Probing installed. COMMAND replaces this program: it has the same pid, input, output "
            "and exit status.\n\n"
            "A Python that ignores PYTHONPATH (-I, -E, -S) starts without the agent: use inject.",
    .example = "probing launch -- python train.py --lr 0.1",
    .options = options,
    .min_args = 1,
    .max_args = PB_ARGS_MAX,
    .run = run,
};
