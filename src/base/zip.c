/* zip: see zip.h. The format: for each part a header and its bytes, then a list of all headers with their
 * places, then an end record with the place of the list. */
#include "base/zip.h"

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/crc32.h"
#include "base/err.h"
#include "base/vector.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCAL  0x04034b50u
#define LISTED 0x02014b50u
#define END    0x06054b50u

enum {
    LOCAL_SIZE = 30,
    LISTED_SIZE = 46,
    COMMENT = 65535,
    VERSION = 20,
    UTF8 = 0x800,
    ENCRYPTED = 1,
    DATE = 1 << 5 | 1, /* 1980-01-01: the manifest has the time */
    BLOCK = 65536,
};

/* A path of plain components: it stays below the folder in which it is opened, and hides nothing there. */
static bool is_part_name(const char *name)
{
    unsigned depth = 1;

    if (strlen(name) >= PB_ZIP_NAME)
        return false;
    for (const char *at = name;; depth++) {
        size_t n = strcspn(at, "/");
        if (n == 0 || n > 255 || at[0] == '.')
            return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)at[i] <= 0x20 || at[i] == 0x7f || at[i] == '\\')
                return false;
        if (!at[n])
            return depth <= PB_ZIP_DEPTH;
        at += n + 1;
    }
}

size_t pb_zip_overhead(const char *name)
{
    return LOCAL_SIZE + LISTED_SIZE + 2 * strlen(name);
}

static void put_u16(FILE *out, unsigned v)
{
    putc((int)(v & 0xff), out);
    putc((int)(v >> 8 & 0xff), out);
}

/* What both headers have, from the version on. */
static void put_header(FILE *out, const struct pb_zip_part *p)
{
    put_u16(out, VERSION);
    put_u16(out, UTF8);
    put_u16(out, 0); /* stored */
    put_u16(out, 0);
    put_u16(out, DATE);
    pb_put_u32(out, p->crc);
    pb_put_u32(out, p->size);
    pb_put_u32(out, p->size);
    put_u16(out, (unsigned)strlen(p->name));
    put_u16(out, 0);
}

/* Copies at most `most` bytes to out, or counts them where out is NULL. */
static int copy_bytes(FILE *in, FILE *out, uint64_t most, uint64_t *ret_size, uint32_t *ret_crc)
{
    _cleanup_free_ char *block = malloc(BLOCK);
    uint64_t size = 0;
    uint32_t crc = 0;
    size_t n;

    if (!block)
        return -ENOMEM;
    while (size < most && (n = fread(block, 1, most - size < BLOCK ? (size_t)(most - size) : BLOCK, in))) {
        crc = pb_crc32(crc, block, n);
        if (out && fwrite(block, 1, n, out) != n)
            return errno ? -errno : -EIO;
        size += n;
    }
    if (ferror(in))
        return -EIO;
    *ret_size = size;
    *ret_crc = crc;
    return 0;
}

int pb_zip_add(struct pb_zip *z, const char *name, FILE *in)
{
    struct pb_zip_part part = {.offset = (uint32_t)z->written};
    off_t from = ftello(in);
    uint64_t size, again;
    uint32_t crc;

    if (!is_part_name(name))
        return -EINVAL;
    /* The header in front of the bytes has their checksum. */
    int r = from < 0 ? -errno : copy_bytes(in, NULL, PB_ZIP_BYTES, &size, &part.crc);
    if (r == 0 && (z->n >= PB_ZIP_PARTS || z->written + size + LOCAL_SIZE + strlen(name) > PB_ZIP_BYTES))
        r = -E2BIG;
    if (r == 0)
        r = fseeko(in, from, SEEK_SET) < 0 ? -errno : pb_grow_full((void **)&z->at, z->n, sizeof(*z->at));
    if (r < 0)
        return r;
    part.size = (uint32_t)size;
    part.name = strdup(name);
    if (!part.name)
        return -ENOMEM;
    z->at[z->n++] = part;
    pb_put_u32(z->out, LOCAL);
    put_header(z->out, &part);
    fputs(name, z->out);
    r = copy_bytes(in, z->out, size, &again, &crc);
    z->written += LOCAL_SIZE + strlen(name) + size;
    return r < 0 ? r : again != size || crc != part.crc || ferror(z->out) ? -EIO : 0;
}

