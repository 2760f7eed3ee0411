/* packet: how bytes between our processes are cut into messages: a byte that says what the message is, its
 * length (32 bits, little endian), and so many bytes.
 *
 * Their contents are described where they are sent: a command line for a service (relay.h), a question to a
 * node (cluster/link/node_wire.h), messages of a prompt (cli/talk/dialog.h), of an SQL worker
 * (engine/shared/wire.h), samples (profile/stream.h). The agent's control socket alone has frames of another
 * form (frame.h), whose fields either side may not know. */
#pragma once

#include <stddef.h>

#define PB_PACKET_HEAD 5

void pb_packet_head(unsigned char ret[PB_PACKET_HEAD], unsigned char kind, size_t length);

/* A packet at the front of bytes that came: its kind, and how long it is without its head. 0: more bytes are
 * needed for the head; -EPROTO: it is longer than `most`, or its kind is 0. */
int pb_packet_parse(const void *bytes, size_t n, size_t most, size_t *ret_length);
