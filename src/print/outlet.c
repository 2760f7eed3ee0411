/* outlet: see outlet.h. */
#include "print/outlet.h"

#include "print/glyph.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TAG = 17, SEQUENCE_MAX = TAG + 24, ROOM = 4096, UTF8_MAX = 4 };

/* ESC and 16 digits. */
static char tag[TAG + 1];

const char *pb_escape(void)
{
    uint64_t number = 0;

    if (!tag[0]) {
        if (syscall(SYS_getrandom, &number, sizeof(number), 0) != sizeof(number))
            number = (uintptr_t)&number; /* the address is random as well */
        snprintf(tag, sizeof(tag), "\033%016llx", (unsigned long long)number);
    }
    return tag;
}

/* -1: it may be one, but its end is not there yet. */
static int find_tagged(const char *text, size_t left)
{
    size_t n = left < TAG ? left : TAG;

    if (memcmp(text, pb_escape(), n) != 0)
        return 0;
    for (n = TAG; n < left && n < SEQUENCE_MAX; n++)
        if (text[n] >= '@' && text[n] <= '~' && text[n] != '[')
            return (int)n + 1;
    return left < SEQUENCE_MAX ? -1 : 0;
}

/* A sequence that a command of ours draws with: colours, where the cursor is, erasing, and what a screen and
 * a line editor switch on. None that a terminal answers, or that reaches further than what it shows. */
static int find_drawn(const char *text, size_t left)
{
    static const char *const modes[] = {"?25", "?1049", "?2004"};
    size_t n = 2;

    if (left < 2 || text[1] != '[')
        return left < 2 ? -1 : 0;
    while (n < left && n < SEQUENCE_MAX &&
           ((text[n] >= '0' && text[n] <= '9') || text[n] == ';' || text[n] == '?'))
        n++;
    if (n == left || n == SEQUENCE_MAX)
        return n < SEQUENCE_MAX ? -1 : 0;
    if (!memchr(text + 2, '?', n - 2))
        return text[n] && strchr("ABCGHJKm", text[n]) ? (int)n + 1 : 0;
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
        if (strlen(modes[i]) == n - 2 && memcmp(text + 2, modes[i], n - 2) == 0)
            return text[n] == 'h' || text[n] == 'l' ? (int)n + 1 : 0;
    return 0;
}

size_t pb_escape_length(const char *text, size_t left)
{
    int n = find_tagged(text, left);
    return n > 0 ? (size_t)n : 0;
}

const char *pb_style(enum pb_style style)
{
    static const char *const codes[] = {"[0m", "[1m", "[2m", "[7m", "[36m", "[1;31m"};
    static char made[sizeof(codes) / sizeof(codes[0])][SEQUENCE_MAX];

    if (!made[style][0])
        snprintf(made[style], sizeof(made[style]), "%s%s", pb_escape(), codes[style]);
    return made[style];
}

struct outlet {
    int fd;
    bool drawn; /* by a command elsewhere, for this terminal */
    size_t nheld;
    char held[SEQUENCE_MAX]; /* the beginning of a character or sequence, whose rest is still to come */
    size_t n;
    char out[ROOM];
};

static bool write_out(struct outlet *o)
{
    size_t done = 0;

    while (done < o->n) {
        ssize_t n = write(o->fd, o->out + done, o->n - done);
        if (n < 0 && errno != EINTR)
            return false;
        done += n > 0 ? (size_t)n : 0;
    }
    o->n = 0;
    return true;
}

static bool put(struct outlet *o, const char *text, size_t len)
{
    while (len > 0) {
        size_t n = len < ROOM - o->n ? len : ROOM - o->n;
        memcpy(o->out + o->n, text, n);
        o->n += n;
        text += n;
        len -= n;
        if (o->n == ROOM && !write_out(o))
            return false;
    }
    return true;
}

/* more: control characters that are plain here. */
static size_t plain_length(const char *text, size_t len, const char *more)
{
    size_t n = 0;

    while (n < len && ((text[n] >= ' ' && text[n] < 0x7f) || (text[n] && strchr(more, text[n]))))
        n++;
    return n;
}

