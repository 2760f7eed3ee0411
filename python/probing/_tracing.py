"""The events of _hooks.py before Python 3.12, which has none for single functions: a trace function in the main thread and in threads that begin
later.

It is called at every call, and stays only with functions that are hooked or that a listener follows. A thread with a trace function of its own (a
debugger, coverage) keeps it and is not traced. A frame that kept a trace function after tracing ended would up to 3.9 have the wrong line in
tracebacks: at the end they are removed from all frames, also those of generators.
"""
import sys

from _thread import allocate_lock, get_ident
from posix import getpid
from time import perf_counter, sleep

import _probing
from . import _helpers, _hooks
from ._hooks import GENERATOR, OWN_TRACE, Refused, ask, here, is_on, is_outermost, is_own, is_own_code, tell
from ._program import import_threading, is_of_program

MAIN_MS, PLAIN_MAX = 2000, 10000
MEASURE_S, ROUND, ROUNDS = 0.2, 100, 5
RETURN_VALUE, YIELD_VALUE, YIELD_FROM, RESUME = 83, 86, 72, 151  # instructions up to 3.11; the opcode module would load a library


def in_thread(frame, event, argument):
    """The trace function of a thread: called at every call."""
    if _probing is None or _probing.shared is None:
        return None  # the interpreter ends, and clears its modules while weak references still call functions
    now, code = here(), frame.f_code
    if now is None or not is_on(now):
        leave_thread()
        return None
    try:
        counter = now.get("counter")
        if counter is not None:
            counter[0] += 1
        caller = now["hooked"].get(id(frame.f_back.f_code)) if frame.f_back is not None else None
        if caller is not None and caller.callees is not None:
            caller.callees(code)
        if now["listeners"]:
            now["threads"].add(get_ident())
            if now["plain"].get(id(code)) is not code:
                meet(now, frame, code)
        follows = now["followers"] and is_followed(now, frame, get_ident()) and not is_own_code(code)
        hooked = now["hooked"].get(id(code))
        if hooked is None and not follows:
            return None
        if hooked is not None and hooked.calls:
            (_probing.call_resumes if is_resumed(frame) else _probing.call_starts)(code, 0, None, frame)
        want_lines(frame, sys.gettrace() is in_thread, follows or bool(hooked.places))
        keep_generator(now, frame)
    except BaseException as error:
        if is_of_program(error):
            raise
    return in_function


def meet(now, frame, code):
    """Tells listeners of a function that begins. If none of them wants it again it is plain."""
    again = False
    if not is_own_code(code):
        again = ask(now, "finds", code) if "finds" in now["wide"] else False
        if "starts" in now["wide"]:
            again = ask(now, "starts", frame) or again
    if not again:
        if len(now["plain"]) >= PLAIN_MAX:
            now["plain"].clear()
        now["plain"][id(code)] = code


def is_followed(now, frame, ident):
    for each in now["followers"]:
        if each.traces(frame, ident):
            return True
    return False


def want_lines(frame, has_say, wanted):
    """Whether its trace function wants lines. A step of a prompt (_pause.py) wants them in any case."""
    if sys.version_info >= (3, 7) and has_say:
        frame.f_trace_lines = wanted


def keep_generator(now, frame):
    if frame.f_code.co_flags & GENERATOR:
        now["generators"][id(frame)] = frame


def leave_thread(frame=None):
    """Drops its trace function, if nobody wants it meanwhile."""
    now = here()
    if sys.gettrace() is in_thread and (now is None or not is_on(now)):
        sys.settrace(None)
        frame = sys._getframe(1)
        while frame is not None:
            unmark(frame)
            frame = frame.f_back


def unmark(frame):
    if frame.f_trace is in_function:
        frame.f_trace = None


def reach_thread(now, ident):
    """Functions that the thread is in get the trace function, if somebody wants their events."""
    for frame in _helpers.frames_of(ident):
        hooked = now["hooked"].get(id(frame.f_code))
        if (hooked is not None and hooked.places or is_followed(now, frame, ident)) and not is_own_code(frame.f_code):
            if frame.f_trace is None:
                frame.f_trace = in_function
            if frame.f_trace is in_function:
                want_lines(frame, True, True)
                keep_generator(now, frame)


def reach(now):
    for ident in list(now["threads"]):
        reach_thread(now, ident)


def in_function(frame, event, argument):
    """The trace function of a function that is hooked or followed."""
    if _probing is None or _probing.shared is None:
        return None
    now = here()
    hooked = now and now["hooked"].get(id(frame.f_code))
    if now is None or (hooked is None and not now["wide"]):
        unmark(frame)
        return None
    if event == "line":
        for place in hooked.places if hooked is not None else ():
            if place.line in (None, frame.f_lineno):
                tell(place.hit, frame, frame.f_lineno)
        if "lines" in now["wide"]:
            ask(now, "line", frame, frame.f_lineno)
    elif event == "exception":
        if "raises" in now["wide"]:
            ask(now, "raises", frame, argument[1], argument[2])
        # For other frames it would keep alive objects that the program has released.
        error = (argument[1], argument[2]) if "unwinds" in now["wide"] and is_outermost(frame) else None
        if error is not None or (hooked is not None and hooked.calls):
            now["raised"][id(frame)] = argument[0], frame.f_lasti, error
    elif event == "return":
        leave(now, hooked, frame, argument)
    return frame.f_trace  # a place may have started to step, and set another one


