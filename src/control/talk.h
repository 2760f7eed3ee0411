/* talk: a tool's end of a channel (message.h): bytes both ways between the tool and a thread of the target.
 *
 * The connection is the channel's alone: a tool that also asks questions opens another session for them. The
 * descriptor to poll is client->fd; since a frame may have come with an earlier one, pb_talk_next is called
 * until it says -ETIMEDOUT before the next poll. The agent is part of the target, and may be anything: more
 * bytes than were asked for are an error. For tools only. One thread at a time. */
#pragma once

#include "control/client.h"

#include <stddef.h>
#include <stdint.h>

struct pb_talk {
    struct pb_client *client; /* the caller's: it outlives the talk */
    uint32_t id;
    uint64_t credit;   /* bytes that the agent takes now */
    uint64_t given;    /* bytes that it may send */
    uint64_t consumed; /* bytes handed out for which the agent was not given room again yet */
    int ended;         /* nothing comes any more */
};

/* The status of an END: nothing was there to end (python/probing/_hooks.py: Nothing). */
enum { PB_TALK_NOTHING = 2 };

enum pb_talk_event_type { PB_TALK_DATA, PB_TALK_ROOM, PB_TALK_END };

struct pb_talk_event {
    enum pb_talk_event_type type;
    const uint8_t *data; /* DATA: valid until the next call */
    size_t size;
    int status;     /* END: 0; 1 when something failed; PB_TALK_NOTHING */
    char text[256]; /* END: why, for a person; "" where the code just ended. As the target has it: print with
                       care */
};

/* Makes the client's connection a channel. timeout_ms: for the target to get its GIL (the channel ends then,
 * with a reason), and for the answer itself some seconds. On failure text (256 bytes) has what the agent
 * said, or "". -EBUSY: too many channels; -ENOSYS: an agent of an older release. */
int pb_talk_open(struct pb_client *client, const char *kind, const void *arguments, size_t size,
                 unsigned timeout_ms, struct pb_talk *ret, char *text);

/* Waits for the next event. ROOM: more bytes may be sent. -ETIMEDOUT: none in that time (0: do not wait);
 * -EINTR; -ECONNRESET: the agent is gone; -EPROTO: the agent broke the protocol. */
int pb_talk_next(struct pb_talk *talk, struct pb_talk_event *ret, int timeout_ms);

/* Sends as many bytes as the agent has room for, and returns how many: 0 before the next ROOM. */
long pb_talk_send(struct pb_talk *talk, const void *data, size_t size);

/* Raises KeyboardInterrupt in the code that runs, before all bytes that wait. */
int pb_talk_interrupt(struct pb_talk *talk);
