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
    .text =
        "The program goes on meanwhile: what is entered runs in a thread of its own, and what it prints is\n"
        "shown here alone. Names are found as eval finds them, and assignments reach __main__; help() lists "
        "what\n"
        "there is besides: threads(), frames(), frame(thread, depth), modules(), tensors(), source(object).\n"
        "Tab completes names and attributes of live objects, an empty line ends a block, _ is the last "
        "value,\n"
        "await works where an event loop runs. Ctrl-C stops the code that runs, Ctrl-D and exit() leave. "
        "The\n"
        "history is kept. Where stdin is no terminal it is run as a script: values of expressions are shown, "
        "an\n"
        "exception ends it with exit status 1.",
    .example = "probing -t 4711 repl\necho 'frame(0, 0)' | probing -t 4711 repl",
    .flags = PB_CMD_BYTES | PB_CMD_TARGET | PB_CMD_TIMEOUT | PB_CMD_LABELS,
    .run = run_repl,
};
