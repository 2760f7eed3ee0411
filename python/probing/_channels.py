"""Channels: streams of bytes between a client and a thread of the program (src/agent/channel/channel.h), by kind."""
import builtins

from ._program import forget_thread

CHUNK = 1 << 16


class Channel:
    """A stream of bytes to and from one client (src/agent/channel/channel.h). Any thread may use it and keep it for ever."""

    __slots__ = ("read", "ended", "interrupted", "interrupt", "evaluate", "_write", "_close")
    # read(timeout_ms=-1): bytes; b"" when no more will come; None when none came in time. Raises KeyboardInterrupt when the client interrupts.
    # ended(): None, or why the channel has ended, as soon as its client is gone.
    # interrupted(): whether the client interrupted since it was last asked, while neither read nor evaluate ran.
    # interrupt(): as if the client did.
    # evaluate(code, globals, locals): runs a code object; an interrupt, or the client's going, raises KeyboardInterrupt in it.

    def __init__(self, functions):
        self.read, self.ended, self.interrupted = functions["read"], functions["ended"], functions["interrupted"]
        self.interrupt = functions["interrupt"]
        self.evaluate, self._write, self._close = functions["evaluate"], functions["write"], functions["close"]

    def write(self, data, timeout_ms=10000):
        """Waits for room without the GIL. False: the client is gone. A client that does not read for that long is disconnected, so that code
        which prints with a lock held does not block the program."""
        for at in range(0, len(data), CHUNK):
            piece = bytes(data[at:at + CHUNK])
            taken = self._write(piece, timeout_ms)
            if taken is None:  # KeyboardInterrupt is pending
                return True
            if 0 <= taken < len(piece):
                self.close("the client does not read", 1)
            if taken < len(piece):
                return False
        return True

    def offer(self, data):
        """Writes as much as there is room for, without waiting. Returns how many bytes; 0 also if the client is gone."""
        taken = self._write(bytes(data), 0)
        return taken if taken is not None and taken > 0 else 0

    def close(self, reason="", status=0):
        """The client gets the bytes written so far, then the end with this reason."""
        self._close(status, reason)


def serve(kind, arguments, functions):
    """Serves a channel of that kind, in its own thread: KINDS has the functions. The channel is closed when this returns."""
    channel = Channel(functions)
    try:
        if kind in KINDS:
            KINDS[kind](arguments, channel)
        else:
            channel.close("this agent knows no channel of kind %r; detach and inject the newer release" % kind, 1)
    finally:
        forget_thread()


def _serve_code(arguments, channel):
    """The arguments are Python code that uses the name channel."""
    names = {"__name__": "__probing__", "__builtins__": builtins.__dict__, "channel": channel}
    exec(compile(arguments, "<channel>", "exec", 0, True), names)


def _later(module, function):
    """The function for a kind, loaded when the first client asks for it."""
    def serve_kind(arguments, channel):
        getattr(__import__(module, globals(), None, (function,), 1), function)(arguments, channel)
    return serve_kind


KINDS = {"code": _serve_code, "repl": _later("_prompt", "serve_tool"), "prompt": _later("_prompt", "serve_plain"),
         "pause": _later("_pause", "serve_control"), "paused": _later("_pause", "serve_client"),
         "catch": _later("_catch", "serve_control"), "caught": _later("_catch", "serve_client"),
         "trace": _later("_trace", "serve_control"), "break": _later("_break", "serve_control"),
         "watch": _later("_watch", "serve_control"), "debug": _later("_dap", "serve_client"),
         "debugpy": _later("_debugpy", "serve"), "inspect": _later("_inspect", "serve_control"),
         "profile": _later("_profile", "serve_control"), "groups": _later("_groups", "serve_control")}
