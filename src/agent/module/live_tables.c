/* live_tables: see live_tables.h. */
#define PROBING_AGENT
#include "agent/module/live_tables.h"

#include "agent/core/fork_gate.h"
#include "agent/core/recorder.h"
#include "agent/core/spawn.h"
#include "control/tables.def"
#include "table/arena.h"
#include "table/clock.h"
#include "table/names.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <probing.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define SYMBOL     "probing_lives_1"
#define LIBRARIES  64
#define TABLES     256 /* of one library; a longer list is circular */
#define MOST_ROWS  100000u
#define MOST_BYTES (32u << 20)

/* --- telling --------------------------------------------------------------------------------------- */

static const struct pb_column registered_columns[] = {PB_COLUMNS_OF(PB_TABLE_REGISTERED)};

static void add_row(const char *name, const char *kind, const char *function, int active)
{
    static struct pb_known_table known;
    static const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_REGISTERED),
                                              .comment = PB_COMMENT_OF(PB_TABLE_REGISTERED),
                                              .columns = registered_columns,
                                              .ncolumns =
                                                  sizeof(registered_columns) / sizeof(registered_columns[0])};
    const char *const texts[] = {name, kind, function};
    struct pb_row row;
    uint32_t place;

    struct pb_arena *arena = pb_recorder_enter(&place);
    if (!arena)
        return;
    struct pb_table *table = pb_recorder_table(arena, &spec, &known);
    if (table && pb_row_begin(table, &row) == 0) {
        for (unsigned i = 0; i < 3; i++)
            if (texts[i])
                pb_set_string(&row, 1 + i, texts[i], strlen(texts[i]));
        pb_set_bool(&row, 4, active != 0);
        pb_row_commit(&row);
    }
    pb_recorder_leave(place);
}

/* The tables that Python reported, for the next agent: entries are written once, and found by name after
 * that. */
#define REGISTERED_MAX 64
enum { FREE, WRITING, READY };
static struct {
    int state, active;
    char name[2 * PB_NAME_SIZE], kind[32], function[128];
} listed[REGISTERED_MAX];

static void keep_registered(const char *name, const char *kind, const char *function, int active)
{
    for (int i = 0; i < REGISTERED_MAX; i++) {
        int expected = FREE;
        if (__atomic_load_n(&listed[i].state, __ATOMIC_ACQUIRE) == READY &&
            strcmp(listed[i].name, name) == 0) {
            __atomic_store_n(&listed[i].active, active, __ATOMIC_RELAXED);
            return;
        }
        if (!__atomic_compare_exchange_n(&listed[i].state, &expected, WRITING, 0, __ATOMIC_ACQUIRE,
                                         __ATOMIC_RELAXED))
            continue;
        snprintf(listed[i].name, sizeof(listed[i].name), "%s", name);
        snprintf(listed[i].kind, sizeof(listed[i].kind), "%s", kind);
        snprintf(listed[i].function, sizeof(listed[i].function), "%s", function);
        listed[i].active = active;
        __atomic_store_n(&listed[i].state, READY, __ATOMIC_RELEASE);
        return;
    }
}

void pb_live_tell(const char *name, const char *kind, const char *function, int active)
{
    keep_registered(name, kind, function, active);
    add_row(name, kind, function, active);
}

int pb_live_python(void)
{
    return __atomic_load_n(&listed[0].state, __ATOMIC_ACQUIRE) != FREE;
}

__attribute__((visibility("default"))) void probing_register_1(struct probing_live *t);

void probing_register_1(struct probing_live *t)
{
    if (t->name && pb_name_is_table(t->name))
        add_row(t->name, t->kind, t->function, __atomic_load_n(&t->active, __ATOMIC_SEQ_CST));
}

/* --- the libraries that have tables ---------------------------------------------------------------- */

struct library {
    char path[512]; /* "": the program itself */
    struct probing_live **head;
};

struct libraries {
    struct library at[LIBRARIES];
    unsigned n;
};

static uint32_t gnu_hash(const char *name)
{
    uint32_t h = 5381;

    for (; *name; name++)
        h = h * 33 + (unsigned char)*name;
    return h;
}

