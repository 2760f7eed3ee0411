"""The prompt inside the process: `probing repl`, and the same in plain bytes for nc and telnet.

The agent starts a thread for each client and calls serve with a channel (Channel in _channel.py). Code that is entered runs in that thread,
so the program's own threads go on.
Names are found as `probing eval` finds them (_remote.py); what the code prints goes to this client alone. Works on every CPython from 3.6 on.

A tool speaks in packets (src/control/packet.h): a letter, the length of what follows, a number that the answer repeats, the text.
    x  run it -> 1 2 3 4 (what it prints, to stdout and stderr; values; tracebacks), at last d with a status and the next prompt
    w  is this whole? -> w with 0 or 1          c  complete this -> c with the place of the word in bytes, and words
"""
import sys

from _thread import allocate_lock, get_ident
from posix import getpid

import _probing
from . import _helpers, _names, _remote, _streams
from ._errors import forget_lines, format_error, remember_lines
from ._names import OWN_NAMES
from ._program import forget_thread, import_threading, leave_before_the_end, main_globals
from ._remote import CHUNK, ONLY_AST
from ._streams import ERR, OUT, TRACEBACK

TOP_LEVEL_AWAIT = 0x2000  # a flag of compile from 3.8 on
CO_COROUTINE, CO_ASYNC_GENERATOR = 0x80, 0x200
QUEUE_MAX = 1 << 20  # characters printed by other threads that the client has not read
WORDS_MAX = 2000
INPUT_MAX = 1 << 20
HEADER, NUMBER = 5, 4
TURN_MS = 100
TOKEN_MS = 30000
IDLE = object()
KEYWORDS = """False None True and as assert async await break class continue def del elif else except finally for from global if import in is
    lambda nonlocal not or pass raise return try while with yield""".split()
REACHED = frozenset(["Expression", "Name", "Attribute", "Subscript", "Constant", "Num", "Str", "Index", "Load", "UnaryOp", "USub"])

CALL = compile("function(*arguments)", "<probing>", "eval", 0, True)

_inputs = _probing.shared.setdefault("inputs", [0])  # counts inputs: each is a file name in tracebacks


class Names(_names.Names):
    """The globals of everything that one client enters: like those of eval, but kept. An assignment to an additional name is valid at this prompt
    only, and so is `_`, the last shown value: a program may have a variable of that name."""

    def __init__(self, helpers):
        self.helpers = helpers
        _names.Names.__init__(self, False, None)

    def lent(self):
        return _names.Names.lent(self).union(self.helpers)

    def lend(self, name):
        try:
            return _names.Names.lend(self, name)
        except KeyError:
            return self.helpers[name]

    def __setitem__(self, name, value):
        if name == "_":
            self.keep(name, value)
        else:
            _names.Names.__setitem__(self, name, value)

    def keep(self, name, value):
        self.kept.add(name)
        dict.__setitem__(self, name, value)

    def is_own(self, name):
        # Between two inputs the dict has nothing else: a function that was defined here may be called by the program then.
        return name in OWN_NAMES or name in self.kept or (name in self.first and _names.Names.is_own(self, name))

    def begin(self, copy, own_print):
        """Before an input. copy: its code reads the dict itself."""
        self.own_print, self.known_at = own_print, None
        if copy:
            first = {name: self.lend(name) for name in self.lent() if self.can_lend(name)}
            first.update(main_globals())
            first.update((name, self.first[name]) for name in OWN_NAMES)
            for name, value in first.items():
                if name not in self.kept:
                    dict.__setitem__(self, name, value)
            self.first = first

    def end(self):
        """After it: stores in __main__ what `global` statements did without __setitem__."""
        main = main_globals()
        self.own_print = None
        for name, value in list(dict.items(self)):
            if name not in self.kept and name not in OWN_NAMES and value is not self.first.get(name, self):
                main[name] = value
        for name in list(self.first):
            if not dict.__contains__(self, name) and name not in self.kept:
                main.pop(name, None)
        self.first = {name: self.first[name] for name in OWN_NAMES}
        for name in list(dict.keys(self)):
            if name not in self.kept and name not in OWN_NAMES:
                dict.pop(self, name, None)


