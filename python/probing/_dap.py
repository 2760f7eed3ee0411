"""`probing debug`: the Debug Adapter Protocol, spoken inside the program over a channel of plain bytes.

The channel's thread reads requests; another one runs code while no thread is stopped, and ends when it is idle. Threads of the program wait for
the client only while they are stopped at a breakpoint: their messages go into the channel as far as it has room, else into a bounded list. The
program's code (evaluate, the texts of variables) runs in the stopped thread, one task at a time, and can be interrupted.

When a connection ends everything continues at once, and also when a client is silent for a limit while a thread is stopped.
"""
import sys

from _thread import RLock, allocate_lock, get_ident, start_new_thread
from posix import getpid

import _probing
from . import _streams
from ._dap_json import decode, encode
from ._by_type import full_name
from ._dap_values import class_name
from ._hooks import Refused, note
from ._places import canonical
from ._program import forget_thread, import_threading

MESSAGE_MAX = 16 << 20
OUTPUT_MAX = 1 << 20  # characters of output not read by the client: more is dropped
QUEUE_MAX = 64 << 20  # of answers: a client that reads none of them is disconnected
BUSY_MS, TICK_MS, REST_MS, LOOK_MS = 20, 200, 2000, 5000
FRAMES_MAX, APART_MAX = 1000, 200
WRITE_MAX, STUCK_MS = 1 << 16, 10000
DRAIN_S = 0.01

CAPABILITIES = {name: True for name in """
    supportsConfigurationDoneRequest supportsConditionalBreakpoints supportsHitConditionalBreakpoints supportsLogPoints supportsFunctionBreakpoints
    supportsEvaluateForHovers supportsSetVariable supportsSetExpression supportsCompletionsRequest supportsExceptionInfoRequest
    supportsDelayedStackTraceLoading supportsSingleThreadExecutionRequests supportsCancelRequest supportsBreakpointLocationsRequest
    supportsClipboardContext""".split()}
CAPABILITIES["completionTriggerCharacters"] = [".", "["]
CAPABILITIES["exceptionBreakpointFilters"] = [
    {"filter": "raised", "label": "Raised Exceptions", "default": False, "description": "Where an exception is raised in code of the program"},
    {"filter": "uncaught", "label": "Uncaught Exceptions", "default": True, "description": "Where an exception is about to end a thread"}]


