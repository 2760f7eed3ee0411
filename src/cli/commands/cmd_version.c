/* version: prints the release. */
#include "cli/cli.h"

#include <stdio.h>

static int run(const struct pb_call *call, struct pb_err *err)
{
    (void)call;
    (void)err;
    puts("probing " PROBING_VERSION);
    return 0;
}

const struct pb_command pb_cmd_version = {.name = "version",
                                          .summary = "print the release",
                                          .synopsis = "",
                                          .example = "probing version",
                                          .run = run};
