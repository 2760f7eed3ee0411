/* message: the requests and replies between agent and tools on the control socket.
 *
 * The first request of a client is HELLO with the run's secret; anything else before it closes the client.
 * Each request is answered with its id: by any number of OUTPUT frames and then one DONE or ERROR. Once
 * CHANNEL was answered by DONE, the connection is a channel: bytes both ways, to a thread of the target and
 * back. Numbers are part of the protocol: append, never renumber. docs/architecture.md describes the
 * exchange. */
#pragma once

#define PB_CONTROL_VERSION 2u

#define PB_PEEK_MAX    (64u << 10) /* bytes of memory in one answer */
#define PB_PEEK_PIECES 64u

#define PB_CHANNEL_WINDOW (64u << 10) /* bytes that each side takes before it is asked for more */
#define PB_CHANNEL_KIND   32u         /* of a kind's name, with its end */

enum pb_msg {
    /* requests */
    PB_MSG_HELLO = 1,  /* SECRET, VERSION -> DONE(VERSION, TEXT: the agent's release) */
    PB_MSG_PING = 2,   /* -> DONE */
    PB_MSG_RUN = 3,    /* CODE, FILENAME, MODE, TIMEOUT_MS -> OUTPUT.., DONE(STATUS) or ERROR */
    PB_MSG_CANCEL = 4, /* the id names the RUN to stop; that RUN is answered, CANCEL itself is not */
    PB_MSG_DETACH = 5, /* -> DONE when everything but the code is gone */
    PB_MSG_CONFIG = 6, /* NAME and VALUE: set; NAME: get; none: all -> one OUTPUT a setting, DONE */
    PB_MSG_READ =
        7, /* PIECES -> DONE(DATA: of the pieces in order, up to the first byte that is not mapped) */
    PB_MSG_MAPS = 8,   /* OFFSET -> DONE(DATA: of its list of mappings; less than PB_PEEK_MAX at its end) */
    PB_MSG_THREAD = 9, /* TID -> DONE(VALUE: ns that it has run, TEXT: what it waits in, as /proc has it) */
    PB_MSG_TABLES =
        10, /* -> OUTPUT(TEXT: what a person should know) or none, DONE with a descriptor beside it */
    PB_MSG_CHANNEL = 11, /* NAME: the kind, DATA: arguments, TIMEOUT_MS: for the GIL -> DONE(VALUE: window) or
                           ERROR. From DONE on the connection is a channel, and carries what follows alone. */
    PB_MSG_LISTEN = 12,  /* NAME: the kind, DATA: arguments, TEXT: a numeric address, VALUE: port or 0, MODE
                           -> DONE(VALUE: port): each connection to it is a channel of plain bytes */
    PB_MSG_LISTEN_STOP = 13, /* NAME: the kind or none for all, MODE: 1 ends their channels too
                                -> DONE(VALUE: how many stopped) */

    PB_MSG_PROBES = 14, /* none: all; NAME, MODE: PB_PROBES_START (DATA: its settings) or PB_PROBES_STOP
                           -> one OUTPUT a probe (NAME, VALUE: enum pb_probe_state, DATA: its settings,
                           TEXT: what it records, WHY: how it stands), DONE(STATUS: 1: it was so already) */

    PB_MSG_CRASH = 15, /* MODE PB_CRASH_KEEP: this connection is the keeper of fatal signals -> OUTPUT(VALUE:
                          0, STATUS: 1: there is Python, TEXT: what is not caught) once it is, OUTPUT(VALUE:
                          signal, TID, STATUS: si_code, ERRNO: sender, OFFSET: address) when one strikes, DONE
                          when it is over. PB_CRASH_STOP -> DONE(STATUS: PB_CRASH_WAS_ON...). Of the keeper,
                          not answered: PB_CRASH_SIGNAL (NAME: of the signal, WHY: a sentence, TID, DATA: the
                          thread's name, CODE: function, FILENAME, VALUE: line, TEXT: stack), PB_CRASH_FRAME
                          (TID, DATA, STATUS: 1: the thread that failed, OFFSET: depth, NAME: language, CODE,
                          FILENAME, VALUE, TEXT: locals), PB_CRASH_KEPT: the program may go on dying */

