/* redact: see redact.h. */
#include "control/redact.h"

#include <string.h>

#define PARTS_MAX 16 /* of one name; of more parts the last 16 count */

/* A name is split into parts: snake_case, kebab-case and camelCase have several. */
struct name_part {
    const char *at;
    size_t length;
};

/* ASCII only: tolower() depends on the locale of the process. */
static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

static bool is_same(const char *a, const char *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (lower(a[i]) != lower(b[i]))
            return false;
    return true;
}

static bool contains(const char *text, size_t length, const char *word, size_t n)
{
    for (size_t i = 0; n > 0 && i + n <= length; i++)
        if (is_same(text + i, word, n))
            return true;
    return false;
}

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

static bool is_upper(char c)
{
    return c >= 'A' && c <= 'Z';
}

static bool is_word(char c)
{
    return is_lower(c) || is_upper(c) || (c >= '0' && c <= '9') || (unsigned char)c >= 0x80;
}

/* apiKey, APIKey, API_KEY, api-key: two parts each. The last parts are kept, since they decide. */
static size_t split_name(const char *name, size_t length, struct name_part ret[PARTS_MAX])
{
    size_t n = 0;

    for (size_t i = 0; i < length;) {
        size_t begin = i;
        if (!is_word(name[i])) {
            i++;
            continue;
        }
        for (i++; i < length && is_word(name[i]); i++)
            if (is_upper(name[i]) && (!is_upper(name[i - 1]) || (i + 1 < length && is_lower(name[i + 1]))))
                break;
        if (n == PARTS_MAX)
            memmove(ret, ret + 1, --n * sizeof(*ret));
        ret[n++] = (struct name_part){name + begin, i - begin};
    }
    return n;
}

static bool is_part(const struct name_part *part, const char *word, size_t n)
{
    return part->length == n && is_same(part->at, word, n);
}

static bool is_one_of(const struct name_part *part, const char *const *words)
{
    for (; *words; words++)
        if (is_part(part, *words, strlen(*words)))
            return true;
    return false;
}

/* The part is the word, ends with it (PGPASSWORD, clientsecret), or is the plural of either. */
static bool ends_with(const struct name_part *part, const char *word, size_t n)
{
    size_t length = part->length;

    if (length > n && lower(part->at[length - 1]) == 's')
        length--;
    return length >= n && is_same(part->at + length - n, word, n);
}

/* Qualifier and word written together: apikey, accesskey, authtoken. */
static bool is_joined(const struct name_part *part, const char *const *qualifiers, const char *word, size_t n)
{
    for (; *qualifiers; qualifiers++) {
        size_t before = strlen(*qualifiers);
        if (ends_with(part, word, n) && part->length <= before + n + 1 && part->length >= before + n &&
            is_same(part->at, *qualifiers, before))
            return true;
    }
    return false;
}

static bool is_capitals(const char *name, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (is_lower(name[i]))
            return false;
    return true;
}

/* "key" is a secret when the part before it says so (api_key), and in capitals (OPENAI_KEY), since such names
 * are environment variables. Otherwise it is a key of attention, a dict or a sort. */
static bool is_secret_key(const char *name, size_t length, const struct name_part *parts, size_t n)
{
    static const char *const before[] = {"api",     "access",  "private", "secret",     "auth",    "account",
                                         "master",  "signing", "signed",  "encryption", "session", "service",
                                         "storage", "deploy",  "license", "shared",     "rsa",     "ssh",
                                         "hmac",    "aes",     "crypto",  "cipher",     NULL};

    for (size_t i = 0; i < n; i++) {
        bool key = is_part(&parts[i], "key", 3) || is_part(&parts[i], "keys", 4);
        if ((key && i > 0 && is_one_of(&parts[i - 1], before)) || is_joined(&parts[i], before, "key", 3))
            return true;
    }
    return n > 1 && is_part(&parts[n - 1], "key", 3) && is_capitals(name, length);
}

/* "token" is a secret at the end of a name or before a word for its storage, unless it is a token of a
 * vocabulary (eos_token). The plural is that of a text unless the part before it says otherwise. */
static bool is_secret_token(const struct name_part *parts, size_t n)
{
    static const char *const after[] = {"value", "string", "str",    "text",  "bytes", "raw",  "b64",
                                        "hash",  "header", "secret", "read",  "write", "prod", "dev",
                                        "old",   "1",      "2",      "admin", NULL};
    static const char *const vocabulary[] = {
        "bos",   "eos",      "pad",     "unk",   "mask",  "sep",    "cls",     "next", "last",
        "prev",  "previous", "current", "cur",   "first", "image",  "special", "stop", "start",
        "end",   "new",      "added",   "extra", "max",   "min",    "num",     "per",  "each",
        "video", "audio",    "prompt",  "sos",   "blank", "forced", "eot",     "word", "text",
        "class", "n",        "decoder", "query", "sub",   NULL};
    static const char *const before[] = {"auth",   "access", "api",     "refresh", "bearer", "session",
                                         "secret", "id",     "private", "hf",      "csrf",   NULL};

    for (size_t i = 0; i < n; i++) {
        if (i > 0 && is_part(&parts[i], "tokens", 6) && is_one_of(&parts[i - 1], before))
            return true;
        if (is_joined(&parts[i], before, "token", 5))
            return true;
        if (is_part(&parts[i], "token", 5) && (i + 1 == n || is_one_of(&parts[i + 1], after)) &&
            (i == 0 || !is_one_of(&parts[i - 1], vocabulary)))
            return true;
    }
    return false;
}

static bool is_secret_by(const char *word, size_t n, const char *name, size_t length)
{
    static const char *const whole[] = {"secret", "password", "passwd", "credential", NULL};
    const struct name_part w = {word, n};
    struct name_part parts[PARTS_MAX];

    bool key = is_part(&w, "key", 3), token = is_part(&w, "token", 5);
    if (!key && !token && !is_one_of(&w, whole))
        return contains(name, length, word, n); /* a word that the user added: counts anywhere in the name */
    size_t count = split_name(name, length, parts);
    if (key)
        return is_secret_key(name, length, parts, count);
    if (token)
        return is_secret_token(parts, count);
    for (size_t i = 0; i < count; i++)
        if (ends_with(&parts[i], word, n))
            return true;
    return false;
}

bool pb_redact_name(const char *words, const char *name, size_t length)
{
    for (const char *p = words; *p;) {
        size_t n = strcspn(p, ", ");
        if (n && is_secret_by(p, n, name, length))
            return true;
        p += n;
        p += strspn(p, ", ");
    }
    return false;
}

/* Replaces the value by the mask where that is not longer, else by as many stars. */
static size_t mask_value(char *value, size_t length)
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
            kept = mask_value(word, n);
        else if (secret && name < n)
            kept = name + 1 + mask_value(word + name + 1, n - name - 1);
        next_is_secret = secret && name == n && word[0] == '-';
        if (at)
            args[out++] = ' ';
        memmove(args + out, word, kept);
        out += kept;
        at += n + 1;
    }
    return out;
}
