/* What a node of a cluster sends, what listens where a service should, a question, and the file of a cluster:
 * any bytes at all, in pieces of any size. Refused, or as the contract has it; never more kept than
 * allowed. */
#include "cluster/link/link.h"
#include "cluster/select.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 4096 };

static size_t kept(const struct pb_node_answer *a)
{
    size_t n = a->output.n + a->errors.n;

    for (size_t i = 0; i < a->nranks; i++)
        n += a->ranks[i].output.n + a->ranks[i].errors.n;
    return n;
}

static int feed(void *arg, const char *bytes, size_t n)
{
    return pb_answer_reader_take(arg, bytes, n);
}

/* The same bytes at once and in pieces are the same answer. */
static void try_answer(const char *bytes, size_t n, bool text, size_t piece)
{
    struct pb_answer_reader whole, pieces;
    int r = 0;

    pb_answer_reader_init(&whole, MOST, text);
    pb_answer_reader_init(&pieces, MOST, text);
    int once = pb_answer_reader_take(&whole, bytes, n);
    for (size_t at = 0; r == 0 && at < n; at += piece)
        r = pb_answer_reader_take(&pieces, bytes + at, n - at < piece ? n - at : piece);
    if (once != r && n)
        abort();
    if (kept(&whole.answer) > MOST || kept(&pieces.answer) != kept(&whole.answer))
        abort();
    if ((once < 0) != (whole.why[0] != '\0') || (once == 1) != whole.answer.whole)
        abort();
    pb_answer_reader_done(&whole);
    pb_answer_reader_done(&pieces);
}

static void try_http(const char *bytes, size_t n, size_t piece)
{
    struct pb_http_in h = {0};
    struct pb_answer_reader reader;

    pb_answer_reader_init(&reader, MOST, false);
    for (size_t at = 0; at < n; at += piece)
        if (pb_http_take(&h, bytes + at, n - at < piece ? n - at : piece, feed, &reader) != 0)
            break;
    pb_answer_reader_done(&reader);
}

static void try_file(const char *bytes, size_t n)
{
    struct pb_cluster c, again;
    struct pb_selection s;
    char *text, *twice;
    size_t length, second;

    if (pb_cluster_parse(bytes, n, &c, NULL) < 0)
        return;
    if (pb_cluster_format(&c, &text, &length) == 0) {
        /* What we write we read, and write again as it was. */
        if (pb_cluster_parse(text, length, &again, NULL) < 0 || again.nranks != c.nranks)
            abort();
        if (pb_cluster_format(&again, &twice, &second) == 0) {
            if (length != second || memcmp(text, twice, length) != 0)
                abort();
            free(twice);
        }
        pb_cluster_done(&again);
        free(text);
    }
    if (pb_select(&c, "0-7,pp=*", NULL, &s, NULL) == 0 || pb_select(&c, "0-9", NULL, &s, NULL) == 0)
        pb_selection_done(&s);
    pb_cluster_done(&c);
}

static int count_name(void *arg, const char *name)
{
    size_t *n = arg;

    *n += strlen(name) > 0;
    return 0;
}

static void try_texts(const char *bytes, size_t n)
{
    char text[512];
    struct pb_roles roles;
    size_t names = 0;

    n = n < sizeof(text) - 1 ? n : sizeof(text) - 1;
    memcpy(text, bytes, n);
    text[n] = '\0';
    pb_ranges_check(text);
    pb_roles_parse(text, &roles);
    pb_roles_compute(text, 1024, 77, &roles, NULL);
    pb_hostlist_each(text, count_name, &names);
    if (names > PB_CLUSTER_NODES)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pb_question_in in;
    const char *bytes = (const char *)data + 1;

    if (size < 2)
        return 0;
    size_t piece = (size_t)(data[0] >> 3) + 1, n = size - 1;
    switch (data[0] & 7) {
    case 0:
    case 1:
    case 2:
        try_answer(bytes, n, data[0] & 1, piece);
        break;
    case 3:
        try_http(bytes, n, piece);
        break;
    case 4:
        try_file(bytes, n);
        break;
    case 5:
        try_texts(bytes, n);
        break;
    default:
        if (pb_question_decode(bytes, n, &in, NULL) == 0)
            pb_question_done(&in);
    }
    return 0;
}
