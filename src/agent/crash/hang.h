/* hang: keeps the stacks of a job that makes no progress where they outlive the process.
 *
 * A probe that sees a hang (probes/torch/torch.c) reports it here. This notifies the keeper of hangs, a
 * process of ours outside, which reads the stacks of all threads and sends them as rows of python.hang_frames
 * (cli/talk/keeper.c). No code runs in the program for it, and nothing of the program waits. Without a keeper
 * only the alert is kept. Everything here belongs to the resident thread. */
#pragma once

#include "agent/core/server.h"

#include <stdint.h>

struct pb_agent;
struct pb_frame;

/* A hang began; tid: of the thread that should make progress, 0: not known. */
void pb_hang_began(int32_t tid);
/* No probe looks for hangs any more: the keeper ends. */
void pb_hang_over(void);

/* PB_MSG_HANG. */
void pb_hang_request(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame);
/* Sends pending messages to the keeper. */
void pb_hang_turn(struct pb_agent *agent);
int pb_hang_is_keeper(pb_client_id client);
void pb_hang_keeper_gone(pb_client_id client);
/* At detach. */
void pb_hang_end(struct pb_agent *agent);
/* In a child of fork. */
void pb_hang_forget(void);
