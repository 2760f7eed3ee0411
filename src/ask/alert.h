/* alert: a row of python.alerts in a process, from outside. */
#pragma once

#include <sys/types.h>

struct pb_ask;
struct pb_err;

struct pb_alert_row {
    const char *kind, *severity, *subject, *text; /* subject NULL: none */
};

/* -ENOENT: there is no agent in it, and none is brought. */
int pb_alert_send(const struct pb_ask *ask, pid_t pid, const struct pb_alert_row *row, struct pb_err *err);
