/* peek: what the agent reads of its own process for a tool that may not: memory, mappings, whether a thread
 * ran.
 *
 * For pods without the right to trace, and processes that forbid it. A client has proved by then that it may
 * run code here, so it learns nothing that it could not learn anyway. The resident thread runs this: bounded,
 * and by the kernel, so that an address that is nobody's is an error and no fault. (A page that the kernel
 * must fetch first, from swap or a file, it fetches, as for any thread.) */
#pragma once

struct pb_frame;
struct pb_server;
struct pb_server_client;

void pb_peek_memory(struct pb_server *s, struct pb_server_client *c, const struct pb_frame *frame);
void pb_peek_maps(struct pb_server *s, struct pb_server_client *c, const struct pb_frame *frame);
void pb_peek_thread(struct pb_server *s, struct pb_server_client *c, const struct pb_frame *frame);
