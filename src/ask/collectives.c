/* collectives: see collectives.h. */
#include "ask/collectives.h"

#include "ask/waits.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "remote/flight_recorder.h"
#include "remote/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_STATUS 4096

/* --- reading a rank -------------------------------------------------------------------------------- */

struct collectives_reading {
    struct pb_flight flight;
    struct pb_flight_head head;
    bool gpu;
    int64_t now;
    struct pb_collective_rank *to;
    size_t before;                   /* groups of the recorder that was read first */
    uint64_t *ids;                   /* of the groups */
    struct pb_flight_entry *entries; /* PB_COLLECTIVE_RECENT of each group, a ring */
    size_t *seen;
};

static struct pb_collective_group *find_group(struct collectives_reading *r, const struct pb_flight_entry *e,
                                              size_t first)
{
    for (size_t i = first; i < r->to->ngroups; i++)
        if (r->ids[i] == e->group_id)
            return &r->to->groups[i];
    if (r->to->ngroups == PB_COLLECTIVE_GROUPS)
        return NULL;
    struct pb_collective_group *g = &r->to->groups[r->to->ngroups];
    r->ids[r->to->ngroups++] = e->group_id;
    g->gpu = r->gpu;
    g->issued = g->started = g->over = -1;
    pb_flight_text(&r->flight, e->group, e->group_length, g->name, sizeof(g->name));
    pb_flight_text(&r->flight, e->description, e->description_length, g->description, sizeof(g->description));
    pb_flight_ranks(&r->flight, &r->head, g->name, g->ranks, sizeof(g->ranks));
    return g;
}

static void take_operation(const struct collectives_reading *r, const struct pb_flight_entry *e,
                           const struct pb_flight_group *reached, struct pb_collective *ret)
{
    char name[64];

    pb_flight_text(&r->flight, e->name, e->name_length, name, sizeof(name));
    const char *colon = strchr(name, ':');
    snprintf(ret->op, sizeof(ret->op), "%.47s", colon ? colon + 1 : name);
    pb_flight_sizes(&r->flight, e, 0, ret->sizes, sizeof(ret->sizes));
    pb_flight_types(&r->flight, e, 0, ret->types, sizeof(ret->types));
    ret->number = e->sequence;
    ret->is_over = r->gpu ? e->completed != 0 : e->retired != 0;
    ret->has_started = ret->is_over || pb_flight_state_of(e, reached) != PB_FLIGHT_SCHEDULED;
    ret->seconds = r->now > e->created ? (double)(r->now - e->created) / 1e9 : 0;
    ret->timeout_s = (double)e->timeout_ms / 1e3;
}

static void take_groups(struct collectives_reading *r, size_t first)
{
    struct pb_flight_group *reached = calloc(MOST_STATUS, sizeof(*reached));
    size_t n = reached ? pb_flight_groups(&r->flight, &r->head, reached, MOST_STATUS) : 0;

    for (size_t i = first; i < r->to->ngroups; i++) {
        struct pb_collective_group *g = &r->to->groups[i];
        const struct pb_flight_group *of = NULL;
        for (size_t k = 0; k < n; k++)
            if (reached[k].id == r->ids[i])
                of = &reached[k];
        if (of) {
            g->issued = of->enqueued;
            g->started = of->started;
            g->over = of->completed;
        }
        size_t count = r->seen[i] < PB_COLLECTIVE_RECENT ? r->seen[i] : PB_COLLECTIVE_RECENT;
        for (size_t k = r->seen[i] - count; k < r->seen[i]; k++)
            take_operation(r, &r->entries[i * PB_COLLECTIVE_RECENT + k % PB_COLLECTIVE_RECENT], of,
                           &g->recent[g->nrecent++]);
    }
    free(reached);
}

static void take_entry(void *arg, const struct pb_flight_entry *e)
{
    struct collectives_reading *r = arg;
    struct pb_collective_group *g = e->created && !e->is_p2p ? find_group(r, e, r->before) : NULL;
    size_t at = g ? (size_t)(g - r->to->groups) : 0;

    if (g)
        r->entries[at * PB_COLLECTIVE_RECENT + r->seen[at]++ % PB_COLLECTIVE_RECENT] = *e;
}

static int read_recorder(struct collectives_reading *r)
{
    r->before = r->to->ngroups;
    int e = pb_recorder_each(&r->flight, &r->head, take_entry, r);
    if (e == 0)
        take_groups(r, r->before);
    return e;
}

