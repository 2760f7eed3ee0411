/* probe_requests: requests about probes, also of Python code; the probes as a part of the agent. */
#include "agent/core/agent.h"
#include "agent/core/agent_clock.h"
#include "agent/core/part.h"
#include "agent/module/module.h"
#include "agent/probes/probes.h"
#include "control/message.h"

#include <errno.h>
#include <string.h>

static void send_probe(struct pb_agent *agent, pb_client_id client, uint32_t request,
                       const struct pb_probe_info *info)
{
    uint8_t buf[1024];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_NAME, info->probe->name);
    pb_frame_put_u64(&w, PB_TAG_VALUE, info->state);
    pb_frame_put_str(&w, PB_TAG_DATA, info->settings);
    pb_frame_put_str(&w, PB_TAG_TEXT, info->probe->text);
    pb_frame_put_str(&w, PB_TAG_WHY, info->text);
    int size = pb_frame_end(&w, PB_MSG_OUTPUT, request);
    if (size > 0)
        pb_server_send(&agent->server, client, buf, (size_t)size);
}

static void answer_probes(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    char name[64] = "", settings[PB_PROBE_SETTINGS] = "", why[300] = "its settings are too long";
    uint64_t mode = pb_field_u64(frame, PB_TAG_MODE, PB_PROBES_LIST);
    pb_client_id id = c->id;
    struct pb_probe_info info;

    int named = pb_field_text(frame, PB_TAG_NAME, name, sizeof(name)) == 0;
    int r = pb_field_text(frame, PB_TAG_DATA, settings, sizeof(settings));
    r = r == -ENOENT ? 0 : r;
    if (r == 0 && mode == PB_PROBES_START)
        r = pb_probes_start(name, settings, why, sizeof(why));
    else if (r == 0 && mode == PB_PROBES_STOP)
        r = pb_probes_stop(name, why, sizeof(why));
    if (r < 0) {
        pb_server_send_error(&agent->server, id, frame->id, r, why);
        return;
    }
    for (int i = 0; pb_probes_at(i, &info) == 0; i++)
        if (!named || strcmp(name, info.probe->name) == 0)
            send_probe(agent, id, frame->id, &info);
    pb_server_send_done(&agent->server, id, frame->id, r);
}

static int handle(struct pb_agent *agent, struct pb_server_client *client, const struct pb_frame *frame)
{
    if (frame->type != PB_MSG_PROBES)
        return 0;
    answer_probes(agent, client, frame);
    return 1;
}

static int begin(struct pb_agent *agent, char *why, size_t why_size)
{
    int r = pb_probes_begin(pb_probe_list, agent->arena, why, why_size);
    if (r == 0) /* a probe that the settings want and that cannot start does not keep others from starting */
        pb_probes_configure(&agent->settings, NULL, why, why_size);
    return r;
}

static int configure(struct pb_agent *agent, const char *changed, char *why, size_t why_size)
{
    return pb_probes_configure(&agent->settings, changed, why, why_size);
}

static int turn(struct pb_agent *agent, uint64_t now)
{
    uint64_t next;

    if (pb_probes_tick(now, &next) > 0)
        agent->copy_ns = now; /* their rows are copied at once */
    return next > now ? (int)((next - now) / PB_NS_PER_MS) + 1 : 1;
}

static void end(struct pb_agent *agent)
{
    (void)agent;
    pb_probes_end();
}

/* finer_memory(1 or -1): a block begins or ends in which memory is recorded in finer steps. */
static pb_pyobject *finer_memory(pb_pyobject *self, pb_pyobject *by)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    long value = py->int_as(by);
    if (py->err_occurred())
        return NULL;
    pb_memory_usage_block(value > 0 ? 1 : -1);
    py->incref(py->none);
    return py->none;
}

struct pb_py_method pb_probe_methods[] = {
    {"finer_memory", (pb_py_function)finer_memory, PB_METH_O, NULL},
    {0},
};

const struct pb_part pb_part_probes = {
    .begin = begin,
    .turn = turn,
    .request = handle,
    .configure = configure,
    .end = end,
    .forget = pb_probes_forget,
};