/* The symbol's value in one object, by its hash table; 0: not found. */
static ElfW(Addr) find_symbol(const uint32_t *hash, const ElfW(Sym) * symbols, const char *strings)
{
    uint32_t wanted = gnu_hash(SYMBOL), nbuckets = hash[0], first = hash[1], words = hash[2];
    const uint32_t *buckets = hash + 4 + words * (sizeof(ElfW(Addr)) / 4), *chain = buckets + nbuckets;

    uint32_t i = nbuckets ? buckets[wanted % nbuckets] : 0;
    if (i < first || !i)
        return 0;
    for (;; i++) {
        uint32_t h = chain[i - first];
        if ((h | 1) == (wanted | 1) && symbols[i].st_shndx != SHN_UNDEF &&
            strcmp(strings + symbols[i].st_name, SYMBOL) == 0)
            return symbols[i].st_value;
        if (h & 1)
            return 0;
    }
}

/* Addresses in the dynamic section are relocated by glibc and not by musl. */
static const void *relocated(const struct dl_phdr_info *info, ElfW(Addr) address)
{
    return (const void *)(address < info->dlpi_addr ? address + info->dlpi_addr : address);
}

/* Only the object's own memory is read here: the loader's lock is held. */
static int remember_library(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct libraries *found = arg;
    const ElfW(Dyn) *dynamic = NULL;
    const void *hash = NULL, *symbols = NULL, *strings = NULL;
    (void)size;

    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        const void **to = dynamic->d_tag == DT_GNU_HASH ? &hash
                          : dynamic->d_tag == DT_SYMTAB ? &symbols
                          : dynamic->d_tag == DT_STRTAB ? &strings
                                                        : NULL;
        if (to)
            *to = relocated(info, dynamic->d_un.d_ptr);
    }
    ElfW(Addr) at = hash && symbols && strings ? find_symbol(hash, symbols, strings) : 0;
    if (at && found->n < LIBRARIES && strlen(info->dlpi_name) < sizeof(found->at[0].path)) {
        struct library *l = &found->at[found->n++];
        snprintf(l->path, sizeof(l->path), "%s", info->dlpi_name);
        l->head = (struct probing_live **)(info->dlpi_addr + at);
    }
    return 0;
}

/* Calls `look` for each C table while its library cannot be unloaded. */
static void for_each_table(void (*look)(struct probing_live *table, void *arg), void *arg)
{
    struct libraries found;

    found.n = 0;
    pb_fork_gate_each_object(remember_library, &found);
    for (unsigned i = 0; i < found.n; i++) {
        const struct library *l = &found.at[i];
        void *held = dlopen(l->path[0] ? l->path : NULL, RTLD_LAZY | RTLD_NOLOAD);
        if (!held)
            continue;
        if (dlsym(held, SYMBOL) == (void *)l->head) { /* else it was closed, and another opened */
            struct probing_live *t = __atomic_load_n(l->head, __ATOMIC_SEQ_CST);
            for (int n = 0; t && n < TABLES; n++, t = t->next)
                if (__atomic_load_n(&t->active, __ATOMIC_SEQ_CST) && t->name && pb_name_is_table(t->name))
                    look(t, arg);
        }
        dlclose(held);
    }
}

static void tell_one(struct probing_live *t, void *unused)
{
    (void)unused;
    add_row(t->name, t->kind, t->function, 1);
}

static void *tell_all(void *unused)
{
    (void)unused;
    for (int i = 0; i < REGISTERED_MAX; i++)
        if (__atomic_load_n(&listed[i].state, __ATOMIC_ACQUIRE) == READY &&
            __atomic_load_n(&listed[i].active, __ATOMIC_RELAXED))
            add_row(listed[i].name, listed[i].kind, listed[i].function, 1);
    for_each_table(tell_one, NULL);
    return NULL;
}

void pb_live_begin(void)
{
    pb_spawn(tell_all, NULL, NULL);
}

/* --- an answer ------------------------------------------------------------------------------------- */

/* The rows of one table, as probing_row adds to them. */
struct live_rows {
    struct probing_rows base; /* first: the function gets a pointer to it */
    struct pb_live_answer *to;
    const struct probing_live *table;
    size_t bytes, used;
    unsigned n;
    int over; /* the client is gone */
    char why[200];
    char buffer[8192];
};