int pb_zip_end(struct pb_zip *z)
{
    uint64_t size = 0;

    for (size_t i = 0; i < z->n; i++) {
        const struct pb_zip_part *p = &z->at[i];
        pb_put_u32(z->out, LISTED);
        put_u16(z->out, 3 << 8 | VERSION); /* 3: the rights below are Unix's */
        put_header(z->out, p);
        put_u16(z->out, 0);
        put_u16(z->out, 0);
        put_u16(z->out, 0);
        pb_put_u32(z->out, (uint32_t)(S_IFREG | 0644) << 16);
        pb_put_u32(z->out, p->offset);
        fputs(p->name, z->out);
        size += LISTED_SIZE + strlen(p->name);
    }
    pb_put_u32(z->out, END);
    pb_put_u32(z->out, 0);
    put_u16(z->out, (unsigned)z->n);
    put_u16(z->out, (unsigned)z->n);
    pb_put_u32(z->out, (uint32_t)size);
    pb_put_u32(z->out, (uint32_t)z->written);
    put_u16(z->out, 0);
    return ferror(z->out) ? -EIO : 0;
}

void pb_zip_done(struct pb_zip *z)
{
    for (size_t i = 0; i < z->n; i++)
        free(z->at[i].name);
    free(z->at);
    *z = (struct pb_zip){0};
}

/* --- unpacking --- */

struct unpacking {
    const char *path;
    int in, folder;
    uint64_t list;   /* where the list of parts begins: the bytes of all parts lie before it */
    uint64_t behind; /* the end of the part before */
    unsigned n;
    struct pb_cursor listed;
};

static int read_at(int fd, uint64_t offset, void *ret, size_t size)
{
    ssize_t n = pread(fd, ret, size, (off_t)offset);
    return n < 0 ? -errno : (size_t)n < size ? -EBADMSG : 0;
}

static int bad(const struct unpacking *u, const char *what, struct pb_err *err)
{
    return pb_fail(err, -EBADMSG, "%.200s %s", u->path, what);
}

/* Finds the end record, behind which there may be a comment. */
static int find_list(struct unpacking *u, uint64_t size, uint64_t *ret_bytes, struct pb_err *err)
{
    size_t n = size < PB_ZIP_END + COMMENT ? (size_t)size : PB_ZIP_END + COMMENT;
    _cleanup_free_ unsigned char *tail = malloc(n + 1);
    uint32_t first = 0;

    if (!tail)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (size < 4 || read_at(u->in, 0, &first, sizeof(first)) < 0 || (first != LOCAL && first != END))
        return bad(u, "is no incident's file: it is not a zip file", err);
    if (read_at(u->in, size - n, tail, n) < 0)
        return bad(u, "cannot be read", err);
    for (size_t at = n < PB_ZIP_END ? 0 : n - PB_ZIP_END + 1; at-- > 0;) {
        struct pb_cursor c = {tail + at, tail + n, false};
        if (pb_u32(&c) != END)
            continue;
        pb_skip(&c, 6);
        u->n = pb_u16(&c);
        *ret_bytes = pb_u32(&c);
        u->list = pb_u32(&c);
        uint64_t here = size - n + at;
        if (u->list <= here && *ret_bytes <= here - u->list && u->n <= PB_ZIP_PARTS)
            return 0;
    }
    return bad(u, "is cut off: its list of parts, which stands at the end, is missing", err);
}