class Input(_remote._Request):
    """One input: its code, and its output for the client."""

    def __init__(self, session, source):
        _inputs[0] += 1
        _remote._Request.__init__(self, 0, source, "<input %d>" % _inputs[0])
        self.session, self.steps = session, []

    def send(self, stream, text):
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        self.session.send(stream, text)

    def prepare(self, names):
        """Compiles it statement by statement, since the value of each expression is shown."""
        if sys.version_info < (3, 8) and self.source.lstrip().startswith("await "):
            return self.prepare_await(names)
        tree = compile(self.source, self.filename, "exec", ONLY_AST | await_flag(), True)
        looks, inside, streams, self.defines = _remote._survey(tree)
        self.only_looks = looks and not ("print" in main_globals() and "print" in self.source)
        self.names = names
        names.begin(inside, None if streams else self.print)
        if not self.only_looks:
            leave_before_the_end()
            import_threading()
            _remote.make_importable(self.source, tree)
            self.replace_streams()
            remember_lines(self)
        run = []
        for statement in tree.body:
            if type(statement).__name__ == "Expr":
                flush_statements(self, run)
                expression = compile("0", self.filename, "eval", ONLY_AST, True)
                expression.body = statement.value
                self.steps.append((compile(expression, self.filename, "eval", await_flag(), True), True))
            else:
                run.append(statement)
        flush_statements(self, run)

    def prepare_await(self, names):
        """Before 3.8 await is allowed in functions only: the awaited expression becomes the value of one."""
        module = compile("async def awaited():\n return (\n%s\n)" % self.source, self.filename, "exec", 0, True)
        self.names = names
        names.begin(True, self.print)
        self.replace_streams()
        self.steps.append(([part for part in module.co_consts if hasattr(part, "co_flags")][0], True))

    def finish(self):
        try:
            if self.names is not None:
                self.names.end()
        finally:
            self.ended = True
            self.steps = self.names = None
            _streams.sinks.pop(get_ident(), None)
            if self.streams_replaced:
                _streams.uninstall(self)
            if not self.defines:
                forget_lines(self)


def flush_statements(given, run):
    if run:
        module = compile("", given.filename, "exec", ONLY_AST, True)
        module.body = list(run)
        given.steps.append((compile(module, given.filename, "exec", await_flag(), True), False))
        del run[:]


def is_ours(trace):
    code = trace.tb_frame.f_code
    return code.co_filename.startswith("<probing>") or code is CALL


def await_flag():
    return TOP_LEVEL_AWAIT if sys.version_info >= (3, 8) else 0


