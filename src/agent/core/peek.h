/* peek: the agent reads its own process for a tool that may not: memory, mappings, whether a thread ran.
 *
 * For pods without the right to trace, and processes that forbid it. Such a client has proved that it may run
 * code here, so it learns nothing that it could not learn anyway. The resident thread runs this: bounded, and
 * through the kernel, so that an unmapped address is an error and not a fault. (A page in swap or a file is
 * fetched by the kernel, as for any thread.) */
#pragma once

struct pb_frame;
struct pb_server;
struct pb_server_client;

void pb_peek_memory(struct pb_server *s, struct pb_server_client *c, const struct pb_frame *frame);
void pb_peek_maps(struct pb_server *s, struct pb_server_client *c, const struct pb_frame *frame);
void pb_peek_thread(struct pb_server *s, struct pb_server_client *c, const struct pb_frame *frame);