def leave(now, hooked, frame, value):
    """A function returns, yields or is left by an exception: a trace function gets one event for all three."""
    raised, at, error = now["raised"].pop(id(frame), (Exception, None, None))
    how = how_left(frame)
    if how == "yields" and value is None and at == frame.f_lasti:  # thrown in at a yield
        how = "raises"
    if how != "yields":
        now["generators"].pop(id(frame), None)
    for place in hooked.places if hooked is not None else ():
        if place.line is None:
            tell(place.left, frame, how == "yields")
    if how == "raises" and error is not None and "unwinds" in now["wide"]:
        ask(now, "unwinds", frame, *error)
    error = None
    if hooked is None or not hooked.calls:
        return
    try:
        if how == "raises":
            _probing.call_unwinds(frame.f_code, 0, raised, frame)
        elif how == "yields":
            _probing.call_yields(frame.f_code, 0, None, frame)
        else:
            _probing.call_returns(frame.f_code, 0, value, frame)
    except BaseException as failed:
        if is_of_program(failed):
            raise


def instructions(frame):
    """The last instruction of a frame and the one after it."""
    code = frame.f_code.co_code
    return [code[at] if 0 <= at < len(code) else -1 for at in (frame.f_lasti, frame.f_lasti + 2)]


def waits_inside(following):
    return following == YIELD_FROM and sys.version_info < (3, 11)


def how_left(frame):
    """By the instruction that the frame is at. A frame suspended in a `yield from` is before it (up to 3.10)."""
    last, following = instructions(frame)
    if frame.f_code.co_flags & GENERATOR and (last == YIELD_VALUE or waits_inside(following)):
        return "yields"
    return "returns" if last == RETURN_VALUE else "raises"


def is_resumed(frame):
    """Whether a generator resumes rather than begins."""
    if not frame.f_code.co_flags & GENERATOR or frame.f_lasti < 0:
        return False
    last, following = instructions(frame)
    if last == RESUME and sys.version_info >= (3, 11):  # 3.11: its argument tells the kind, 0 for a beginning
        return frame.f_code.co_code[frame.f_lasti + 1] & 3 != 0
    return last == YIELD_VALUE or waits_inside(following)


# --- in threads of the agent

def begin(now, refused):
    """Sets the trace function of the main thread, as soon as possible, and of threads that begin from now on. refused() is called if the main
    thread has another one."""
    def begin_main(frame):
        if sys.gettrace() is None and is_on(now):
            sys.settrace(in_thread)
        if not is_own(sys.gettrace()):
            refused()
        else:
            now["threads"].add(get_ident())
            reach_thread(now, get_ident())

    import_threading()
    threading = sys.modules.get("threading")
    if threading is not None and threading._trace_hook is None:
        threading.settrace(in_thread)
    reach(now)
    if _probing.main_ident() not in now["threads"]:
        _hooks.in_main(begin_main)


def begin_and_wait(now):
    """The same. Returns a sentence for a person: what is not reached."""
    answer = []
    begin(now, lambda: answer.append(OWN_TRACE))
    wait, end_ms = allocate_lock(), _probing.milliseconds() + MAIN_MS
    wait.acquire()
    while not answer and _probing.main_ident() not in now["threads"] and _probing.milliseconds() < end_ms:
        wait.acquire(True, 0.005)
    if answer:
        raise Refused(OWN_TRACE)
    return "" if _probing.main_ident() in now["threads"] else "the main thread is in C code: it is reached once it comes back"


def not_seen(now, code):
    """A sentence for a person where a thread runs this code that has no trace function: it began before."""
    for ident, frame in _helpers.live_threads():
        if ident == _probing.main_ident() or ident in now["threads"]:
            continue
        for _ in range(PLAIN_MAX):
            if frame is None:
                break
            if frame.f_code is code:
                return "a thread that runs it already is not seen: before Python 3.12 only the main thread and threads that begin from now on are"
            frame = frame.f_back
    return ""


def end(now):
    """Removes the trace function from frames at once, from the main thread as soon as possible, from other threads at their next call."""
    threading = sys.modules.get("threading")
    if threading is not None and threading._trace_hook is in_thread:
        threading.settrace(None)
    if now["pid"] == getpid():
        for ident, _ in _helpers.all_threads():
            for frame in _helpers.frames_of(ident):
                unmark(frame)
    for frame in list(now["generators"].values()):
        unmark(frame)
    had_main = _probing.main_ident() in now["threads"]
    for name in ("generators", "raised", "plain", "threads"):
        now[name].clear()
    _hooks.drop_main_calls("begin_main")
    if had_main:
        try:
            _hooks.in_main(leave_thread, 1)
        except Refused:
            pass  # it is removed at its next call


# --- what it costs

def measure():
    """(share of the time of the program that goes into trace functions, calls a second), over MEASURE_S."""
    now = here()
    if now is None:
        return 0.0, 0.0
    a_call, counter = time_of_a_call(now), [0]
    now["counter"] = counter
    try:
        began = perf_counter()
        sleep(MEASURE_S)
        took = perf_counter() - began
    finally:
        now.pop("counter", None)
    return counter[0] * a_call / took, counter[0] / took


def time_of_a_call(now):
    """Seconds that a call takes longer where nothing is wanted of it: the least of some rounds in this thread, since others run meanwhile."""
    def empty():
        pass

    def round_of_calls():
        began = perf_counter()
        for _ in range(ROUND):
            empty()
        return perf_counter() - began

    without = min(round_of_calls() for _ in range(ROUNDS))
    before = sys.gettrace()
    sys.settrace(in_thread)
    try:
        traced = min(round_of_calls() for _ in range(ROUNDS))
    finally:
        sys.settrace(before)
        now["threads"].discard(get_ident())
    return max(0.0, traced - without) / ROUND