class Session:
    """One client: its names, and its inputs, one after the other. A front (Messages, Lines) reads the text and sends the output."""

    prompt, more = ">>> ", "... "
    kept_because = "a local of running code, or a name lent by probing"

    def __init__(self, channel):
        self.channel = channel
        self.ident, self.pid = get_ident(), getpid()
        self.over, self.status = False, 0
        self.queue, self.queued, self.lock = [], 0, allocate_lock()
        self.names = self.make_names()
        self.noted = set()
        self.front = None

    def make_names(self):
        return Names(_helpers.make(self))

    def greeting(self):
        return "Python %s in process %d; help() explains\n" % (sys.version.split()[0], getpid())

    def help(self):
        return _helpers.HELP

    def asks(self):
        """Whether it is the client's turn after an input."""
        return True

    # --- output

    def send(self, stream, text):
        """From the session's thread: waits for the client. From others, which are the program's: never."""
        if get_ident() == self.ident:
            self.flush_queue()
            for at in range(0, len(text), CHUNK):
                if not self.front.output(stream, text[at:at + CHUNK]):
                    return
            return
        with self.lock:
            if self.queued <= QUEUE_MAX:
                self.queued += len(text)
                self.queue.append((stream, text if self.queued <= QUEUE_MAX else "\nnote: more was printed than the client takes\n"))

    def flush_queue(self):
        with self.lock:
            taken, self.queue, self.queued = self.queue, [], 0
        for stream, text in taken:
            self.front.output(stream, text)

    # --- what is entered

    def run(self, source):
        """0: it ran; 1: it raised, and the traceback was sent."""
        given, raised = Input(self, source), None
        _streams.sinks[get_ident()] = given
        self.runs_typed(True)
        try:
            try:
                given.prepare(self.names)
                for code, shown in given.steps:
                    value = self.evaluate(given, code)
                    if shown and value is not None:
                        self.call(_remote.show, given, value)
                        self.names.keep("_", value)
                    value = None
            except BaseException as error:
                raised = error
            self.runs_typed(False)
            return self.conclude(given, raised)
        finally:
            self.runs_typed(False)
            raised = None
            given.finish()

    def runs_typed(self, runs):
        """In the main thread of the program: whether its signals interrupt what runs (_signals.py)."""

    def call(self, function, *arguments):
        """Calls a function that may take for ever: the client can interrupt it."""
        names = {"function": function, "arguments": arguments, "__builtins__": {}}
        return self.channel.evaluate(CALL, names, names)

    def evaluate(self, given, code):
        if not code.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR):
            return self.channel.evaluate(code, self.names, self.names)
        loop = _helpers.running_loop()
        if loop is None:
            raise RuntimeError("there is no running event loop in this process that could await")
        awaited = eval(code, self.names) if code.co_name == "<module>" else type(await_in)(code, self.names)()
        return self.call(await_in, loop, self, given, awaited)

    def conclude(self, given, raised):
        if getpid() != self.pid:  # a child forked by the code: none of this belongs to it
            self.over = True
            return 0
        if raised is not None and self.ends(raised):
            return self.status
        if raised is not None:
            trace = raised.__traceback__
            while trace is not None and is_ours(trace):
                trace = trace.tb_next
            self.send(TRACEBACK, format_error(given, type(raised), raised, trace))
            if isinstance(raised, NameError) and "free-threading" in sys.version:
                self.send(ERR, "note: a free-threaded Python has no moment at which locals of running code could be read\n")
        kept = sorted(self.names.kept - self.noted - {"_"})
        if kept:
            self.noted.update(kept)
            self.send(ERR, "note: %s: %s; the assignment holds at this prompt only\n" % (", ".join(kept), self.kept_because))
        self.flush_queue()
        return 0 if raised is None else 1

    def ends(self, raised):
        """exit() and sys.exit() end the prompt, not the program."""
        if not isinstance(raised, SystemExit):
            return False
        code, self.over = raised.code, True
        if code is not None and not isinstance(code, int):
            self.send(ERR, "%s\n" % (code,))
        self.status = code & 255 if isinstance(code, int) else 0 if code is None else 1
        return True

    # --- completion

    def complete(self, text):
        """(start of the word, possible completions)."""
        at = len(text)
        while at > 0 and (text[at - 1].isalnum() or text[at - 1] in "_."):
            at -= 1
        word = text[at:]
        if "." in word or (at > 0 and text[at - 1] in ")]"):
            path, _, last = word.rpartition(".")
            start = at + len(path) + 1 if "." in word else len(text)
            found = self.attributes(text[expression_begin(text, start - 1):start - 1]) if "." in word else []
            return start, [name for name in found if name.startswith(last) and (last or not name.startswith("_"))]
        line = text[text.rfind("\n") + 1:].split()
        if line[:1] in (["import"], ["from"]) and len(line) <= 2:
            found = {name.partition(".")[0] for name in list(sys.modules)}
        else:
            found = set(KEYWORDS).union(self.names.keys(), dir(self.names["__builtins__"]) if not isinstance(
                self.names["__builtins__"], dict) else self.names["__builtins__"])
        return at, sorted(name for name in found if isinstance(name, str) and name.startswith(word) and (word or name[0] != "_"))

    def attributes(self, expression):
        tree = compile(expression.strip(), "<completion>", "eval", ONLY_AST, True)
        todo = [tree]
        while todo:
            node = todo.pop()
            if hasattr(node, "_fields"):
                if type(node).__name__ not in REACHED:
                    return []
                todo.extend(getattr(node, field, None) for field in node._fields)
        return sorted(name for name in set(dir(eval(compile(tree, "<completion>", "eval", 0, True), self.names))) if isinstance(name, str))

    def answer_completion(self, text):
        """Exceptions and output of the program's __dir__ or properties are dropped."""
        given = Input(self, "")
        given.send = lambda stream, words: None
        _streams.sinks[get_ident()] = given
        result = 0, []
        self.runs_typed(True)
        try:
            given.replace_streams()
            result = self.call(self.complete, text)
        except BaseException:
            pass
        finally:
            self.runs_typed(False)
            given.finish()
        return result[0], result[1][:WORDS_MAX]


