/* stacks_changes: how threads changed since they were read last; see stacks.h. */
#include "ask/stacks.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

/* A hash of what a thread was doing. By names, since code objects get new numbers in each reading. */
static uint64_t hash_stack(const struct pb_shown_thread *t)
{
    uint64_t h = PB_HASH_START;

    for (size_t i = 0; i < t->nframes; i++) {
        h = pb_hash_text(pb_hash_text(h, t->frames[i].code->qualname), t->frames[i].code->file);
        h = pb_hash_bytes(h, &t->frames[i].line, sizeof(t->frames[i].line));
    }
    for (size_t i = 0; i < t->nnatives; i++)
        h = pb_hash_bytes(h, &t->natives[i].pc, sizeof(t->natives[i].pc));
    return h ^ (t->off_cpu ? (uint64_t)t->syscall + 7 : 0) << 40;
}

/* Two interpreters may share a thread: it has several rows then. */
static struct pb_seen *find_seen(const struct pb_history *h, const struct pb_shown_thread *t)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->last[i].tid == t->native.tid && h->last[i].interp == t->py.interp && !h->last[i].again)
            return &h->last[i];
    return NULL;
}

int pb_history_add(struct pb_history *h, const struct pb_stacks *s)
{
    struct pb_seen *now = calloc(s->n + 1, sizeof(*now));
    enum pb_change *change = calloc(s->n + 1, sizeof(*change));

    if (!now || !change) {
        free(now);
        free(change);
        return -1;
    }
    for (size_t i = 0; i < s->n; i++) {
        const struct pb_shown_thread *t = &s->threads[i];
        struct pb_seen *before = find_seen(h, t);
        now[i] = (struct pb_seen){.tid = t->native.tid, .interp = t->py.interp, .digest = hash_stack(t)};
        pb_stacks_thread_name(t, now[i].name, sizeof(now[i].name));
        change[i] = !before ? PB_NEW : before->digest == now[i].digest ? PB_AS_BEFORE : PB_CHANGED;
        if (before)
            before->again = true;
    }
    free(h->change);
    h->change = change;
    free(h->ended);
    h->ended = h->last;
    h->nended = h->n;
    h->last = now;
    h->n = s->n;
    h->times++;
    return 0;
}

void pb_history_done(struct pb_history *h)
{
    free(h->last);
    free(h->ended);
    free(h->change);
    *h = (struct pb_history){0};
}
