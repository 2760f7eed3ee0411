"""Channels: streams of bytes between a client and a thread of the program (src/agent/channel.h), by what they are for."""
import builtins

from ._program import forget_thread

CHUNK = 1 << 16


class Channel:
    """A stream of bytes to and from one client (src/agent/channel.h). Any thread may use it, and keep it for ever."""

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
        """Waits for room without the GIL. False: nobody reads it any more. A client that does not read for that long is given up, so
        that code which prints with a lock held does not hold the program."""
        for at in range(0, len(data), CHUNK):
            piece = bytes(data[at:at + CHUNK])
            taken = self._write(piece, timeout_ms)
            if taken is None:  # KeyboardInterrupt is on its way
                return True
            if 0 <= taken < len(piece):
                self.close("the client does not read", 1)
            if taken < len(piece):
                return False
        return True

    def offer(self, data):
        """Writes what there is room for, and waits for nobody. How many bytes; 0 also where nobody reads them any more."""
        taken = self._write(bytes(data), 0)
        return taken if taken is not None and taken > 0 else 0

    def close(self, reason="", status=0):
        """The client gets what was written, then the end with this reason."""
        self._close(status, reason)


def serve(kind, arguments, functions):
    """A channel of that kind, in a thread of its own: KINDS says what it is for. When this returns the channel is closed."""
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
    """What serves a kind, loaded when the first client asks for it."""
    def serve_kind(arguments, channel):
        getattr(__import__(module, globals(), None, (function,), 1), function)(arguments, channel)
    return serve_kind


KINDS = {"code": _serve_code, "repl": _later("_prompt", "serve_tool"), "prompt": _later("_prompt", "serve_plain"),
         "pause": _later("_pause", "serve_control"), "paused": _later("_pause", "serve_client"),
         "catch": _later("_catch", "serve_control"), "caught": _later("_catch", "serve_client"),
         "trace": _later("_trace", "serve_control"), "break": _later("_break", "serve_control"),
         "watch": _later("_watch", "serve_control"), "debug": _later("_dap", "serve_client"),
         "debugpy": _later("_debugpy", "serve"), "inspect": _later("_inspect", "serve_control"),
         "profile": _later("_profile", "serve_control")}