int pb_collectives_take(struct pb_source *source, struct pb_collective_rank *to)
{
    _cleanup_free_ uint64_t *ids = calloc(PB_COLLECTIVE_GROUPS, sizeof(*ids));
    _cleanup_free_ size_t *seen = calloc(PB_COLLECTIVE_GROUPS, sizeof(*seen));
    _cleanup_free_ struct pb_flight_entry *entries =
        calloc((size_t)PB_COLLECTIVE_GROUPS * PB_COLLECTIVE_RECENT, sizeof(*entries));
    struct pb_err err;
    struct timespec now;
    int r, found = -ENOENT;

    to->groups = calloc(PB_COLLECTIVE_GROUPS, sizeof(*to->groups));
    if (!ids || !seen || !entries || !to->groups)
        return -ENOMEM;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int gpu = 0; gpu < 2; gpu++) {
        struct collectives_reading reading = {.gpu = gpu != 0,
                                              .now = now.tv_sec * INT64_C(1000000000) + now.tv_nsec,
                                              .to = to,
                                              .ids = ids,
                                              .seen = seen,
                                              .entries = entries};
        r = pb_recorder_find(source, gpu != 0, &reading.flight, &err);
        if (r == 0)
            r = pb_flight_look(&reading.flight, &reading.head);
        if (r == 0)
            r = read_recorder(&reading);
        if (r == 0 || (r != -ENOENT && r != -ENODATA && found != 0))
            found = r;
    }
    return found;
}

void pb_collectives_done(struct pb_collective_rank *ranks, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(ranks[i].groups);
}

/* --- what holds up a group ------------------------------------------------------------------------- */

/* A group with the view of each of its ranks; NULL: not in it. */
struct judged {
    const struct pb_collective_group **of; /* by index of the rank */
    bool *waits, *others;
    struct pb_stall stall;
};

static const struct pb_collective_group *same_group(const struct pb_collective_rank *rank,
                                                    const struct pb_collective_group *as)
{
    for (size_t i = 0; i < rank->ngroups; i++) {
        const struct pb_collective_group *g = &rank->groups[i];
        if (g->gpu == as->gpu && strcmp(g->name, as->name) == 0 && strcmp(g->ranks, as->ranks) == 0)
            return g;
    }
    return NULL;
}

/* Whether the rank is in the group though it has issued nothing there. */
static bool is_member(const struct pb_collective_group *g, int rank)
{
    char *end;

    if (!g->ranks[0]) /* known of NCCL's only; the first one is that of all ranks */
        return strcmp(g->description, "default_pg") == 0;
    for (const char *at = g->ranks; *at; at = *end == ',' ? end + 1 : end) {
        if (strtol(at, &end, 10) == rank && end != at)
            return true;
        if (end == at)
            break;
    }
    return false;
}

static const struct pb_collective *by_number(const struct pb_collective_group *g, uint64_t number)
{
    for (size_t i = 0; g && i < g->nrecent; i++)
        if (g->recent[i].number == number)
            return &g->recent[i];
    return NULL;
}

static const struct pb_collective *first_open(const struct pb_collective_group *g)
{
    for (size_t i = 0; g && i < g->nrecent; i++)
        if (!g->recent[i].is_over)
            return &g->recent[i];
    return NULL;
}

/* Whether one rank can be done with it before others come. */
static bool has_root(const char *op)
{
    return strncmp(op, "broadcast", 9) == 0 || strncmp(op, "reduce", 7) == 0 ||
           strncmp(op, "scatter", 7) == 0 || strncmp(op, "gather", 6) == 0 || op[0] == '_';
}

/* Whether another rank knows that it is over: torch's watchdog, which would say so here, is behind, or
 * stopped. */
static bool is_over_elsewhere(const struct judged *j, size_t n, const struct pb_collective *c)
{
    for (size_t i = 0; i < n && !has_root(c->op); i++) {
        const struct pb_collective *d = by_number(j->of[i], c->number);
        if (d && d->is_over && strcmp(d->op, c->op) == 0)
            return true;
    }
    return false;
}

/* The first one of the rank that stands, as far as any rank knows. */
static const struct pb_collective *first_standing(const struct judged *j, size_t n,
                                                  const struct pb_collective_group *g)
{
    for (size_t i = 0; g && i < g->nrecent; i++)
        if (!g->recent[i].is_over && !is_over_elsewhere(j, n, &g->recent[i]))
            return &g->recent[i];
    return NULL;
}

static bool has_equal_sizes(const char *op)
{
    static const char *const names[] = {"all_reduce",
                                        "allreduce",
                                        "broadcast",
                                        "reduce",
                                        "_allgather_base",
                                        "_reduce_scatter_base",
                                        "all_gather_into_tensor",
                                        "reduce_scatter_tensor"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(op, names[i]) == 0)
            return true;
    return false;
}