    PB_MSG_HANG =
        16, /* the same for hangs, which nothing waits for: PB_CRASH_KEEP -> OUTPUT(VALUE: 0) once it is
                         the keeper of hangs, OUTPUT(VALUE: 1, TID: of the thread that should go on) at each.
                         Of the keeper, not answered: PB_CRASH_FRAME, PB_CRASH_KEPT: all were sent */

    PB_MSG_ALERT = 17, /* NAME: kind, WHY: severity, TEXT: the message, FILENAME: subject or none: a row of
                          python.alerts -> DONE */

    /* of a channel, both ways, with the id of its CHANNEL; not answered */
    PB_MSG_STREAM = 32,    /* DATA: as many bytes as the other side has given room for */
    PB_MSG_WINDOW = 33,    /* VALUE: this many bytes more may be sent */
    PB_MSG_INTERRUPT = 34, /* of a client only: raises KeyboardInterrupt in the code that runs */
    PB_MSG_END = 35,       /* of a client: no more bytes from it. Of the agent: STATUS, TEXT: why; the last */

    /* replies */
    PB_MSG_OUTPUT = 64, /* STREAM, TEXT (RUN) or NAME, VALUE (CONFIG) */
    PB_MSG_DONE = 65,   /* STATUS: 0, or 1 when the code raised */
    PB_MSG_ERROR = 66,  /* ERRNO, TEXT: a sentence for a person */
};

enum pb_tag {
    PB_TAG_SECRET = 1,
    PB_TAG_VERSION = 2,
    PB_TAG_CODE = 3,
    PB_TAG_FILENAME = 4,
    PB_TAG_MODE = 5, /* enum pb_run_mode */
    PB_TAG_TIMEOUT_MS = 6,
    PB_TAG_STREAM = 7, /* enum pb_stream */
    PB_TAG_TEXT = 8,
    PB_TAG_STATUS = 9,
    PB_TAG_ERRNO = 10,
    PB_TAG_NAME = 11,
    PB_TAG_VALUE = 12,
    PB_TAG_PIECES = 13, /* address and size of each, 8 bytes each */
    PB_TAG_DATA = 14,
    PB_TAG_OFFSET = 15,
    PB_TAG_TID = 16,
    PB_TAG_WHY = 17,
};

enum pb_run_mode {
    PB_RUN_EVAL = 0,   /* the value of a last expression is sent as PB_STREAM_VALUE */
    PB_RUN_SCRIPT = 1, /* as a script: no value */
    PB_RUN_LIVE = 2,   /* no code but a table's name: one that a function of the program gives rows to */
};

enum pb_probes_mode {
    PB_PROBES_LIST = 0,
    PB_PROBES_START = 1,
    PB_PROBES_STOP = 2,
};

enum pb_probe_state {
    PB_PROBE_OFF = 0,
    PB_PROBE_ON = 1,
    PB_PROBE_STUCK = 2, /* was to stop and could not; retried when it is stopped or started again */
};

enum pb_crash_mode {
    PB_CRASH_KEEP = 1,
    PB_CRASH_STOP = 2,
    PB_CRASH_SIGNAL = 3,
    PB_CRASH_FRAME = 4,
    PB_CRASH_KEPT = 5,
};
enum { PB_CRASH_WAS_ON = 1, PB_CRASH_HAS_PYTHON = 2 };

enum pb_listen_mode {
    PB_LISTEN_BYTES = 0, /* every byte is passed on */
    PB_LISTEN_TEXT = 1,  /* Ctrl-C (0x03) and telnet's IAC IP are interrupts, and taken out */
};

enum pb_stream {
    PB_STREAM_OUT = 1,
    PB_STREAM_ERR = 2,
    PB_STREAM_VALUE = 3,
    PB_STREAM_TRACEBACK = 4,
};