static void flush(struct live_rows *r)
{
    if (r->used && !r->over)
        r->over = !r->to->put(r->to, r->buffer, r->used);
    r->used = 0;
}

static void put_text(struct live_rows *r, const char *text, size_t size)
{
    r->bytes += size;
    while (size) {
        size_t room = sizeof(r->buffer) - r->used, n = size < room ? size : room;
        memcpy(r->buffer + r->used, text, n);
        r->used += n;
        text += n;
        size -= n;
        if (r->used == sizeof(r->buffer))
            flush(r);
    }
}

static void put_string(struct live_rows *r, const char *text)
{
    put_text(r, text, strlen(text));
}

static void put_escaped(struct live_rows *r, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        const char *as = text[i] == '\\'   ? "\\\\"
                         : text[i] == '\t' ? "\\t"
                         : text[i] == '\n' ? "\\n"
                         : text[i] == '\0' ? "\\0"
                                           : NULL;
        if (as)
            put_text(r, as, 2);
        else
            put_text(r, text + i, 1);
    }
}

static void put_hex(struct live_rows *r, const char *data, size_t size)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)data[i];
        const char two[] = {digits[c >> 4], digits[c & 15]};
        put_text(r, two, 2);
    }
}

static int is_float(enum probing_type type)
{
    return type == PROBING_FLOAT32 || type == PROBING_FLOAT64;
}

/* Whether an integer fits the type. */
static int fits_type(enum probing_type type, int64_t i)
{
    static const struct {
        int64_t least, most;
    } range[] = {
        [PROBING_INT8] = {INT8_MIN, INT8_MAX},
        [PROBING_INT16] = {INT16_MIN, INT16_MAX},
        [PROBING_INT32] = {INT32_MIN, INT32_MAX},
        [PROBING_INT64] = {INT64_MIN, INT64_MAX},
        [PROBING_UINT8] = {0, UINT8_MAX},
        [PROBING_UINT16] = {0, UINT16_MAX},
        [PROBING_UINT32] = {0, UINT32_MAX},
        [PROBING_UINT64] = {INT64_MIN, INT64_MAX},
        [PROBING_BOOL] = {0, 1},
        [PROBING_TIMESTAMP] = {INT64_MIN, INT64_MAX},
    };
    return (size_t)type < sizeof(range) / sizeof(range[0]) && !is_float(type) && i >= range[type].least &&
           i <= range[type].most;
}

/* The offset from CLOCK_MONOTONIC to the time since 1970. */
static uint64_t epoch_of_mono(void)
{
    int64_t mono, real;

    pb_clock_both(&mono, &real);
    return (uint64_t)real - (uint64_t)mono;
}

/* Floats are sent as their bits: printf depends on the program's locale. */
static int put_cell(struct live_rows *r, enum probing_type type, const struct probing_value *v)
{
    char text[32];
    uint64_t bits;

    if (v->kind == PROBING_KIND_NULL) {
        put_string(r, "\\N");
    } else if (is_float(type) && (v->kind == PROBING_KIND_FLOAT || v->kind == PROBING_KIND_INT)) {
        double d = v->kind == PROBING_KIND_INT ? (double)v->i : v->f;
        memcpy(&bits, &d, sizeof(bits));
        snprintf(text, sizeof(text), "x%016llx", (unsigned long long)bits);
        put_string(r, text);
    } else if (v->kind == PROBING_KIND_INT && fits_type(type, v->i)) {
        uint64_t i = (uint64_t)v->i + (type == PROBING_TIMESTAMP ? epoch_of_mono() : 0);
        if (type == PROBING_UINT64)
            snprintf(text, sizeof(text), "%llu", (unsigned long long)i);
        else
            snprintf(text, sizeof(text), "%lld", (long long)i);
        put_string(r, text);
    } else if (v->kind == PROBING_KIND_TEXT && v->text && type == PROBING_STRING) {
        put_escaped(r, v->text, v->length);
    } else if (v->kind == PROBING_KIND_TEXT && v->text && type == PROBING_BYTES) {
        put_hex(r, v->text, v->length);
    } else {
        return -EINVAL;
    }
    return 0;
}

