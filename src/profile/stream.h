/* stream: samples as bytes, to take them in one process and use them in another.
 *
 * The writer is a sink. It sends each name, stack and thread once, then samples as their numbers; the caller
 * gets the bytes in frames. The reader accepts them in any pieces and hands the samples to a sink, with a
 * profile of its own for names. The bytes may come from another machine and are not trusted: invalid ones
 * give an error. Numbers are little-endian groups of seven bits; a frame is a packet (control/packet.h) of
 * records. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "control/packet.h"
#include "profile/proto.h"
#include "profile/sink.h"

enum { PB_STREAM_KIND = 'P' }; /* of its packets */
#define PB_STREAM_FRAME_MAX (4u << 20)

struct pb_stream_writer {
    struct pb_proto out;                      /* the frame that is being made, without its length */
    size_t functions, frames, nodes, threads; /* that were sent in this epoch */
    uint64_t when;                            /* of the last sample */
};

void pb_stream_writer_init(struct pb_stream_writer *w);
void pb_stream_writer_done(struct pb_stream_writer *w);
struct pb_sink pb_stream_sink(struct pb_stream_writer *w);

/* Ends the frame, with the present state of threads and facts. *ret: length and records, valid until the next
 * sample. Returns how many bytes; -ENOMEM, or -EMSGSIZE: the frame is too long; it is dropped and a new epoch
 * begins. */
int pb_stream_frame(struct pb_stream_writer *w, const struct pb_profile *names, const void **ret);

/* Marks the end of the stream in the next frame, with a reason code of the caller's. */
void pb_stream_end(struct pb_stream_writer *w, unsigned why);

struct pb_stream_reader;

/* memory_max: of names and stacks; 0: 512 MiB. The sink is copied. */
int pb_stream_reader_new(size_t memory_max, const struct pb_sink *sink, struct pb_stream_reader **ret);
void pb_stream_reader_free(struct pb_stream_reader *r);

/* Reads bytes in any pieces. -EBADMSG: not valid; nothing more can be read. -ENOMEM, -ENOSPC. */
int pb_stream_feed(struct pb_stream_reader *r, const void *data, size_t len);

/* Whether the end has come. */
bool pb_stream_ended(const struct pb_stream_reader *r, unsigned *ret_why);

/* Names and facts received so far. */
const struct pb_profile *pb_stream_names(const struct pb_stream_reader *r);