class Writer:
    """Messages for the client. The thread that has one writes as much as the channel accepts at once; the reader writes the rest."""

    def __init__(self, session):
        self.session, self.channel = session, session.channel
        self.lock = RLock()  # a signal handler may interrupt it
        self.messages, self.size, self.left_out, self.sequence, self.moved = [], 0, 0, 0, 0

    def put(self, message, is_output=False):
        """Never waits for the client."""
        with self.lock:
            if is_output and self.size > OUTPUT_MAX:
                self.left_out += 1
                return
            if self.left_out and is_output:
                text, self.left_out = "note: %d messages were left out\n" % self.left_out, 0
                self.append({"type": "event", "event": "output", "body": {"category": "important", "output": text}})
            self.append(message)
            self.flush()

    def append(self, message):
        self.sequence += 1
        text = encode(dict(message, seq=self.sequence)).encode("utf-8", "backslashreplace")
        self.messages.append(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        self.size += len(self.messages[-1])

    def flush(self):
        with self.lock:
            while self.messages:
                first = self.messages[0]
                taken = self.channel.offer(first[:WRITE_MAX])
                if taken > 0:
                    self.moved = _probing.milliseconds()
                    self.size -= taken
                    if taken == len(first):
                        self.messages.pop(0)
                        continue
                    self.messages[0] = first[taken:]
                if taken < min(len(first), WRITE_MAX):
                    break

    def is_stuck(self):
        """Whether the client does not read any more."""
        self.flush()
        return bool(self.messages) and (_probing.milliseconds() - self.moved > STUCK_MS or self.size > QUEUE_MAX)

    def drain(self, turns):
        """Gives the client a moment to read the last messages: the program may end as soon as it continues."""
        wait = allocate_lock()
        wait.acquire()
        for _ in range(turns):
            self.flush()
            taken = not self.messages
            wait.acquire(True, DRAIN_S)
            if taken or self.channel.ended() is not None:
                return


class Task:
    """Something that runs code of the program, for a request."""

    def __init__(self, session, request, function, stop, limit_ms):
        self.session, self.request, self.function, self.stop, self.limit_ms = session, request, function, stop, limit_ms
        self.began, self.interrupted = None, False

    def __call__(self):
        self.began = _probing.milliseconds()
        answer, stop = self.session.answer, self.stop
        try:
            if stop is not None:
                stop.guard.typed = True
            body = self.function()
            if stop is not None:
                stop.guard.typed = False
        except BaseException as error:
            if stop is not None:
                stop.guard.typed = False
            if getpid() != self.session.pid:
                return
            text = "%s: %s" % (class_name(type(error)), error) if not isinstance(error, Refused) else str(error)
            if isinstance(error, KeyboardInterrupt) and self.interrupted:
                text = "it was interrupted" if self.limit_ms is None else "it took longer than %g s" % (self.limit_ms / 1000)
            answer(self.request, None, text)
        else:
            if getpid() != self.session.pid:
                return
            answer(self.request, body)
        finally:
            if getpid() == self.session.pid:
                self.session.task_done(self)


class Session:
    """One client. Requests are methods do_NAME(arguments), which give the body of the answer."""

    def __init__(self, channel, limit_ms, token):
        self.channel, self.limit_ms, self.token, self.pid = channel, limit_ms, token, getpid()
        self.admitted, self.over, self.last_input = not token, False, _probing.milliseconds()
        self.own = {get_ident()}
        self.writer = Writer(self)
        self.debugger = None
        self.lock, self.queue, self.running = allocate_lock(), [], None
        self.works, self.worker_tasks, self.make_console = False, [], None
        self.numbers, self.thread_numbers, self.last_number = {}, {}, 0  # number -> (stop, the object that it refers to)
        self.consoles, self.mappings, self.sources, self.apart = {}, [], {}, []
        self.place_numbers, self.first_line = 0, 1

    # --- the reader

    def serve(self):
        buffer = b""
        try:
            while not self.over:
                try:
                    data = self.channel.read(self.patience())
                except KeyboardInterrupt:
                    continue
                self.tick()
                if data is None:
                    continue
                if not data:
                    break
                self.last_input = _probing.milliseconds()
                buffer = self.take(buffer + data)
        finally:
            self.end()

    def patience(self):
        if self.writer.messages or self.running is not None:
            return BUSY_MS
        return TICK_MS if self.debugger is not None and (self.debugger.stops or self.debugger.logs()) else REST_MS

    def take(self, buffer):
        """Handles the complete messages; returns the rest."""
        while not self.over:
            head, found, rest = buffer.partition(b"\r\n\r\n")
            if not found and len(buffer) < 4096 and b"Content-Length: ".startswith(buffer[:16]):
                return buffer
            if not found and len(buffer) < 4096 and buffer.startswith(b"Content-Length: "):
                return buffer
            size = [line[15:].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            if not found or not size or not size[0].isdigit() or int(size[0]) > MESSAGE_MAX:
                self.channel.write(b"this is a debug adapter: connect with VS Code or another client of the Debug Adapter Protocol\n")
                self.over = True
                return b""
            if len(rest) < int(size[0]):
                return buffer
            text, buffer = rest[:int(size[0])], rest[int(size[0]):]
            try:
                message = decode(text.decode("utf-8", "replace"))
            except ValueError:
                message = None
            if isinstance(message, dict) and message.get("type") == "request":
                self.request(message)
        return b""

    def request(self, message):
        name, arguments = str(message.get("command")), message.get("arguments")
        arguments = arguments if isinstance(arguments, dict) else {}
        function = getattr(self, "do_" + name, None)
        try:
            if function is None:
                raise Refused("this debugger does not know the request %s" % name)
            if name not in ("initialize", "attach", "disconnect", "cancel") and self.debugger is None:
                raise Refused("attach first")
            body = function(message, arguments)
        except Refused as refused:
            self.answer(message, None, str(refused))
        except Exception as error:
            self.answer(message, None, "%s: %s" % (type(error).__name__, error))
        else:
            if body is not LATER:
                self.answer(message, body)
                self.after(name)

    def after(self, name):
        if name == "attach":
            self.event("initialized")
            self.event("process", {"name": (getattr(sys, "argv", None) or ["python"])[0], "systemProcessId": self.pid, "isLocalProcess": True,
                                   "startMethod": "attach", "pointerSize": 64})
        elif name == "disconnect":
            self.event("terminated")
            self.writer.drain(20)
            self.over = True

    def tick(self):
        now, running = _probing.milliseconds(), self.running
        if self.writer.is_stuck():
            self.channel.close("the client does not read", 1)
            self.over = True
        if running is not None and running.began is not None and running.limit_ms is not None and now - running.began > running.limit_ms:
            self.interrupt(running)
        if self.debugger is not None and self.debugger.stops and now - self.last_input > self.limit_ms:
            note("a debugger was sent away after %g s without a word, with a thread stopped" % (self.limit_ms / 1000))
            self.event("terminated")
            self.over = True

    def end(self):
        self.over = True
        if self.running is not None:
            self.interrupt(self.running)
        if self.debugger is not None:
            self.debugger.end()
        self.numbers.clear()
        self.consoles.clear()
        self.writer.drain(1)
        forget_thread()

    # --- answers and events; from any thread, without waiting

    def answer(self, request, body=None, error=None):
        message = {"type": "response", "request_seq": request.get("seq", 0), "command": request.get("command", ""), "success": error is None}
        if error is not None:
            message["message"] = error
            message["body"] = {"error": {"id": 1, "format": "{text}", "variables": {"text": error}, "showUser": False}}
        elif body is not None:
            message["body"] = body
        self.writer.put(message)

    def event(self, name, body=None):
        self.writer.put({"type": "event", "event": name, "body": body or {}}, name == "output")

    def output(self, category, text, frame=None):
        body = {"category": category, "output": text}
        if frame is not None:
            body.update(source=self.source_of(frame.f_code), line=frame.f_lineno or 0)
        self.event("output", body)

    def stopped(self, stop):
        body = {"reason": stop.reason, "threadId": self.thread_number(stop.ident), "allThreadsStopped": False, "preserveFocusHint": False}
        if stop.places:
            body["hitBreakpointIds"] = stop.places
        if stop.error is not None:
            body["text"] = full_name(type(stop.error[0]), "__main__")
            body["description"] = "Paused on exception" if stop.error[1] == "always" else "Paused on an exception that nobody catches"
        self.last_input = _probing.milliseconds()
        self.event("stopped", body)

    def resumed(self, stop):
        """In the thread that continues: forgets everything about its stop."""
        for number in [number for number, (owner, _) in list(self.numbers.items()) if owner is stop]:
            self.numbers.pop(number, None)
        for key in [key for key, console in list(self.consoles.items()) if key[0] == id(stop)]:
            self.consoles.pop(key, None)
        with self.lock:
            failed = [task for task in self.queue if task.stop is stop]
            self.queue = [task for task in self.queue if task.stop is not stop]
        for task in failed + stop.tasks:
            self.answer(task.request, None, "the thread runs")
            if self.running is task:
                self.task_done(task)
        _streams.sinks.pop(get_ident(), None)

    def moved(self, breakpoint, file):
        self.event("breakpoint", {"reason": "changed", "breakpoint": self.breakpoint_body(breakpoint, file)})

    # --- tasks

    def later(self, request, function, stop, limit_ms=None):
        """Has a thread run it, after the tasks before it."""
        if self.make_console is None:  # not earlier, so that the first stop is reported sooner; in this thread, never in one of the program
            import linecache  # noqa: F401
            from ._dap_console import Console

            self.make_console = Console
        with self.lock:
            self.queue.append(Task(self, request, function, stop, limit_ms))
        self.next_task()
        return LATER

    def next_task(self):
        with self.lock:
            if self.running is not None or not self.queue:
                return
            task = self.running = self.queue.pop(0)
        if task.stop is None:
            self.run_apart(task)
        elif task.stop.going:
            self.answer(task.request, None, "the thread runs")
            self.task_done(task)
        else:
            task.stop.post(task)

    def task_done(self, task):
        with self.lock:
            if self.running is task:
                self.running = None
        self.next_task()

    def run_apart(self, task):
        """In a thread for code that belongs to no stop."""
        with self.lock:
            self.worker_tasks.append(task)
            begins = not self.works
            self.works = True
        if begins:
            start_new_thread(self.work, ())

    def work(self):
        self.own.add(get_ident())
        while True:
            with self.lock:
                task = self.worker_tasks.pop(0) if self.worker_tasks else None
                self.works = task is not None
            if task is None:
                break
            task()
        self.own.discard(get_ident())
        forget_thread()

    def interrupt(self, task):
        task.interrupted = True
        self.channel.interrupt()

    # --- numbers

    def number_for(self, stop, thing):
        self.last_number += 1
        self.numbers[self.last_number] = stop, thing
        if stop is None:  # it never ends: only the last ones are kept
            self.apart.append(self.last_number)
            if len(self.apart) > APART_MAX:
                self.numbers.pop(self.apart.pop(0), None)
        return self.last_number

    def thing_of(self, number, kind):
        stop, thing = self.numbers.get(number, (None, None))
        if not isinstance(thing, kind):
            raise Refused("%r is a number of no %s, or of a thread that went on" % (number, kind.__name__.lower()))
        return stop, thing

    def thread_number(self, ident):
        number = self.thread_numbers.get(ident)
        if number is None:
            number = self.thread_numbers[ident] = 1 if ident == _probing.main_ident() else len(self.thread_numbers) + 2
        return number

    def ident_of(self, arguments):
        for ident, number in self.thread_numbers.items():
            if number == arguments.get("threadId"):
                return ident
        raise Refused("there is no thread %r" % (arguments.get("threadId"),))

    def stop_of(self, arguments):
        stop = self.debugger.stops.get(self.ident_of(arguments))
        if stop is None or stop.going:
            raise Refused("the thread runs")
        return stop

    def console_of(self, stop, frame):
        key = id(stop), id(frame)
        console = self.consoles.get(key)
        if console is None:
            console = self.consoles[key] = self.make_console(self, frame, stop is not None and stop.is_ended(frame))
        return console

    # --- files

    def to_remote(self, path):
        for local, remote in self.mappings:
            if path == local or path.startswith(local.rstrip("/\\") + ("\\" if "\\" in local else "/")):
                return remote.rstrip("/") + path[len(local.rstrip("/\\")):].replace("\\", "/")
        return path

    def to_local(self, path):
        for local, remote in self.mappings:
            if path == remote or path.startswith(remote.rstrip("/") + "/"):
                rest = path[len(remote.rstrip("/")):]
                return local.rstrip("/\\") + (rest.replace("/", "\\") if "\\" in local else rest)
        return path

    def source_of(self, code):
        name = code.co_filename
        if name.startswith("<"):
            number = self.sources.setdefault(name, len(self.sources) + 1)
            return {"name": name, "sourceReference": number}
        path = self.to_local(canonical(name))
        return {"name": path.rpartition("/")[2], "path": path}

    def breakpoint_body(self, breakpoint, file):
        line = breakpoint.line()
        body = {"id": breakpoint.number, "verified": line > 0, "line": (line or breakpoint.wanted) - 1 + self.first_line}
        if not line:
            body["message"] = "no code at that line is loaded yet"
            body["reason"] = "pending"
        if file is not None:
            body["source"] = {"path": self.to_local(file)}
        return body


LATER = object()


def serve_client(arguments, channel):
    """A connection to the address that `probing debug` named. The arguments: LIMIT_MS TOKEN."""
    limit, _, token = arguments.partition(b" ")
    from . import _dap_requests

    import_threading()  # in this thread, never in one of the program
    _dap_requests.Requests(channel, int(limit), token).serve()
