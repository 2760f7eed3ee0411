/* unchecked: see unchecked.h. */
#include "diagnose/unchecked.h"

#include "ask/process_settings.h"

#include <stdio.h>
#include <string.h>

struct counts {
    int ranks, torch, sampling, losses;
};

/* From what agents have stored: none is asked. */
static struct counts count_ranks(const struct pb_diag_job *job)
{
    struct counts c = {0};
    struct pb_settings s;

    for (size_t i = 0; i < job->nprocesses; i++) {
        const struct pb_diag_process *p = &job->processes[i];
        if (p->parent != PB_NOBODY || p->state == 'Z' || p->state == 'X')
            continue;
        c.ranks++;
        pb_settings_saved(p->pid, &s);
        bool torch = pb_settings_switched(&s, PB_SET_TORCH_PROFILING) == 1;
        c.torch += torch;
        c.losses += torch && strstr(s.at[PB_SET_TORCH_PROFILING].text, "exprs=") != NULL;
        c.sampling += pb_settings_switched(&s, PB_SET_MEMORY_SAMPLING) == 1;
    }
    return c;
}

/* "-t 4711", and for a whole job "-t 4711 --all" of its launcher. */
static void put_target(const struct pb_diag_job *job, bool all, char *ret, size_t size)
{
    if (!job->ranks || job->nprocesses == 0)
        snprintf(ret, size, "-t %d", job->nprocesses ? (int)job->processes[0].pid : 0);
    else if (job->launcher > 1)
        snprintf(ret, size, "-t %d%s", (int)job->launcher, all ? " --all" : "");
    else if (all)
        snprintf(ret, size, "-t %.60s --all", job->name);
    else
        snprintf(ret, size, "-t %d", (int)job->processes[0].pid);
}

static void add(struct pb_diag_unchecked *to, const char *what, const char *why, const char *target,
                const char *command)
{
    snprintf(to->what, sizeof(to->what), "%s", what);
    snprintf(to->why, sizeof(to->why), "%s", why);
    snprintf(to->command, sizeof(to->command), "probing %s %s", target, command);
}

size_t pb_diag_unchecked(const struct pb_diag_answer *a, struct pb_diag_unchecked ret[PB_DIAG_UNCHECKED])
{
    struct counts c = {0};
    char one[80], all[80], why[96];
    size_t n = 0;

    if (a->job->joined) {
        add(&ret[n++], "ranks that are slow on one node of several", "each node judges its own recorded rows",
            "-t cluster", "torch");
        return n;
    }
    c = count_ranks(a->job);
    put_target(a->job, false, one, sizeof(one));
    put_target(a->job, true, all, sizeof(all));
    if (a->probed < c.ranks) {
        snprintf(why, sizeof(why), "nothing is recorded in %d of %d ranks", c.ranks - a->probed, c.ranks);
        add(&ret[n++], a->job->ranks ? "slow ranks, leaks, losses" : "leaks, losses",
            c.ranks > 1 ? why : "nothing is recorded", one, "diagnose --watch 30s");
        return n;
    }
    if (a->job->ranks && c.ranks > 1 && c.torch < c.ranks)
        add(&ret[n++], "slow ranks", "the torch probe is off", all, "config probing.torch.profiling=on");
    if (c.losses < c.ranks)
        add(&ret[n++], "losses", "none is tracked", all, "track loss");
    if (c.sampling < c.ranks)
        add(&ret[n++], "the line of a leak", "allocations are not sampled", all,
            "config probing.memory.sampling=on");
    return n;
}
