/* ask: see ask.h. */
#include "ask/ask.h"

#include <stdarg.h>
#include <stdio.h>

void pb_ask_note(const struct pb_ask *ask, const char *format, ...)
{
    char text[400];
    va_list args;

    if (!ask || !ask->note)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    ask->note(ask->note_arg, text);
}
