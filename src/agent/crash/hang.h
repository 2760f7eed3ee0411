/* hang: keeps the stacks of a job that makes no progress where they outlive the process.
 *
 * A probe that sees a hang (probes/torch/torch.c) reports it here. This notifies the keeper of hangs, a
 * process of ours outside, which reads the stacks of all threads and sends them as rows of python.hang_frames
 * (cli/talk/keeper.c). No code runs in the program for it, and nothing of the program waits. Without a keeper
 * only the alert is kept. Everything here belongs to the resident thread. */
#pragma once

#include <stdint.h>

struct pb_part;

/* A hang began; tid: of the thread that should make progress, 0: not known. */
void pb_hang_began(int32_t tid);
/* No probe looks for hangs any more: the keeper ends. */
void pb_hang_dismiss_keeper(void);

extern const struct pb_part pb_part_hang;
