/* redact: see redact.h. */
#include "control/redact.h"

#include <string.h>
#include <strings.h>

static bool contains(const char *text, size_t length, const char *word, size_t n)
{
    for (size_t i = 0; n > 0 && i + n <= length; i++)
        if (strncasecmp(text + i, word, n) == 0)
            return true;
    return false;
}

bool pb_redact_name(const char *words, const char *name, size_t length)
{
    for (const char *p = words; *p;) {
        size_t n = strcspn(p, ", ");
        if (contains(name, length, p, n))
            return true;
        p += n;
        p += strspn(p, ", ");
    }
    return false;
}

/* Puts the mask where a value was, if that is shorter; else stars as long as the value. */
static size_t mask(char *value, size_t length)
{
    size_t n = length < strlen(PB_REDACTED) ? length : strlen(PB_REDACTED);
    memset(value, '*', n);
    return n;
}

size_t pb_redact_command(const char *words, char *args, size_t length)
{
    size_t out = 0;
    bool next_is_secret = false;

    for (size_t at = 0; at < length;) {
        char *word = args + at;
        size_t n = strnlen(word, length - at), kept = n;
        const char *equals = memchr(word, '=', n);
        size_t name = equals ? (size_t)(equals - word) : n;
        bool secret = pb_redact_name(words, word, name);
        if (next_is_secret && word[0] != '-')
            kept = mask(word, n);
        else if (secret && name < n)
            kept = name + 1 + mask(word + name + 1, n - name - 1);
        next_is_secret = secret && name == n && word[0] == '-';
        if (at)
            args[out++] = ' ';
        memmove(args + out, word, kept);
        out += kept;
        at += n + 1;
    }
    return out;
}
