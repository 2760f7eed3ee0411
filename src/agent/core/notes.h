/* notes: unsolicited messages of the agent for people: rows of python.alerts (something is wrong with the
 * job) and of probing.log (what the agent did by itself). From any thread, without the GIL; nothing if no
 * agent runs. */
#pragma once

#include <stdint.h>

/* kind: "hang", "nan", ...; severity: "error", "warning" or "note". subject: such as the name of a variable;
 * NULL: none. step: -1: not known. */
struct pb_alert {
    const char *kind, *severity, *subject, *text;
    int64_t step;
    double value; /* NAN where there is none; with has_value NaN is a value too */
    int has_value;
};
void pb_note_alert(const struct pb_alert *alert);

/* source: the part of the agent, such as "torch". */
void pb_note_log(const char *source, const char *format, ...) __attribute__((format(printf, 2, 3)));
