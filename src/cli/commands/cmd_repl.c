/* repl: a Python prompt inside the process. */
#include "cli/cli.h"
#include "cli/talk/dialog_prompt.h"

static int run_repl(const struct pb_call *call, struct pb_err *err)
{
    struct pb_dialog dialog;

    int r = pb_dialog_open(call, "repl", "", &dialog, err);
    if (r < 0)
        return r;
    r = pb_dialog_prompt(&dialog, err);
    pb_dialog_close(&dialog);
    return r;
}

const struct pb_command pb_cmd_repl = {
    .name = "repl",
    .summary = "a Python prompt inside the running process",
    .synopsis = "",
    .text = "Your code runs in a thread of its own while the program goes on, and its output is "
            "shown only here. Names are looked up as for eval, and assignments go to __main__. "
            "help() lists more: threads(), frames(), frame(thread, depth), modules(), tensors(), "
            "source(object).\n\n"
            "Tab completes names and attributes of live objects. An empty line ends a block. _ is "
            "the last value. await works if an event loop runs. Ctrl-C stops the running code; "
            "Ctrl-D and exit() leave.\n\n"
            "If stdin is no terminal, it runs as a script: values of expressions are printed, and "
            "an exception ends it with exit status 1.",
    .example = "probing -t 4711 repl\necho 'frame(0, 0)' | probing -t 4711 repl",
    .flags = PB_CMD_BYTES | PB_CMD_TARGET | PB_CMD_TIMEOUT | PB_CMD_LABELS,
    .run = run_repl,
};