static void put_members(const struct pb_collective_rank *ranks, size_t n, const bool *which, char *ret,
                        size_t size)
{
    int *numbers = calloc(n + 1, sizeof(*numbers));
    size_t found = 0;

    for (size_t i = 0; numbers && i < n; i++)
        if (which[i])
            numbers[found++] = ranks[i].rank;
    for (size_t i = 1; i < found; i++) /* few, and mostly in order */
        for (size_t k = i; k && numbers[k - 1] > numbers[k]; k--) {
            int held = numbers[k];
            numbers[k] = numbers[k - 1];
            numbers[k - 1] = held;
        }
    ret[0] = '\0';
    if (numbers)
        pb_wait_put_ranks(numbers, found, ret, size);
    free(numbers);
}

static const char *property(const struct pb_collective *c, enum pb_stall_kind kind)
{
    return kind == PB_STALL_OPERATION ? c->op : kind == PB_STALL_SIZE ? c->sizes : c->types;
}

/* Ranks whose operation of that number differs from what most have. Returns how many. */
static size_t find_different(struct judged *j, size_t n, enum pb_stall_kind kind)
{
    struct pb_stall *s = &j->stall;
    const char *most = NULL, *other = NULL;
    size_t best = 0, different = 0;

    for (size_t i = 0; i < n; i++) {
        const struct pb_collective *c = by_number(j->of[i], s->number);
        size_t same = 0;
        for (size_t k = 0; c && k < n; k++) {
            const struct pb_collective *d = by_number(j->of[k], s->number);
            same += d && strcmp(property(c, kind), property(d, kind)) == 0;
        }
        if (c && (same > best || (same == best && !c->is_over && !most))) {
            best = same;
            most = property(c, kind);
        }
    }
    for (size_t i = 0; i < n; i++) {
        const struct pb_collective *c = by_number(j->of[i], s->number);
        j->others[i] = c && most && strcmp(property(c, kind), most) != 0;
        different += j->others[i];
        if (j->others[i] && !other)
            other = property(c, kind);
    }
    if (different)
        snprintf(s->difference, sizeof(s->difference), "%.90s instead of %.90s", other, most);
    return different;
}

/* Its ranks of which nothing was read: of other nodes, or ended. */
static void put_unasked(const struct pb_collective_rank *ranks, size_t n, const struct pb_collective_group *g,
                        char *ret, size_t size)
{
    int numbers[256];
    size_t found = 0;
    char *end;

    for (const char *at = g->ranks; *at && found < 256; at = *end == ',' ? end + 1 : end) {
        long number = strtol(at, &end, 10);
        bool asked = false;
        if (end == at)
            break;
        for (size_t i = 0; i < n; i++)
            asked = asked || ranks[i].rank == number;
        if (!asked)
            numbers[found++] = (int)number;
    }
    pb_wait_put_ranks(numbers, found, ret, size);
}

static void put_sentence(struct pb_stall *s)
{
    const char *many = strpbrk(s->others, ",-.") ? "ranks" : "rank";
    char why[300];

    switch (s->kind) {
    case PB_STALL_NOT_JOINED:
        snprintf(why, sizeof(why), "%s %s %s not issued it", many, s->others, many[4] ? "have" : "has");
        break;
    case PB_STALL_ALL_IN:
        snprintf(why, sizeof(why), "all ranks that were asked have issued the same%s",
                 s->on_gpu ? ", and its kernel waits on the GPU for others" : "");
        break;
    default:
        snprintf(why, sizeof(why), "%s %s %s issued %s", many, s->others, many[4] ? "have" : "has",
                 s->difference);
        break;
    }
    snprintf(s->text, sizeof(s->text), "group %s stands at %s number %llu for %.0f s: %s%s%s", s->group,
             s->op, (unsigned long long)s->number, s->seconds, why,
             s->unasked[0] ? "; not asked, or ended: " : "", s->unasked);
}

