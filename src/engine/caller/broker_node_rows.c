/* broker_node_rows: see broker_node_rows.h. */
#include "engine/caller/broker_node_rows.h"

#include "engine/shared/sent.h"

#include <errno.h>
#include <string.h>

static void put_string(struct pb_wire *m, const char *text)
{
    pb_wire_put_text(m, text ? text : "", text ? strlen(text) : 0);
}

void pb_broker_put_node_rows(const struct pb_sql_node_rows *nodes, struct pb_wire *m)
{
    pb_wire_put_u32(m, nodes->ntables);
    for (unsigned i = 0; i < nodes->ntables; i++) {
        put_string(m, nodes->tables[i].schema);
        put_string(m, nodes->tables[i].name);
    }
    pb_wire_put_u32(m, nodes->nown);
    for (unsigned i = 0; i < nodes->nown; i++) {
        put_string(m, nodes->own[i].schema);
        put_string(m, nodes->own[i].name);
        put_string(m, nodes->own[i].select);
    }
}

static int send_table(int fd, const struct pb_sql_sent *s, struct pb_wire *m, uint64_t deadline_ns)
{
    struct pb_sent_frame frame;
    size_t at = 0;

    pb_wire_begin(m, PB_SQL_TABLE);
    pb_wire_put_u32(m, s->table);
    put_string(m, s->node);
    pb_wire_put_u32(m, s->nranks);
    for (unsigned i = 0; i < s->nranks; i++) {
        pb_wire_put_u32(m, (uint32_t)s->ranks[i].rank);
        put_string(m, s->ranks[i].role);
    }
    int r = pb_wire_send(fd, m, deadline_ns);
    while (r == 0 && pb_sent_next(s->frames, s->size, &at, &frame) > 0) {
        if (frame.type != PB_SQL_COLUMNS && frame.type != PB_SQL_BATCH)
            continue;
        pb_wire_begin(m, frame.type);
        pb_wire_put(m, frame.data, frame.size);
        r = pb_wire_send(fd, m, deadline_ns);
    }
    return r;
}

int pb_broker_send_node_rows(int fd, const struct pb_sql_node_rows *nodes, struct pb_wire *m,
                             uint64_t deadline_ns)
{
    int r = 0;

    for (unsigned i = 0; r == 0 && i < nodes->nsent; i++)
        r = send_table(fd, &nodes->sent[i], m, deadline_ns);
    if (r == 0) {
        pb_wire_begin(m, PB_SQL_DONE);
        r = pb_wire_send(fd, m, deadline_ns);
    }
    return r == -EPIPE ? 0 : r;
}