/* Whether the last bytes may be the beginning of a UTF-8 character. */
static bool is_cut(const char *text, size_t left)
{
    unsigned char first = (unsigned char)text[0];
    size_t needed = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 1;

    for (size_t i = 1; i < left && i < needed; i++)
        if ((text[i] & 0xc0) != 0x80)
            return false;
    return first < 0xf5 && left < needed;
}

/* Puts what is whole. Returns how much of it that was; -1: it could not be written. */
static ssize_t put_clean(struct outlet *o, const char *text, size_t len)
{
    struct pb_glyph g;
    size_t i = 0;

    while (i < len) {
        size_t n = plain_length(text + i, len - i, o->drawn ? "\n\t\r\b\a" : "\n\t");
        if (n && !put(o, text + i, n))
            return -1;
        i += n;
        if (i == len)
            break;
        int own = text[i] != '\033' ? 0
                  : o->drawn        ? find_drawn(text + i, len - i)
                                    : find_tagged(text + i, len - i);
        if (own < 0 || is_cut(text + i, len - i))
            break;
        if (own > 0) {
            size_t tagged = o->drawn ? 1 : TAG;
            if (!put(o, "\033", 1) || !put(o, text + i + tagged, (size_t)own - tagged))
                return -1;
            i += (size_t)own;
            continue;
        }
        pb_glyph_read(text + i, len - i, &g);
        if (!put(o, g.shown, strlen(g.shown)))
            return -1;
        i += g.bytes;
    }
    return (ssize_t)i;
}

/* A stdio write function: 0 is failure. */
static ssize_t write_clean(void *cookie, const char *text, size_t len)
{
    struct outlet *o = cookie;
    const char *all = text;
    char *joined = NULL;
    size_t n = o->nheld + len;

    if (o->nheld) {
        joined = malloc(n);
        if (!joined)
            return 0;
        memcpy(joined, o->held, o->nheld);
        memcpy(joined + o->nheld, text, len);
        all = joined;
    }
    ssize_t done = put_clean(o, all, n);
    bool ok = done >= 0 && write_out(o);
    o->nheld = ok ? n - (size_t)done : 0; /* less than a sequence: else it would have been put */
    if (ok)
        memcpy(o->held, all + done, o->nheld);
    free(joined);
    return ok ? (ssize_t)len : 0;
}

static struct outlet outlets[2];

static FILE *open_outlet(int fd, int buffering)
{
    struct outlet *o = &outlets[fd == STDERR_FILENO];
    const cookie_io_functions_t functions = {.write = write_clean};

    *o = (struct outlet){.fd = fd};
    FILE *f = fopencookie(o, "w", functions);
    if (f)
        setvbuf(f, NULL, buffering, 0);
    return f;
}

void pb_outlet_begin(bool bytes)
{
    static bool started[2];
    int fds[] = {STDOUT_FILENO, STDERR_FILENO};

    for (int i = 0; i < 2; i++) {
        bool terminal = isatty(fds[i]);
        if (started[i] || (!terminal && bytes))
            continue;
        fflush(i ? stderr : stdout);
        FILE *f = open_outlet(fds[i], i ? _IONBF : terminal ? _IOLBF : _IOFBF);
        if (!f)
            continue; /* out of memory: the next thing printed fails or is short */
        started[i] = true;
        *(i ? &stderr : &stdout) = f;
    }
}

void pb_outlet_take_drawn(void)
{
    fflush(stdout);
    outlets[0].drawn = true;
}

void pb_put_line(FILE *to, const char *text, size_t len)
{
    struct pb_glyph g;

    for (size_t i = 0; i < len; i += g.bytes) {
        size_t n = plain_length(text + i, len - i, "");
        if (n) {
            fwrite(text + i, 1, n, to);
            g.bytes = n;
            continue;
        }
        pb_glyph_read(text + i, len - i, &g);
        fputs(g.shown, to);
    }
}

void pb_put_name(FILE *to, const char *text)
{
    pb_put_line(to, text, strlen(text));
}

void pb_put_sentence(FILE *to, const char *text)
{
    for (const char *end; (end = strchr(text, '\n')); text = end + 1) {
        pb_put_line(to, text, (size_t)(end - text));
        fputs("\n  ", to);
    }
    pb_put_name(to, text);
    putc('\n', to);
}

void pb_put_between(FILE *to, const char *before, const char *text, const char *after)
{
    fputs(before, to);
    pb_put_name(to, text);
    fputs(after, to);
}
