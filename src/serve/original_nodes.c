/* original_nodes: the nodes of a job as the tool before has them: the processes that are probed here, and
 * what its own processes elsewhere report of themselves (PUT). What is reported stands in lists alone;
 * nothing is asked of an address that somebody has sent. See original.h. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/time.h"
#include "print/records.h"
#include "serve/original.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NODES = 4096, NODE_MAX = 2048, ADDR_MAX = 255, KEPT_S = 300 };

static const char *const members[] = {
    "host", "addr",      "rank",      "local_rank",      "world_size", "group_rank", "group_world_size",
    "role", "role_name", "role_rank", "role_world_size", "status",     "timestamp"};

/* One that was reported, as JSON. */
struct node {
    char *text, *addr;
    uint64_t heard;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the three; nothing is called under it */
static struct node nodes[NODES];
static size_t nnodes;
static uint64_t version = 1;

static void drop_node(size_t i)
{
    free(nodes[i].text);
    free(nodes[i].addr);
    nodes[i] = nodes[--nnodes];
    version++;
}

static void drop_silent(uint64_t now)
{
    for (size_t i = nnodes; i-- > 0;)
        if (now - nodes[i].heard > KEPT_S * PB_NS_PER_S)
            drop_node(i);
}

/* What of a node is known, and nothing else that stands there. */
static char *copy_node(const struct pb_json *j, uint32_t node)
{
    char *text = NULL;
    size_t size = 0, length;
    FILE *out = open_memstream(&text, &size);

    for (size_t i = 0; out && i < sizeof(members) / sizeof(members[0]); i++) {
        uint32_t member = pb_json_get(j, node, members[i]);
        bool simple = member && (!j->nodes[member].kind || j->nodes[member].kind == '"');
        const char *span = simple ? pb_json_span(j, member, &length) : (length = 4, "null");
        fprintf(out, "%s\"%s\":%.*s", i ? "," : "{", members[i], (int)length, span);
    }
    if (!out || fputs("}", out) < 0 || fclose(out) != 0 || size > NODE_MAX) {
        free(text);
        return NULL;
    }
    return text;
}

/* HOST:PORT; of another form of an address no more than its letters are known. describe.c says the same. */
static bool is_addr(const char *text)
{
    static const char allowed[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._:%@[]-";

    return *text && strlen(text) <= ADDR_MAX && strspn(text, allowed) == strlen(text);
}

static int take_node(const struct pb_json *j, uint32_t node, struct pb_err *err)
{
    char addr[ADDR_MAX + 2]; /* with room for one character too many, and the end */
    uint32_t at = pb_json_get(j, node, "addr");
    size_t i = 0;

    if (!at || j->nodes[at].kind != '"' || pb_json_text(j, at, addr, sizeof(addr)) <= 0)
        return pb_fail(err, -EBADMSG, "a node has no addr");
    if (!is_addr(addr))
        return pb_fail(err, -EBADMSG, "the addr of a node is HOST:PORT in %d characters, not '%.100s'",
                       (int)ADDR_MAX, addr);
    struct node new = {.text = copy_node(j, node), .addr = strdup(addr), .heard = pb_now_ns()};
    if (!new.text || !new.addr) {
        free(new.text);
        free(new.addr);
        return pb_fail(err, -EBADMSG, "a node is longer than %d bytes", (int)NODE_MAX);
    }
    pthread_mutex_lock(&lock);
    while (i < nnodes && strcmp(nodes[i].addr, addr) != 0)
        i++;
    int r = i == NODES ? -EBADMSG : 0;
    if (r == 0 && i < nnodes) {
        struct node old = nodes[i];
        version += strcmp(old.text, new.text) != 0;
        nodes[i] = new;
        new = old;
    } else if (r == 0) {
        nodes[nnodes++] = new;
        new = (struct node){0};
        version++;
    }
    pthread_mutex_unlock(&lock);
    free(new.text);
    free(new.addr);
    return r == 0 ? 0 : pb_fail(err, r, "there are %d nodes already", (int)NODES);
}

int pb_original_report(const char *body, size_t length, struct pb_err *err)
{
    _cleanup_(pb_json_done) struct pb_json j = {0};

    if (pb_json_parse(body, length, &j) < 0 || j.nodes[1].kind != '{')
        return pb_fail(err, -EBADMSG, "the body is no node: {\"host\", \"addr\", \"rank\", ...}");
    uint32_t list = pb_json_get(&j, 1, "nodes");
    if (!list)
        return take_node(&j, 1, err);
    if (j.nodes[list].kind != '[')
        return pb_fail(err, -EBADMSG, "nodes is no list");
    int r = 0;
    for (uint32_t node = j.nodes[list].child; r == 0 && node; node = j.nodes[node].next)
        r = j.nodes[node].kind == '{' ? take_node(&j, node, err)
                                      : pb_fail(err, -EBADMSG, "a node is no object");
    return r;
}

/* --- answers --- */

struct part {
    FILE *out;
    size_t n, offset, limit; /* n: how many there are so far */
};

/* Whether the next one belongs into the answer, with what stands between. */
static bool begin_node(struct part *p)
{
    size_t i = p->n++;
    bool wanted = i >= p->offset && i - p->offset < p->limit;

    if (wanted && i > p->offset)
        putc(',', p->out);
    return wanted;
}

/* A process of this node; its address here is its pid, as a text. */
static void put_process(struct part *p, const struct pb_json *j, uint32_t row, const char *host)
{
    uint32_t number = pb_json_get(j, row, "rank");
    struct timespec now;
    char rank[32], pid[32];

    bool ranked = number && pb_json_text(j, number, rank, sizeof(rank)) > 0 &&
                  strspn(rank, "0123456789") == strlen(rank);
    if (pb_json_text(j, pb_json_get(j, row, "pid"), pid, sizeof(pid)) < 0 || !begin_node(p))
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    fputs("{\"host\":", p->out);
    pb_put_json(p->out, host, strlen(host));
    fputs(",\"addr\":", p->out);
    pb_put_json(p->out, pid, strlen(pid));
    fprintf(p->out, ",\"rank\":%s", ranked ? rank : "null");
    for (size_t i = 3; i < 11; i++)
        fprintf(p->out, ",\"%s\":null", members[i]);
    fprintf(p->out, ",\"status\":\"running\",\"timestamp\":%" PRId64 "}",
            (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000);
}

/* How many there are. */
static size_t put_nodes(FILE *out, const char *printed, size_t length, size_t offset, size_t limit)
{
    _cleanup_(pb_json_done) struct pb_json j = {0};
    struct part p = {.out = out, .offset = offset, .limit = limit};
    char host[128] = "";

    gethostname(host, sizeof(host) - 1);
    uint32_t row = pb_json_parse(printed, length, &j) < 0 ? 0 : j.nodes[1].child;
    for (; row; row = j.nodes[row].next) {
        uint32_t state = pb_json_get(&j, row, "state");
        if (state && pb_json_is(&j, state, "probed"))
            put_process(&p, &j, row, host);
    }
    pthread_mutex_lock(&lock);
    drop_silent(pb_now_ns());
    for (size_t i = 0; i < nnodes; i++)
        if (begin_node(&p))
            fputs(nodes[i].text, out);
    pthread_mutex_unlock(&lock);
    return p.n;
}

static uint64_t current_version(void)
{
    pthread_mutex_lock(&lock);
    uint64_t v = version;
    pthread_mutex_unlock(&lock);
    return v;
}

/* chosen: OFFSET,LIMIT,SINCE_VERSION. Clients before those asked for none of them, and got the list alone. */
bool pb_original_nodes(const char *printed, size_t length, const char *chosen, FILE *out)
{
    const char *comma = chosen ? strchr(chosen, ',') : NULL;
    size_t offset = chosen ? strtoul(chosen, NULL, 10) : 0,
           limit = comma && comma[1] >= '0' && comma[1] <= '9' ? strtoul(comma + 1, NULL, 10) : SIZE_MAX;

    if (chosen)
        fprintf(out, "{\"version\":%" PRIu64 ",\"offset\":%zu,\"nodes\":", current_version(), offset);
    putc('[', out);
    size_t n = put_nodes(out, printed, length, offset, limit);
    putc(']', out);
    if (chosen)
        fprintf(out, ",\"total\":%zu}", n);
    putc('\n', out);
    return true;
}

bool pb_original_reported(const char *printed, size_t length, const char *chosen, FILE *out)
{
    (void)chosen;
    fprintf(out, "{\"ok\":true,\"version\":%" PRIu64 ",\"nodes\":[", current_version());
    put_nodes(out, printed, length, 0, SIZE_MAX);
    fputs("],\"removed\":[]}\n", out);
    return true;
}
