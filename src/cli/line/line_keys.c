/* line_keys: see line_keys.h. */
#include "cli/line/line_keys.h"

#include "cli/line/line_edit.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ESCAPE_MS = 50, PASTE_MS = 2000, SEQUENCE_MAX = 32 };

bool pb_line_keys_waiting(const struct pb_line_keys *k)
{
    struct pollfd p = {.fd = k->in, .events = POLLIN};
    return k->at < k->n || poll(&p, 1, 0) > 0;
}

/* The next byte; PB_KEY_NONE after wait_ms milliseconds (-1: no limit); PB_KEY_SIGNAL, PB_KEY_GONE. */
static int next_byte(struct pb_line_keys *k, int wait_ms)
{
    struct pollfd p = {.fd = k->in, .events = POLLIN};
    struct timespec wait = {.tv_sec = wait_ms / 1000, .tv_nsec = wait_ms % 1000 * 1000000L};

    if (k->at == k->n) {
        int ready = ppoll(&p, 1, wait_ms < 0 ? NULL : &wait, &k->mask);
        if (ready <= 0)
            return ready == 0 ? PB_KEY_NONE : errno == EINTR ? PB_KEY_SIGNAL : PB_KEY_GONE;
        ssize_t n = read(k->in, k->block, sizeof(k->block));
        if (n <= 0)
            return n < 0 && errno == EINTR ? PB_KEY_SIGNAL : PB_KEY_GONE;
        k->n = (size_t)n;
        k->at = 0;
    }
    return k->block[k->at++];
}

/* Escape sequences of keys, without the leading ESC [: "1;5C" and the like. */
static const struct {
    const char *text;
    int key;
} sequences[] = {
    {"A", PB_KEY_UP},           {"B", PB_KEY_DOWN},
    {"C", PB_KEY_RIGHT},        {"D", PB_KEY_LEFT},
    {"H", PB_KEY_HOME},         {"F", PB_KEY_END},
    {"1~", PB_KEY_HOME},        {"7~", PB_KEY_HOME},
    {"4~", PB_KEY_END},         {"8~", PB_KEY_END},
    {"3~", PB_KEY_DELETE},      {"200~", PB_KEY_PASTE},
    {"1;5D", PB_KEY_WORD_LEFT}, {"1;5C", PB_KEY_WORD_RIGHT},
    {"1;3D", PB_KEY_WORD_LEFT}, {"1;3C", PB_KEY_WORD_RIGHT},
    {"5D", PB_KEY_WORD_LEFT},   {"5C", PB_KEY_WORD_RIGHT},
};

static int after_bracket(struct pb_line_keys *k)
{
    char text[SEQUENCE_MAX + 1] = "";

    for (size_t n = 0; n < SEQUENCE_MAX; n++) {
        int byte = next_byte(k, ESCAPE_MS);
        if (byte >= 0x100)
            return byte == PB_KEY_GONE ? byte : PB_KEY_NONE;
        text[n] = (char)byte;
        if (byte >= 0x40 && byte <= 0x7e)
            break;
    }
    for (size_t i = 0; i < sizeof(sequences) / sizeof(sequences[0]); i++)
        if (strcmp(text, sequences[i].text) == 0)
            return sequences[i].key;
    return PB_KEY_NONE;
}

int pb_line_key(struct pb_line_keys *k)
{
    int byte = next_byte(k, -1);

    if (byte != '\033')
        return byte;
    byte = next_byte(k, ESCAPE_MS);
    if (byte == '[' || byte == 'O')
        return after_bracket(k);
    return byte < 0x100 ? PB_ALT(byte) : byte;
}

int pb_line_keys_paste(struct pb_line_keys *k, char **ret, size_t *ret_n)
{
    static const char end[] = "\033[201~";
    char *text = malloc(PB_LINE_MAX);
    size_t n = 0, matched = 0;
    bool fits = true;

    if (!text)
        return -ENOMEM;
    for (int before = 0, byte; matched < sizeof(end) - 1; before = byte) {
        byte = next_byte(k, PASTE_MS);
        if (byte == PB_KEY_SIGNAL)
            continue;
        /* A terminal that omits the end mark of a paste must not block the prompt. */
        if (byte >= 0x100)
            break;
        matched = byte == end[matched] ? matched + 1 : byte == end[0];
        bool half = byte == '\n' && before == '\r';
        if (half || (byte < 0x20 && byte != '\n' && byte != '\r' && byte != '\t') || byte == 0x7f)
            continue;
        fits = fits && n < PB_LINE_MAX;
        if (fits)
            text[n++] = (char)(byte == '\r' ? '\n' : byte);
    }
    /* The end mark was copied too, except its escape. */
    n -= fits && matched == sizeof(end) - 1 ? sizeof(end) - 2 : 0;
    if (!fits) {
        free(text);
        return -EFBIG;
    }
    *ret = text;
    *ret_n = n;
    return 0;
}
