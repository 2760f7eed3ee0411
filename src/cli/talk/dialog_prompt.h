/* dialog_prompt: a Python prompt in the process, seen from the terminal. */
#pragma once

#include "cli/talk/dialog.h"

/* Reads and runs inputs until the person leaves or the prompt ends: with the line editor on a terminal,
 * otherwise all of stdin as one script. Returns as a command does (cli.h). */
int pb_dialog_prompt(struct pb_dialog *t, struct pb_err *err);