def expression_begin(text, end):
    """Where the names, attributes and subscripts begin that end there."""
    at, depth = end, 0
    while at > 0:
        char = text[at - 1]
        if char == "]":
            depth += 1
        elif char == "[":
            if depth == 0:
                break
            depth -= 1
        elif depth == 0 and not (char.isalnum() or char in "_."):
            break
        at -= 1
    return at


def is_open(text):
    """Whether the text ends inside a bracket or a string, or with a backslash."""
    at, depth = 0, 0
    while at < len(text):
        char = text[at]
        if char in "\"'":
            quote = char * 3 if text.startswith(char * 3, at) else char
            at += len(quote)
            while at < len(text) and not text.startswith(quote, at):
                if len(quote) == 1 and text[at] == "\n":
                    return False  # an error, which the compiler names
                at += 2 if text[at] == "\\" else 1
            if at >= len(text):
                return len(quote) == 3 or text.endswith("\\")
            at += len(quote)
            continue
        if char == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        depth += (char in "([{") - (char in ")]}")
        at += 1
    return depth > 0 or text.endswith("\\")


def is_whole(text):
    """Whether the input is complete: a block ends with an empty line."""
    if not text.strip():
        return True
    if is_open(text):
        return False
    last = text[text.rfind("\n") + 1:]
    if not last.strip():
        return True
    try:
        tree = compile(text, "<input>", "exec", ONLY_AST | await_flag(), True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return last[0] not in " \t@" and not last.split("#")[0].rstrip().endswith(":")
    return not tree.body or not hasattr(tree.body[-1], "body")


class Steps:
    """A coroutine with the output of an input, in whichever thread the event loop runs."""

    def __init__(self, coroutine, given):
        self.coroutine, self.given = coroutine, given

    def step(self, function, *arguments):
        ident = get_ident()
        before = _streams.sinks.get(ident)
        _streams.sinks[ident] = self.given
        try:
            return function(*arguments)
        finally:
            if before is None:
                _streams.sinks.pop(ident, None)
            else:
                _streams.sinks[ident] = before

    def send(self, value):
        return self.step(self.coroutine.send, value)

    def throw(self, *error):
        return self.step(self.coroutine.throw, *error)

    def close(self):
        return self.coroutine.close()

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)


def await_in(loop, session, given, coroutine):
    """Runs it as a task of the program's loop, and waits here. An interrupt cancels the task."""
    done, result = allocate_lock(), []
    done.acquire()

    def finished(task):
        result.append(task)
        done.release()

    def begin():
        try:
            task = loop.create_task(drive(Steps(coroutine, given)))
        except BaseException as error:
            result.append(error)
            done.release()
            return
        tasks.append(task)
        task.add_done_callback(finished)

    tasks = []
    loop.call_soon_threadsafe(begin)
    try:
        while not done.acquire(True, 0.05):
            session.flush_queue()
            if not loop.is_running():
                raise RuntimeError("the event loop has stopped")
    except BaseException:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        raise
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0].result()


async def drive(steps):
    return await steps


class Messages:
    """The front for tools."""

    def __init__(self, session):
        self.session, self.channel = session, session.channel
        self.buffer = b""

    def put(self, letter, number, data):
        return self.channel.write(letter + (NUMBER + len(data)).to_bytes(4, "little") + number.to_bytes(NUMBER, "little") + data)

    def output(self, stream, text):
        return self.put(b"%d" % stream, 0, text.encode("utf-8", "backslashreplace"))

    def next(self):
        """(letter, number, text); None at the end."""
        while True:
            if len(self.buffer) >= HEADER:
                size = int.from_bytes(self.buffer[1:HEADER], "little")
                if not NUMBER <= size <= NUMBER + INPUT_MAX:
                    return None
                if len(self.buffer) >= HEADER + size:
                    letter, number = self.buffer[:1], int.from_bytes(self.buffer[HEADER:HEADER + NUMBER], "little")
                    text = self.buffer[HEADER + NUMBER:HEADER + size].decode("utf-8", "replace")
                    self.buffer = self.buffer[HEADER + size:]
                    return letter, number, text
            try:
                data = self.channel.read()
            except KeyboardInterrupt:  # nothing runs
                continue
            if not data:
                return None
            self.buffer += data

    def begin(self):
        self.put(b"d", 0, b"\0" + self.session.prompt.encode("utf-8", "replace"))

    def turn(self):
        """Handles one message; False at the end."""
        session, message = self.session, self.next()
        if message is None:
            return False
        letter, number, text = message
        if letter == b"x":
            status = session.run(text)
            if getpid() == session.pid:
                self.put(b"e" if session.over else b"d", number, bytes([status]) + session.prompt.encode("utf-8", "replace"))
        elif letter == b"w":
            self.put(b"w", number, b"1" if is_whole(text) else b"0")
        elif letter == b"c":
            at, words = session.answer_completion(text)
            lines = [str(len(text[:at].encode("utf-8", "replace")))] + words
            self.put(b"c", number, "\n".join(lines).encode("utf-8", "replace"))
        return not session.over


