"""`probing break`: breakpoints and log points, by place or by the change of a variable. Places are those of _places.py.

A hit is a row of python.break_hits. At a breakpoint the thread is also held (_stops.py).
"""
import _probing
from . import _hooks, _places, _trace, _values, _watch
from ._by_type import message_of, name_of
from ._expressions import Names, compile_expression, parse_message, render
from ._hooks import MONITORED, Nothing, Refused
from ._own import make_table

OLD_MS = 60000  # lifetime of places before 3.12
RATE = 1000


class Break:
    """One breakpoint or log point."""

    def __init__(self, number, options):
        self.number, self.limit_ms, self.name = number, int(options["limit_ms"]), options.get("as")
        self.has_clients = "no_listen" not in options
        self.condition_text = options.get("condition", "").strip()
        self.condition = compile_expression(self.condition_text) if self.condition_text else None
        self.message = parse_message(options["log"]) if "log" in options else None
        self.rate = _watch.Rate(RATE)
        self.hits = self.errors = 0
        self.table = make_table("python.break_hits")
        duration = int(options.get("duration_ms", 0 if MONITORED else OLD_MS))
        until = _probing.milliseconds() + duration if duration else 0
        self.duration, self.watch, self.holder = duration, None, None
        if self.stops():  # not in the program's thread: loading it takes a while
            from . import _stops

            self.holder = _stops
        if "on_change" in options:
            self.watch = _watch.Watch(options["on_change"], RATE, until, self.changed)
            self.place, self.text = self.watch.place, "a change of %s" % options["on_change"]
        else:
            self.place = _places.FilePlace(*parse_place(options["place"]), hit=self.hit, until=until, moved=self.name_place)
            self.name_place(self.place)

    def stops(self):
        return self.message is None

    def name_place(self, place):
        if place.line:
            self.text = "%s:%d %s" % (place.codes[0].co_filename, place.line, place.codes[0].co_name)
        else:
            self.text = "%s:%d once it is loaded" % (place.path, place.wanted)

    def is_live(self):
        return all_breaks().get(self.number) is self

    # --- in threads of the program

    def hit(self, frame, line):
        self.meet(frame, line, None)

    def changed(self, frame, change):
        by = " by %s" % change.operation if change.operation else ""
        self.meet(frame, change.line, "%s: %s -> %s%s" % (self.watch.text, change.old or "nothing", change.new, by))

    def meet(self, frame, line, message):
        if not self.is_live():
            return
        error, wanted = None, True
        try:
            names = Names(frame) if self.condition is not None or self.message else None
            wanted = self.condition is None or bool(eval(self.condition, names))
            if wanted and self.message is not None:
                message = render(self.message, names)
        except Exception as raised:
            self.errors += 1
            error = "%s: %s" % (name_of(type(raised)), message_of(raised, lambda value: _values.text_of(_values.plain(value))))
        names = None
        if not wanted:
            return
        self.hits += 1
        stop = self.holder.claim(self, frame) if self.holder is not None and error is None else None
        self.record(frame, line, stop is not None, message, error)
        if stop is not None:
            stop.interact(frame)

    def record(self, frame, line, stopped, message, error):
        ok, note = self.rate.take()
        if ok or stopped:
            code = frame.f_code
            self.table.append(self.number, code.co_filename, line, code.co_name, _probing.thread_id(), stopped, message, error, note)

    # --- in threads of the agent

    def describe(self):
        return "%d  %s%s%s: %d hit%s%s%s" % (
            self.number, "stops at " if self.stops() else "logs ", self.text, " if %s" % self.condition_text if self.condition_text else "", self.hits,
            "" if self.hits == 1 else "s", ", %d with an error" % self.errors if self.errors else "", ", a thread is held there" if self.holds() else "")

    def holds(self):
        return self.holder is not None and self.is_live() and self.holder.holds(self)

    def remove(self):
        all_breaks().pop(self.number, None)
        _places.remove(self.place)


def parse_place(text):
    path, _, line = text.rpartition(":")
    if not path or not line.isdigit():
        raise Refused("a place is FILE:LINE, not %r" % text)
    return path, int(line)


# --- in threads of the agent

def all_breaks():
    return _probing.shared.setdefault("breaks", {})


def end_breaks(now_ms):
    for each in list(all_breaks().values()):
        if each.place.until and now_ms >= each.place.until:
            each.remove()
    return _hooks.earliest(each.place for each in list(all_breaks().values()))


def start(options):
    numbers = _probing.shared.setdefault("break numbers", [0])
    numbers[0] += 1
    broken = Break(numbers[0], options)
    all_breaks()[broken.number] = broken
    try:
        note = _places.add(broken.place)
    except BaseException:
        broken.remove()
        raise
    _hooks.at_end(end_breaks)
    return "\n".join([broken.describe().rpartition(":")[0] + (", for %g s" % (broken.duration / 1000) if broken.duration else "")] + ([note] if note else []))


def stop(names):
    chosen = [each for each in list(all_breaks().values()) if not names or str(each.number) in names or each.name in names
              or any(each.text.partition(" ")[0].endswith(name) or each.watch and each.watch.text == name for name in names)]
    if not chosen:
        raise Nothing("there is no such breakpoint" if names else "there are no breakpoints")
    for each in chosen:
        each.remove()
        if each.holder is not None:
            each.holder.let_go(each)
    return "\n".join(each.describe() for each in chosen)


def listing():
    for each in list(all_breaks().values()):
        if each.holds() and not each.has_clients:
            each.holder.keep(each)  # this look is how somebody looks after it
    return "\n".join(each.describe() for each in list(all_breaks().values())) or "there are no breakpoints"


def serve_control(arguments, channel):
    """`probing break`: lines of NAME=VALUE; the answer is "ok " and lines for a person."""
    _watch.answer(arguments, channel, {"start": lambda options, names: start(options), "stop": lambda options, names: stop(names),
                                       "list": lambda options, names: listing(),
                                       "rows": lambda options, names: _trace.table(
                                           (each.number, "stop" if each.stops() else "log", each.text, each.condition_text or None, each.hits, each.errors)
                                           for each in list(all_breaks().values()))})
