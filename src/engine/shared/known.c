/* known: see known.h. */
#include "engine/shared/known.h"

#include "control/tables.def"

#define COLUMNS_OF(kind, table, by)                                                                          \
    static const struct pb_column columns_##table[] = {PB_COLUMNS_OF(PB_TABLE_##table)};
PB_TABLES(COLUMNS_OF)

/* A live table is read into an arena that is mostly strings. */
enum { HEAP_PERCENT_LIVE = 60, HEAP_PERCENT_ASKED = 60, HEAP_PERCENT_RECORDED = 0 };
enum { KIND_RECORDED, KIND_LIVE, KIND_ASKED };

#define KNOWN(kind, table, by)                                                                               \
    {{.name = PB_NAME_OF(PB_TABLE_##table),                                                                  \
      .comment = PB_COMMENT_OF(PB_TABLE_##table),                                                            \
      .columns = columns_##table,                                                                            \
      .ncolumns = sizeof(columns_##table) / sizeof(columns_##table[0]),                                      \
      .heap_percent = HEAP_PERCENT_##kind},                                                                  \
     KIND_##kind != KIND_RECORDED,                                                                           \
     KIND_##kind == KIND_ASKED,                                                                              \
     by},
const struct pb_known pb_known[] = {PB_TABLES(KNOWN)};
const unsigned pb_nknown = sizeof(pb_known) / sizeof(pb_known[0]);

const char *const pb_system_tables[] = {"process", "threads", "maps", "fds", "envs", "cgroup", NULL};

const struct pb_known *pb_known_find(const char *name)
{
    for (unsigned i = 0; i < pb_nknown; i++)
        if (pb_known[i].live && strcmp(pb_known[i].spec.name, name) == 0)
            return &pb_known[i];
    return NULL;
}

const char *pb_known_filled_by(const char *schema, const char *name)
{
    for (unsigned i = 0; i < pb_nknown; i++) {
        const char *full = pb_known[i].spec.name, *dot = strchr(full, '.');
        size_t n = dot ? (size_t)(dot - full) : 4;
        if (strcmp(dot ? dot + 1 : full, name) == 0 && strlen(schema) == n &&
            strncmp(dot ? full : "main", schema, n) == 0)
            return pb_known[i].filled_by;
    }
    return NULL;
}