class Lines:
    """The front for nc and telnet: lines of text, a prompt before each."""

    idle = None  # a function that is called while nothing comes

    def __init__(self, session):
        self.session, self.channel = session, session.channel
        self.buffer, self.ended, self.text = b"", False, ""

    def output(self, stream, text):
        return self.channel.write(text.encode("utf-8", "backslashreplace"))

    def line(self):
        """The next line without its end; None: no more, IDLE: the session's limit has passed."""
        waited = 0
        while b"\n" not in self.buffer and not self.ended:
            try:
                data = self.channel.read(-1 if self.idle is None else TURN_MS)
            except KeyboardInterrupt:  # Ctrl-C of a telnet: the typed text is dropped
                self.buffer = b""
                self.text = ""
                self.output(OUT, "\n" + self.session.prompt)
                continue
            if data is None:
                waited += TURN_MS
                if self.idle(waited):
                    return IDLE
                continue
            waited = 0
            if not data or len(self.buffer) > INPUT_MAX:
                self.ended = True
                break
            self.buffer += data
        if not self.buffer:
            return None
        line, _, self.buffer = self.buffer.partition(b"\n")
        if b"\x04" in line:  # Ctrl-D of a telnet in character mode
            self.ended, self.buffer = True, b""
            return None
        return line.rstrip(b"\r\0").decode("utf-8", "replace")

    def begin(self):
        self.output(OUT, self.session.greeting() + self.session.prompt)

    def turn(self):
        """Handles one line; False at the end."""
        session, line = self.session, self.line()
        if line is IDLE:
            return True
        if line is None:
            if self.text.strip():
                session.run(self.text)
            return False
        self.text = self.text + "\n" + line if self.text else line
        if is_whole(self.text):
            text, self.text = self.text, ""
            if text.strip():
                session.run(text)
        if not session.over and getpid() == session.pid and session.asks():
            self.ask()
        return not session.over

    def ask(self):
        self.output(OUT, self.session.more if self.text else self.session.prompt)


def talk(session, plain, typed=b""):
    """Serves a client until it leaves."""
    session.front = Lines(session) if plain else Messages(session)
    session.front.buffer = typed
    try:
        session.front.begin()
        while session.front.turn():
            pass
    finally:
        session.names = None  # shown values belong to the program and must not be kept
        _streams.sinks.pop(get_ident(), None)
        forget_thread()


def serve_tool(arguments, channel):
    """`probing repl`."""
    talk(Session(channel), False)


def serve_plain(arguments, channel):
    """A connection to the address of `probing listen`."""
    typed = admit(arguments, channel)
    if typed is not None:
        talk(Session(channel), True, typed)


def admit(token, channel):
    """Asks for the listener's token, if it has one. Returns the text typed after it; None: it was wrong."""
    if not token:
        return b""
    from _operator import _compare_digest

    received, end = b"", _probing.milliseconds() + TOKEN_MS
    channel.write(b"token: ")
    while b"\n" not in received and len(received) < 1024:
        try:
            data = channel.read(max(0, end - _probing.milliseconds()))
        except KeyboardInterrupt:
            return None
        if not data:
            return None
        received += data
    word, _, typed = received.partition(b"\n")
    if _compare_digest(word.rstrip(b"\r\0"), token):
        return typed
    wait = allocate_lock()  # makes guessing slow
    wait.acquire()
    wait.acquire(True, 1)
    channel.write(b"that is not the token\n")
    return None