static int add(struct probing_rows *base, const struct probing_value *values)
{
    struct live_rows *r = (struct live_rows *)(void *)base;
    const struct probing_live *t = r->table;

    if (r->over)
        return -ECANCELED;
    if (r->n == MOST_ROWS || r->bytes > MOST_BYTES) {
        snprintf(r->why, sizeof(r->why), "gave more than %u rows, or %u MB", MOST_ROWS, MOST_BYTES >> 20);
        return -E2BIG;
    }
    r->n++;
    put_string(r, "R");
    for (unsigned i = 0; i < t->ncolumns; i++) {
        put_string(r, "\t");
        if (put_cell(r, t->columns[i].type, &values[i]) < 0 && !r->why[0])
            snprintf(r->why, sizeof(r->why), "gave a value that does not fit column %s in row %u",
                     t->columns[i].name, r->n);
    }
    put_string(r, "\n");
    return r->over ? -ECANCELED : r->why[0] ? -EINVAL : 0;
}

static int fail(struct probing_rows *base, const char *text)
{
    struct live_rows *r = (struct live_rows *)(void *)base;

    if (!r->why[0])
        snprintf(r->why, sizeof(r->why), "failed: %s", text);
    return -EIO;
}

static int put_columns(struct live_rows *r)
{
    const struct probing_live *t = r->table;
    char line[160];

    snprintf(line, sizeof(line), "T\t%s\n", t->name);
    put_string(r, line);
    for (unsigned i = 0; i < t->ncolumns; i++) {
        const struct probing_column *c = &t->columns[i];
        if (!c->name || !pb_name_is_column(c->name) || c->type < PROBING_INT8 || c->type > PROBING_BYTES)
            return -EINVAL;
        snprintf(line, sizeof(line), "C\t%s\t%d\n", c->name, (int)c->type);
        put_string(r, line);
    }
    return t->ncolumns > 0 && t->ncolumns <= PB_MAX_COLUMNS ? 0 : -EINVAL;
}

/* Only one query at a time may be in a function. The mark is the pid: a forked child ignores its parent's. */
static bool claim_table(struct probing_live *t)
{
    int us = (int)getpid(), was = __atomic_load_n(&t->busy, __ATOMIC_SEQ_CST);

    return was != us &&
           __atomic_compare_exchange_n(&t->busy, &was, us, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static int call(struct live_rows *r, struct probing_live *t)
{
    int error = 0;

    if (!claim_table(t)) {
        snprintf(r->why, sizeof(r->why), "is still busy with an earlier query");
        return -EBUSY;
    }
    if (__atomic_load_n(&t->active, __ATOMIC_SEQ_CST)) {
        r->to->inside(r->to, t->name, t->function);
        error = t->rows(&r->base, t->arg);
        r->to->inside(r->to, NULL, NULL);
    }
    __atomic_store_n(&t->busy, 0, __ATOMIC_SEQ_CST);
    return error;
}

struct sending {
    struct pb_live_answer *to;
    const char *name;
    size_t length;
};

/* The request names a table, or with a dot before the name one of any schema. */
static bool is_wanted(const struct sending *s, const char *name)
{
    const char *dot = strchr(name, '.'), *last = dot ? dot + 1 : name;
    bool any = s->length && s->name[0] == '.';
    const char *wanted = s->name + any, *given = any ? last : name;

    return strlen(given) == s->length - any && strncasecmp(given, wanted, s->length - any) == 0;
}

static void send_one(struct probing_live *t, void *arg)
{
    const struct sending *s = arg;
    struct live_rows r = {.base = {add, fail}, .to = s->to, .table = t};
    char line[256];

    if (!is_wanted(s, t->name))
        return;
    int error = put_columns(&r);
    if (error < 0)
        snprintf(r.why, sizeof(r.why), "has a column whose name or type is not allowed");
    else
        error = call(&r, t);
    if (error < 0 && !r.why[0])
        snprintf(r.why, sizeof(r.why), "returned %d: %s", error, strerror(-error));
    if (r.why[0]) {
        snprintf(line, sizeof(line), "E\t%s\tthe function %s ", t->name, t->function ? t->function : "?");
        put_string(&r, line);
        put_escaped(&r, r.why, strlen(r.why));
        put_string(&r, "\n");
    }
    flush(&r);
}

void pb_live_send(struct pb_live_answer *to, const char *name, size_t length)
{
    struct sending s = {to, name, length};

    for_each_table(send_one, &s);
}
