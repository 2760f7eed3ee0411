/* stacks_changes: what threads do otherwise than the last time they were taken; see stacks.h. */
#include "ask/stacks.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix_text(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3ull;
    return h;
}

/* What a thread was doing, in one number. By names: each time the stacks are taken anew, numbers of code
 * objects begin anew too. */
static uint64_t digest(const struct pb_shown_thread *t)
{
    uint64_t h = t->nframes;

    for (size_t i = 0; i < t->nframes; i++)
        h = mix_text(mix_text(h, t->frames[i].code->qualname), t->frames[i].code->file) * 0x100000001b3ull +
            (uint64_t)t->frames[i].line;
    for (size_t i = 0; i < t->nnatives; i++)
        h = (h ^ t->natives[i].pc) * 0x100000001b3ull;
    return h ^ (t->off_cpu ? (uint64_t)t->syscall + 7 : 0) << 40;
}

/* Interpreters may share a thread: then there are several rows of it. */
static struct pb_seen *find(const struct pb_history *h, const struct pb_shown_thread *t)
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
        struct pb_seen *before = find(h, t);
        now[i] = (struct pb_seen){.tid = t->native.tid, .interp = t->py.interp, .digest = digest(t)};
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
