/* diagnose_jobs: what `probing` alone prints on a terminal. */
#pragma once

struct pb_ask;
struct pb_err;

/* The jobs of this machine, a line each with what is wrong, and the commands to go on with. */
int pb_diagnose_jobs(const struct pb_ask *ask, struct pb_err *err);
