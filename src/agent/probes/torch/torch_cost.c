/* torch_cost: the cost of recording, measured in the program, and the budget for it.
 *
 * Two measures: one without noise, one that is complete. For some calls the time in our own code is measured:
 * times the number of calls in a step that is the cost that the budget limits. And one step in 32 makes no
 * rows of modules: the medians of those steps and of the others are compared (python.torch_overhead), over a
 * few hundred steps, where differences under a percent are noise. Above the budget modules make rows in every
 * second step only, in every fourth, and so on; every rank leaves out the same steps, by their numbers. */
#include "agent/core/notes.h"
#include "agent/core/recorder.h"
#include "agent/probes/torch/torch.h"
#include "control/tables.def"
#include "table/clock.h"

#include <string.h>

#define RING           64
#define BARE_EVERY     32
#define MOST_THIN      1024
#define JUDGE          16 /* steps between two checks of the budget */
#define ROW_NS         INT64_C(2000000000)
#define OCCASION_SHARE 2000

struct cost_ring {
    int64_t at[RING];
    uint32_t n;
};

static struct {
    struct cost_ring calls, full, bare; /* ns: of our code per call, of steps with rows, of steps without */
    uint64_t full_steps, bare_steps, rows;
    double step_calls; /* rows of a step, smoothed */
    int64_t next_row;
} cost;

static void add(struct cost_ring *r, int64_t value)
{
    r->at[r->n++ % RING] = value;
}

/* 0: no values yet. */
static int64_t median(const struct cost_ring *r)
{
    int64_t sorted[RING];
    uint32_t n = r->n < RING ? r->n : RING;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = i;
        for (; k > 0 && sorted[k - 1] > r->at[i]; k--)
            sorted[k] = sorted[k - 1];
        sorted[k] = r->at[i];
    }
    return n ? sorted[n / 2] : 0;
}

void pb_torch_cost_reset(void)
{
    memset(&cost, 0, sizeof(cost));
    pb_torch.thin = 1;
}

void pb_torch_cost_of_call(int64_t ns)
{
    add(&cost.calls, ns);
}

int pb_torch_cost_allows(int64_t step)
{
    if (pb_torch.budget <= 0)
        return 1;
    return step % BARE_EVERY != BARE_EVERY - 1 && step % pb_torch.thin == 0;
}

int pb_torch_is_occasion(struct pb_torch_occasion *o, int64_t step)
{
    if (step == 0 || !o->every)
        o->every = o->first;
    o->spent = 0;
    return step % o->every == o->at % o->every;
}

void pb_torch_occasion_ended(struct pb_torch_occasion *o)
{
    o->every = o->least;
    while (o->every < o->most && o->spent * OCCASION_SHARE > pb_torch.usual * o->every)
        o->every *= 2;
}

#define OVER_ID(id, ...) OVER_##id,
enum { PB_TABLE_TORCH_OVERHEAD(PB_NOTHING, OVER_ID) OVER_COLUMNS };
static const struct pb_column columns[] = {PB_COLUMNS_OF(PB_TABLE_TORCH_OVERHEAD)};

static void write_row(int64_t now, int64_t full, int64_t bare, double percent)
{
    static struct pb_known_table known;
    const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_TORCH_OVERHEAD),
                                       .comment = PB_COMMENT_OF(PB_TABLE_TORCH_OVERHEAD),
                                       .columns = columns,
                                       .ncolumns = OVER_COLUMNS};
    struct pb_row row;
    uint32_t inside;

    if (pb_recorder_begin_row(&spec, &known, &row, &inside) < 0)
        return;
    pb_set_timestamp(&row, OVER_TIMESTAMP, now);
    pb_set_i64(&row, OVER_STEP, pb_torch_number(pb_torch.step));
    pb_set_u32(&row, OVER_STEPS, (uint32_t)cost.full_steps);
    pb_set_u32(&row, OVER_BARE_STEPS, (uint32_t)cost.bare_steps);
    pb_set_f64(&row, OVER_STEP_MS, (double)full / 1e6);
    if (bare > 0) {
        pb_set_f64(&row, OVER_BARE_MS, (double)bare / 1e6);
        pb_set_f64(&row, OVER_MEASURED, ((double)full / (double)bare - 1) * 100);
    }
    pb_set_f64(&row, OVER_CALLS, cost.step_calls);
    pb_set_f64(&row, OVER_NS, (double)median(&cost.calls));
    pb_set_f64(&row, OVER_COST, percent / pb_torch.thin);
    if (pb_torch.budget > 0)
        pb_set_f64(&row, OVER_BUDGET, pb_torch.budget);
    pb_set_u32(&row, OVER_EVERY, pb_torch.thin);
    pb_recorder_end_row(&row, inside);
}

/* percent: the cost of a step with rows. The rate rises slowly again: steps are added only if twice the cost
 * stays within the budget. */
static void keep_to_budget(double percent)
{
    uint32_t thin = pb_torch.thin;

    while (thin < MOST_THIN && percent / thin > pb_torch.budget)
        thin *= 2;
    while (thin > 1 && percent / (thin / 2.0) < 0.7 * pb_torch.budget)
        thin /= 2;
    if (thin == pb_torch.thin)
        return;
    pb_note_log("torch",
                "recording modules costs %.2f%% of a step, the budget is %.2f%% (probing.torch.budget): they "
                "are recorded in every %u%s step from step %lld on",
                percent, pb_torch.budget, thin,
                thin == 1   ? "st"
                : thin == 2 ? "nd"
                            : "th",
                (long long)pb_torch_number(pb_torch.step) + 1);
    pb_torch.thin = thin;
}

void pb_torch_cost_of_step(const struct pb_torch_step_row *step)
{
    int64_t took = step->ended - step->begun;

    if (step->sampled) {
        add(&cost.full, took);
        cost.full_steps++;
        cost.step_calls +=
            ((double)step->calls - cost.step_calls) / (cost.full_steps < 8 ? (double)cost.full_steps : 8);
    } else {
        add(&cost.bare, took);
        cost.bare_steps++;
    }
    if (cost.full.n < JUDGE || (cost.full_steps + cost.bare_steps) % JUDGE != 0)
        return;
    int64_t full = median(&cost.full), usual = cost.bare.n >= 8 ? median(&cost.bare) : full;
    double percent = usual > 0 ? cost.step_calls * (double)median(&cost.calls) / (double)usual * 100 : 0;
    if (step->ended >= cost.next_row) {
        write_row(step->ended, full, cost.bare.n >= 8 ? usual : 0, percent);
        cost.next_row = step->ended + ROW_NS;
    }
    if (pb_torch.budget > 0)
        keep_to_budget(percent);
}
