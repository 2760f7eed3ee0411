/* err: see err.h. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int pb_fail(struct pb_err *err, int r, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->text, sizeof(err->text), fmt, ap);
        va_end(ap);
    }
    return r;
}

const char *pb_err_text(const struct pb_err *err, int r)
{
    return err && err->text[0] ? err->text : strerror(r < 0 ? -r : r);
}

const char *pb_err_without_program(const char *text)
{
    return strncmp(text, PB_ERR_LEADS, strlen(PB_ERR_LEADS)) == 0 ? text + strlen(PB_ERR_LEADS) : text;
}
