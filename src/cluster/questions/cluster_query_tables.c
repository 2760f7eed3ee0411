/* cluster_query_tables: see cluster_query_tables.h. */
#include "cluster/questions/cluster_query_tables.h"

#include "engine/shared/sql_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* A list of rows as a statement: the columns with their types first, so that there may be no row at all. */
struct list {
    FILE *out;
    char *text;
    size_t size;
};

static FILE *begin_list(struct list *l, const char *columns)
{
    *l = (struct list){0};
    l->out = open_memstream(&l->text, &l->size);
    if (l->out)
        fprintf(l->out, "SELECT * FROM (VALUES (%s)", columns);
    return l->out;
}

static char *end_list(struct list *l, const char *names)
{
    /* The first row has the types alone. */
    fprintf(l->out, ") t(head, %s) WHERE NOT head", names);
    if (fclose(l->out) == 0)
        return l->text;
    free(l->text);
    return NULL;
}

static char *without_head(char *inner)
{
    char *text;

    if (!inner || asprintf(&text, "SELECT * EXCLUDE (head) FROM (%s)", inner) < 0)
        text = NULL;
    free(inner);
    return text;
}

static void put_text(FILE *out, const char *text)
{
    fputs(", ", out);
    if (text[0])
        pb_put_quoted(out, text, '\'');
    else
        fputs("NULL", out);
}

char *pb_cluster_nodes_select(const struct pb_cluster *c, const struct pb_cluster_result *r)
{
    struct list l;
    FILE *out = begin_list(&l, "true, '', '', '', ''::VARCHAR, 0::INTEGER, 0::INTEGER, 0::BIGINT, ''");

    if (!out)
        return NULL;
    for (size_t i = 0; i < c->nnodes; i++) {
        size_t nranks = 0;
        for (size_t k = 0; k < c->nranks; k++)
            nranks += c->ranks[k].node == i;
        fputs(", (false", out);
        put_text(out, c->nodes[i].name);
        put_text(out, c->nodes[i].address);
        put_text(out, i < r->nnodes ? pb_node_state_name(r->nodes[i].state) : "");
        put_text(out, c->nodes[i].version);
        fprintf(out, ", %zu, %u, %zu", nranks, i < r->nnodes ? r->nodes[i].ms : 0,
                i < r->nnodes ? r->nodes[i].bytes : 0);
        put_text(out, i < r->nnodes ? r->nodes[i].why : "");
        fputc(')', out);
    }
    return without_head(end_list(&l, "node, address, state, version, ranks, ms, bytes, why"));
}

char *pb_cluster_ranks_select(const struct pb_cluster *c)
{
    struct list l;
    FILE *out = begin_list(&l, "true, 0::INTEGER, '', ''::VARCHAR, 0::INTEGER, 0::INTEGER");

    if (!out)
        return NULL;
    for (size_t i = 0; i < c->nranks; i++) {
        const struct pb_cluster_rank *r = &c->ranks[i];
        char roles[PB_ROLES_TEXT];
        pb_roles_format(&r->roles, roles);
        fprintf(out, ", (false, %d", (int)r->rank);
        put_text(out, r->node < c->nnodes ? c->nodes[r->node].name : "");
        put_text(out, roles);
        if (r->local >= 0)
            fprintf(out, ", %d", (int)r->local);
        else
            fputs(", NULL", out);
        fprintf(out, ", %d)", (int)r->pid);
    }
    return without_head(end_list(&l, "rank, node, role, local_rank, target_pid"));
}

char *pb_cluster_clocks_select(const struct pb_cluster *c)
{
    struct list l;
    FILE *out = begin_list(&l, "true, '', 0::DOUBLE, 0::DOUBLE, make_timestamp(0)");

    if (!out)
        return NULL;
    for (size_t i = 0; i < c->nnodes; i++) {
        const struct pb_cluster_clock *clock = &c->nodes[i].clock;
        if (!clock->known)
            continue;
        fputs(", (false", out);
        put_text(out, c->nodes[i].name);
        fprintf(out, ", %" PRId64 "::DOUBLE / 1000, %" PRId64 "::DOUBLE / 1000, make_timestamp(%" PRId64 "))",
                clock->offset_ns, clock->error_ns, clock->at_ns / 1000);
    }
    return without_head(end_list(&l, "node, offset_us, error_us, measured"));
}