/* Whether the group stands, from the view of every rank. */
static bool judge(const struct pb_collective_rank *ranks, size_t n, const struct pb_collective_group *g,
                  double least, struct judged *j)
{
    struct pb_stall *s = &j->stall;
    size_t missing = 0;
    const struct pb_collective *open = NULL;

    memset(s, 0, sizeof(*s));
    for (size_t i = 0; i < n; i++) {
        j->of[i] = same_group(&ranks[i], g);
        j->waits[i] = j->others[i] = false;
    }
    for (size_t i = 0; i < n; i++) {
        const struct pb_collective *c = first_standing(j, n, j->of[i]);
        if (c && (!open || c->number < open->number))
            open = c;
    }
    if (!open)
        return false;
    s->number = open->number;
    s->seconds = -1;
    for (size_t i = 0; i < n; i++) {
        const struct pb_collective *c = by_number(j->of[i], s->number);
        bool has = c || (j->of[i] && j->of[i]->issued >= (int64_t)s->number);
        j->waits[i] = c && !c->is_over;
        j->others[i] = !has && ranks[i].result == 0 && (j->of[i] || is_member(g, ranks[i].rank));
        missing += j->others[i];
        if (j->waits[i]) {
            s->nwaiting++;
            s->on_gpu = s->on_gpu || (g->gpu && c->has_started);
            s->seconds = s->seconds < 0 || c->seconds < s->seconds ? c->seconds : s->seconds;
            s->timeout_s = c->timeout_s;
            snprintf(s->op, sizeof(s->op), "%s", c->op);
        }
    }
    if (s->seconds < least)
        return false;
    s->gpu = g->gpu;
    snprintf(s->group, sizeof(s->group), "%s", g->name);
    s->kind = missing                                                         ? PB_STALL_NOT_JOINED
              : find_different(j, n, PB_STALL_OPERATION)                      ? PB_STALL_OPERATION
              : has_equal_sizes(s->op) && find_different(j, n, PB_STALL_SIZE) ? PB_STALL_SIZE
              : find_different(j, n, PB_STALL_TYPE)                           ? PB_STALL_TYPE
                                                                              : PB_STALL_ALL_IN;
    put_members(ranks, n, j->waits, s->waiting, sizeof(s->waiting));
    put_members(ranks, n, j->others, s->others, sizeof(s->others));
    put_unasked(ranks, n, g, s->unasked, sizeof(s->unasked));
    put_sentence(s);
    return true;
}

/* Whether all that the one waits for wait in the other. */
static bool is_consequence(const struct judged *one, const struct judged *other, size_t n)
{
    size_t any = 0;

    for (size_t i = 0; i < n; i++) {
        if (one->others[i] && !other->waits[i])
            return false;
        any += one->others[i];
    }
    return any > 0;
}

bool pb_collectives_judge(const struct pb_collective_rank *ranks, size_t n, double least,
                          struct pb_stall *ret, unsigned char *roles)
{
    struct judged best, now;
    bool found = false;
    bool *flags = calloc(4 * n + 1, sizeof(*flags));
    const struct pb_collective_group **views = calloc(2 * n + 1, sizeof(struct pb_collective_group *));

    if (flags && views) {
        best = (struct judged){.of = views, .waits = flags, .others = flags + n};
        now = (struct judged){.of = views + n, .waits = flags + 2 * n, .others = flags + 3 * n};
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < ranks[i].ngroups; k++) {
                if (!judge(ranks, n, &ranks[i].groups[k], least, &now))
                    continue;
                bool better = !found || is_consequence(&best, &now, n) ||
                              (now.stall.seconds > best.stall.seconds && !is_consequence(&now, &best, n));
                if (!better)
                    continue;
                struct judged held = best;
                best = now;
                now = held;
                found = true;
            }
        if (found)
            *ret = best.stall;
        for (size_t i = 0; found && roles && i < n; i++)
            roles[i] = best.others[i] ? PB_STALL_OTHER : best.waits[i] ? PB_STALL_WAITS : PB_STALL_NO_PART;
    }
    free(flags);
    free(views);
    return found;
}

bool pb_collectives_own(const struct pb_collective_rank *rank, double least, struct pb_stall *ret)
{
    const struct pb_collective *first = NULL;

    for (size_t i = 0; i < rank->ngroups; i++) {
        const struct pb_collective *c = first_open(&rank->groups[i]);
        if (!c || c->seconds < least || (first && first->seconds >= c->seconds))
            continue;
        first = c;
        *ret = (struct pb_stall){.kind = PB_STALL_ALL_IN,
                                 .gpu = rank->groups[i].gpu,
                                 .on_gpu = rank->groups[i].gpu && c->has_started,
                                 .number = c->number,
                                 .seconds = c->seconds,
                                 .timeout_s = c->timeout_s};
        snprintf(ret->group, sizeof(ret->group), "%s", rank->groups[i].name);
        snprintf(ret->op, sizeof(ret->op), "%s", c->op);
        snprintf(ret->text, sizeof(ret->text),
                 "%s number %llu of group %s is not over %.0f s after it was issued", c->op,
                 (unsigned long long)c->number, ret->group, c->seconds);
    }
    return first != NULL;
}
