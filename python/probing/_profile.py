"""`probing torch profile`: torch.profiler for a few whole steps of a running training.

The profiler belongs to the thread in which it is started, so it is started and stopped at the end of a step in the thread that runs the steps
(src/agent/probes/torch/torch_step.c calls at_step there, also when the probe was stopped or detached meanwhile). A program that ends while torch's
profiler runs crashes in torch: ours runs in the main thread only, and is stopped when Python ends. A program that begins a profile of its own
finds ours stopped. torch writes the trace; the tool reads it and makes rows of it.
"""
import sys

import _probing
from _thread import get_ident
from posix import getpid, unlink

from . import _objects
from ._hooks import Refused
from ._own import make_table
from ._program import is_of_program

CHUNK, POLL_MS, QUIET = 1 << 16, 50, 100
_captures = _probing.shared.setdefault("captures", [0])


class Capture:
    def __init__(self, torch, steps, limit_ms):
        self.torch, self.steps, self.limit_ms = torch, steps, limit_ms
        self.pid, self.thread = getpid(), _probing.main_ident()
        self.until = _probing.milliseconds() + limit_ms
        self.begin_at, self.seen, self.left, self.given_up = None, [], steps, False
        self.profiler = self.error = None
        self.running = self.over = False
        self.original = None

    # --- in the thread that steps; what is raised here ends the capture

    def at_step(self, counted):
        try:
            if getpid() != self.pid or self.over:
                _probing.torch_at_step(None)
            elif get_ident() != self.thread:
                if counted == 1 and not self.running:
                    self.end("the steps are made in another thread than the main one, where torch's profiler cannot be stopped when the program ends")
            elif self.running:
                self.step_ended(counted)
            elif counted < 0 or _probing.milliseconds() > self.until:
                self.end("nobody waits for it")
            elif counted == 1:
                self.seen = self.seen[-1:] + [_probing.milliseconds()]
                if self.begin_at is not None and self.seen[-1] >= self.begin_at:
                    self.start()
        except BaseException as error:
            self.stop()
            if is_of_program(error) and not issubclass(type(error), RuntimeError):  # torch's own, of its C++ code, are of that type
                self.end("a signal handler of the program raised an exception meanwhile")
                raise  # the agent raises it in the program
            self.end("%s: %s" % (type(error).__name__, error))

    def step_ended(self, counted):
        self.left -= counted == 1
        late = _probing.milliseconds() > self.until
        if self.left <= 0 or counted < 0 or late:
            self.stop()
            self.end(None if self.left <= 0 else "the probe was stopped" if counted < 0 else "the steps took longer than that")

    def start(self):
        import atexit

        profiler, own = self.torch.profiler, self.torch.autograd.profiler
        if getattr(own, "_is_profiler_enabled", False) or self.torch._C._autograd._profiler_enabled():
            self.end("torch's profiler runs already, for the program itself")
            return
        activities = [profiler.ProfilerActivity.CPU]
        if self.torch.cuda.is_available() and self.torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
        made = profiler._KinetoProfile(activities=activities)
        atexit.register(self.at_exit)
        made.prepare_trace()  # its library decides what to print when first used
        self.profiler, self.running = made, True
        before = _probing.torch_quiet(QUIET)  # else it prints a message when it begins
        try:
            made.start_trace()
        finally:
            _probing.torch_quiet(before)
        self.original = own.profile._prepare_trace
        capture, original = self, self.original

        def _prepare_trace(profile):
            capture.give_way()
            return original(profile)

        own.profile._prepare_trace = _prepare_trace

    def give_way(self):
        """The program begins a profile of its own: ours would make it fail."""
        if self.running and get_ident() == self.thread:
            self.stop()
            self.end("the program began a profile of its own")

    def stop(self):
        """In the thread that started it; also when Python ends."""
        if not self.running or get_ident() != self.thread or getpid() != self.pid:
            return
        self.running = False
        if self.original is not None:
            self.torch.autograd.profiler.profile._prepare_trace = self.original
        before = _probing.torch_quiet(QUIET)
        try:
            self.profiler.stop()
        finally:
            _probing.torch_quiet(before)
            import atexit

            atexit.unregister(self.at_exit)
            if self.given_up:
                self.forget()

    def at_exit(self):
        self.stop()
        self.end("the program ends")

    def forget(self):
        """Releases what torch collected: its object is in a reference cycle, which the garbage collector may leave for long."""
        if self.profiler is not None:
            self.profiler.profiler = None
        self.profiler = None

    def end(self, error):
        if not self.over:
            self.error, self.over = error, True
            _probing.torch_at_step(None)

    # --- in the thread of the channel

    def wait(self, channel, is_so):
        """Waits until it is so, or the capture is over, or the client is gone; a running capture continues then."""
        while not is_so() and not self.over:
            late = _probing.milliseconds() > self.until + (self.limit_ms if self.running else 0)
            if channel.ended() is not None or late:
                if not self.running:
                    self.end("no step ended within %g s; is it between two, or does it not train?" % (self.limit_ms / 1000))
                return
            try:
                channel.read(POLL_MS)  # the client sends nothing more: this only waits
            except KeyboardInterrupt:
                pass


