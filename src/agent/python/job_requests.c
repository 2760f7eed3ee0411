/* job_requests: requests about jobs; jobs and Python as parts of the agent. */
#include "agent/core/agent.h"
#include "agent/core/part.h"
#include "agent/python/embed.h"
#include "agent/python/enter.h"
#include "agent/python/job.h"
#include "control/message.h"

#include <errno.h>

static void run_job(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    char filename[256] = "<probing>", why[256];
    uint64_t mode = pb_field_u64(frame, PB_TAG_MODE, PB_RUN_EVAL);
    struct pb_field code;

    if (pb_field_find(frame, PB_TAG_CODE, &code) < 0) {
        pb_server_send_error(&agent->server, c->id, frame->id, EINVAL, "the request has no code");
        return;
    }
    pb_field_text(frame, PB_TAG_FILENAME, filename, sizeof(filename));
    const struct pb_job_request request = {
        .client = c->id,
        .request = frame->id,
        .mode = mode <= PB_RUN_LIVE ? (enum pb_run_mode)mode : PB_RUN_EVAL,
        .timeout_ms = pb_field_u64(frame, PB_TAG_TIMEOUT_MS, 10000) & UINT32_MAX,
        .code = code.data,
        .code_size = code.size,
        .filename = filename,
    };
    int r = pb_job_start(&request, why, sizeof(why));
    if (r < 0)
        pb_server_send_error(&agent->server, c->id, frame->id, r, why);
}

static int handle(struct pb_agent *agent, struct pb_server_client *client, const struct pb_frame *frame)
{
    if (frame->type == PB_MSG_RUN)
        run_job(agent, client, frame);
    else if (frame->type == PB_MSG_CANCEL)
        pb_job_cancel(client->id, frame->id);
    else
        return 0;
    return 1;
}

static int turn_of_jobs(struct pb_agent *agent, uint64_t now)
{
    (void)now;
    return pb_job_turn(&agent->server);
}

static void abandon_jobs(void)
{
    pb_job_disown(0);
}

static void end_jobs(struct pb_agent *agent)
{
    (void)agent;
    pb_job_disown(0);
}

const struct pb_part pb_part_jobs = {
    .turn = turn_of_jobs,
    .request = handle,
    .busy = pb_job_runs,
    .gone = pb_job_disown,
    .abandon = abandon_jobs,
    .end = end_jobs,
    .forget = pb_job_forget_all,
};

static int begin_python(struct pb_agent *agent, char *why, size_t why_size)
{
    char python_dir[256];
    (void)agent;
    (void)why;
    (void)why_size;

    pb_embed_override(pb_agent_option("python_dir", python_dir, sizeof(python_dir)));
    pb_agent_option("program", pb_embed_program, sizeof(pb_embed_program));
    return 0;
}

static void end_python(struct pb_agent *agent)
{
    (void)agent;
    pb_job_release_python();
}

const struct pb_part pb_part_python = {.begin = begin_python, .end = end_python, .forget = pb_enter_forget};
