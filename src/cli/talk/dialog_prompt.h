/* dialog_prompt: the terminal's side of a Python prompt in the process. */
#pragma once

#include "cli/talk/dialog.h"

/* Asks and runs until the person leaves or the prompt ends: on a terminal with the line editor, otherwise
 * what stdin has as one script. Returns as a command does (cli.h). */
int pb_dialog_prompt(struct pb_dialog *t, struct pb_err *err);