def programs_own(torch):
    """Whether the program has made a profile with a schedule: it is off between its rounds, and may begin one in another thread."""
    usual = getattr(sys.modules.get("torch.profiler.profiler"), "_default_schedule_fn", None)
    things = [weak() for weak in _objects.references(torch.profiler.profile)]
    return any(thing.__dict__.get("schedule", usual) is not usual for thing in things if thing is not None)


def prepare(options):
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "profiler"):
        raise Refused("torch is not imported in this process")
    if not _probing.comm_wanted():
        raise Refused("steps are not recorded: `config probing.torch.profiling=on` begins that")
    if programs_own(torch):
        raise Refused("the program has a torch.profiler.profile with a schedule of its own")
    if _probing.shared.get("capture") is not None and not _probing.shared["capture"].over:
        raise Refused("another capture is under way")
    return Capture(torch, int(options["steps"]), int(options["limit_ms"]))


def read_line(channel, got, limit_ms):
    while b"\n" not in got:
        more = channel.read(limit_ms)
        if not more:
            return None, b""
        got += more
    line, _, rest = got.partition(b"\n")
    return line.decode(), rest


def send_trace(capture, channel):
    import os
    import tempfile

    handle, path = tempfile.mkstemp(".json", "probing-trace-")
    os.close(handle)
    try:
        before = _probing.torch_quiet(QUIET)
        try:
            capture.profiler.export_chrome_trace(path)
        finally:
            _probing.torch_quiet(before)
        with open(path, "rb") as trace:
            if not channel.write(b"ok %d %d\n" % (os.fstat(trace.fileno()).st_size, capture.steps)):
                return
            while True:
                piece = trace.read(CHUNK)
                if not piece or not channel.write(piece):
                    break
    finally:
        unlink(path)
        capture.forget()


def keep_rows(capture, channel, got):
    """What the tool found in the trace: a line a bucket, with tabs."""
    table = make_table("python.profile_hotspot")
    _captures[0] += 1
    while True:
        line, got = read_line(channel, got, 30000)
        if not line:
            return
        kind, name, own, wall, calls, share = line.split("\t")
        table.append(_captures[0], capture.steps, kind, name, float(own), float(wall), int(calls), float(share))


def serve_control(arguments, channel):
    options = dict(line.partition("=")[::2] for line in arguments.decode().splitlines())
    try:
        capture = prepare(options)
    except Refused as error:
        channel.close(str(error), 1)
        return
    _probing.shared["capture"] = capture
    _probing.torch_at_step(capture.at_step)
    try:
        capture.wait(channel, lambda: len(capture.seen) == 2)
        if not capture.over and channel.write(b"ready %d %d %d\n" % (capture.seen[1], capture.seen[1] - capture.seen[0], _probing.milliseconds())):
            line, got = read_line(channel, b"", capture.limit_ms)
            if line is None:
                capture.end("nobody waits for it")
            else:
                capture.begin_at = int(line)
                capture.wait(channel, lambda: False)
        if not capture.over:
            channel.close("the steps take longer than that; the profiler stops by itself at the end of this one", 1)
        elif capture.error:
            channel.close(capture.error, 1)
        else:
            send_trace(capture, channel)
            keep_rows(capture, channel, b"")
    except KeyboardInterrupt:
        pass
    finally:
        capture.given_up = True
        if not capture.running:
            capture.end("nobody waits for it")
            capture.forget()