/* Opens a new file below the folder, whose folders it makes. */
static int create_part(int folder, const char *name)
{
    _cleanup_close_ int below = -1;
    char part[256];

    for (const char *at = name;; at++) {
        size_t n = strcspn(at, "/");
        int in = below >= 0 ? below : folder;
        snprintf(part, sizeof(part), "%.*s", (int)n, at);
        at += n;
        if (!*at)
            return openat(in, part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (mkdirat(in, part, 0700) < 0 && errno != EEXIST)
            return -1;
        int next = openat(in, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0)
            return -1;
        if (below >= 0)
            close(below);
        below = next;
    }
}

static int copy_part(const struct unpacking *u, const char *name, uint64_t from, uint32_t size, uint32_t crc,
                     struct pb_err *err)
{
    _cleanup_free_ char *block = malloc(BLOCK);
    uint32_t found = 0;

    if (!block)
        return pb_fail(err, -ENOMEM, "out of memory");
    _cleanup_close_ int to = create_part(u->folder, name);
    if (to < 0 && (errno == EEXIST || errno == ENOTDIR))
        return bad(u, "is damaged: two parts have one name", err);
    int r = to < 0 ? -errno : 0;
    for (uint32_t done = 0, n; r == 0 && done < size; done += n) {
        n = size - done < BLOCK ? size - done : BLOCK;
        if (read_at(u->in, from + done, block, n) < 0)
            return bad(u, "cannot be read", err);
        found = pb_crc32(found, block, n);
        ssize_t written = write(to, block, n);
        r = written < 0 ? -errno : (uint32_t)written < n ? -ENOSPC : 0;
    }
    if (r < 0)
        return pb_fail(err, r, "%.200s cannot be unpacked: %s (TMPDIR names the folder for that)", u->path,
                       strerror(-r));
    return found == crc ? 0 : bad(u, "is damaged: the checksum of a part is another", err);
}

/* The next part of the list. */
static int unpack_part(struct unpacking *u, struct pb_err *err)
{
    struct pb_cursor *c = &u->listed;
    char name[PB_ZIP_NAME];
    unsigned char local[LOCAL_SIZE];

    if (pb_u32(c) != LISTED)
        return bad(u, "is damaged: its list of parts is wrong", err);
    pb_skip(c, 4);
    unsigned flags = pb_u16(c), method = pb_u16(c);
    pb_skip(c, 4);
    uint32_t crc = pb_u32(c), size = pb_u32(c), whole = pb_u32(c);
    unsigned length = pb_u16(c), extra = pb_u16(c), comment = pb_u16(c);
    pb_skip(c, 8);
    uint64_t offset = pb_u32(c);
    const char *text = pb_span(c, length);
    pb_skip(c, (uint64_t)extra + comment);
    if (c->bad || length >= sizeof(name) || memchr(text, '\0', length))
        return bad(u, "is damaged: its list of parts is wrong", err);
    snprintf(name, sizeof(name), "%.*s", (int)length, text);
    if (length && name[length - 1] == '/' && size == 0)
        return 0; /* a folder: made where a part needs it */
    if (!is_part_name(name))
        return bad(u, "is no incident's file: a part has a name that leads elsewhere", err);
    if (flags & ENCRYPTED || method || size != whole)
        return bad(u, "has compressed parts, which `bundle` does not write (pack it again by zip -0)", err);
    if (read_at(u->in, offset, local, sizeof(local)) < 0 || pb_load_u32(local) != LOCAL)
        return bad(u, "is damaged: a part is not where the list has it", err);
    struct pb_cursor more = {local + 26, local + LOCAL_SIZE, false};
    uint64_t from = offset + LOCAL_SIZE + pb_u16(&more);
    from += pb_u16(&more);
    if (offset < u->behind || from > u->list || size > u->list - from)
        return bad(u, "is damaged: a part lies over another", err);
    u->behind = from + size;
    return copy_part(u, name, from, size, crc, err);
}

int pb_zip_unpack(const char *path, int folder, struct pb_err *err)
{
    struct unpacking u = {.path = path, .folder = folder};
    uint64_t bytes = 0;
    struct stat st;

    _cleanup_close_ int in = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (in < 0 || fstat(in, &st) < 0)
        return pb_fail(err, -errno, "%.200s cannot be opened: %s", path, strerror(errno));
    u.in = in;
    if (!S_ISREG(st.st_mode))
        return bad(&u, "is no incident's file: it is not a regular file", err);
    int r = find_list(&u, (uint64_t)st.st_size, &bytes, err);
    if (r < 0)
        return r;
    _cleanup_free_ unsigned char *list = malloc((size_t)bytes + 1);
    if (!list)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (read_at(in, u.list, list, (size_t)bytes) < 0)
        return bad(&u, "cannot be read", err);
    u.listed = (struct pb_cursor){list, list + bytes, false};
    for (unsigned i = 0; r == 0 && i < u.n; i++)
        r = unpack_part(&u, err);
    return r;
}
