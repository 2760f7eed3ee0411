/* write_folded: folded stacks, "outer;inner N" a line: what every flame graph tool reads; and reading them
 * back.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "profile/write.h"

#define LABEL_SIZE 1024
#define LINE_MAX   (8 << 20)
#define FRAMES_MAX 20000

/* A frame's label, without the characters that separate frames. */
static void put_label(FILE *out, const struct pb_flame *f, const struct pb_flame_node *node)
{
    char label[LABEL_SIZE];

    pb_profile_label(f->names, node->function, label, sizeof(label));
    if (node->line) {
        size_t len = strlen(label);
        bool closed = len && label[len - 1] == ')';
        if (closed)
            label[len - 1] = '\0';
        snprintf(label + strlen(label), sizeof(label) - strlen(label), ":%d%s", node->line,
                 closed ? ")" : "");
    }
    for (char *c = label; *c; c++)
        putc(*c == ';' ? ':' : *c, out);
}

int pb_write_folded(FILE *out, const struct pb_flame *f, bool two)
{
    _cleanup_free_ uint32_t *path = malloc((f->depth + 1) * sizeof(*path));

    if (!path)
        return -ENOMEM;
    for (size_t i = 1; i < f->n; i++) {
        const struct pb_flame_node *node = &f->at[i];
        size_t n = 0;
        if (!node->self[0] && !node->self[1])
            continue;
        for (uint32_t at = (uint32_t)i; at; at = f->at[at].parent)
            path[n++] = at;
        while (n-- > 0) {
            put_label(out, f, &f->at[path[n]]);
            putc(n ? ';' : ' ', out);
        }
        fprintf(out, "%llu", (unsigned long long)node->self[0]);
        if (two)
            fprintf(out, " %llu", (unsigned long long)node->self[1]);
        putc('\n', out);
    }
    return ferror(out) ? -EIO : 0;
}

/* Splits "name (file)" into a function; other labels stay whole. */
static uint32_t function_of(struct pb_profile *p, char *label)
{
    size_t len = strlen(label);
    char *open = len && label[len - 1] == ')' ? strrchr(label, '(') : NULL;
    const char *file = "";

    if (label[0] == '[')
        return pb_profile_function(p, PB_FRAME_WAIT, label, "");
    if (open && open > label && open[-1] == ' ') {
        label[len - 1] = open[-1] = '\0';
        file = open + 1;
    }
    bool python = !*file || *file == '<' || strstr(file, ".py");
    return pb_profile_function(p, python ? PB_FRAME_PYTHON : PB_FRAME_NATIVE, label, file);
}

static int read_line(struct pb_profile *p, uint32_t thread, char *line)
{
    uint32_t node = PB_PROFILE_ROOT;
    char *space = strrchr(line, ' '), *end, *rest = line;
    unsigned frames = 0;

    if (!space || !isdigit((unsigned char)space[1]))
        return -EBADMSG;
    unsigned long n = strtoul(space + 1, &end, 10);
    if (*end || n > UINT32_MAX)
        return -EBADMSG;
    *space = '\0';
    for (char *label; (label = strsep(&rest, ";"));) {
        uint32_t frame =
            ++frames > FRAMES_MAX ? PB_PROFILE_NONE : pb_profile_frame(p, function_of(p, label), 0);
        node = pb_profile_node(p, node, frame);
        if (node == PB_PROFILE_NONE)
            return -ENOSPC;
    }
    return n ? pb_profile_add(p, thread, node, 0, 0, (uint32_t)n) : 0;
}

int pb_read_folded(FILE *in, struct pb_profile *p, struct pb_err *err)
{
    _cleanup_free_ char *line = NULL;
    size_t cap = 0;
    uint32_t thread = pb_profile_thread(p, 0, 0, "", "");

    pb_profile_mark_ran(p, thread);
    for (unsigned number = 1;; number++) {
        ssize_t len = getline(&line, &cap, in);
        if (len < 0)
            return ferror(in) ? -EIO : 0;
        line[strcspn(line, "\r\n")] = '\0';
        if (!*line || *line == '#')
            continue;
        int r = len > LINE_MAX ? -EBADMSG : read_line(p, thread, line);
        if (r == -EBADMSG)
            return pb_fail(err, r, "line %u is no folded stack (it is \"a;b;c N\")", number);
        if (r < 0)
            return pb_fail(err, r, "line %u: the profile is too large", number);
    }
}
