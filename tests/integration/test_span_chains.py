"""Spans of which one is around the other: that no order in which they begin, end and are suspended hangs the program,
keeps memory or crashes."""
import os
import subprocess

import builds
import interpreters
import pytest
from spans_kit import HEAD, WITH_CONTEXTS, run

EACH = [pytest.param(path, id=interpreters.interpreter_id(path)) for path in interpreters.INTERPRETERS]
FREE_THREADED = builds.FREE_THREADED[-2:]
SOAK = bool(os.environ.get("PROBING_SOAK"))


def parents_of(found):
    names = {row["span_id"]: row["name"] for row in found}
    return {row["name"]: names.get(row["parent_id"]) for row in found}


YIELDS_INSIDE = """
@probing.span("numbers")
def numbers(name):
    with probing.span("opened in " + name):
        yield 1
        with probing.span("more in " + name):
            yield 2
        with probing.span("again in " + name):
            yield 3
    with probing.span("behind in " + name):
        yield 4
with probing.span("caller"):
    a, b = numbers("a"), numbers("b")
    for value in zip(a, b):
        with probing.span("got %d %d" % value):
            pass
    assert list(b) == []
    a = numbers("closed")
    next(a)
    with probing.span("then"):
        a.close()
        with probing.span("still then"):
            pass
    left = numbers("left")
    next(left)
with probing.span("after"):
    pass
"""


@pytest.mark.parametrize("python", EACH)
def test_a_generator_that_yields_in_an_inner_span_goes_on_in_it(python):
    found = run(python, YIELDS_INSIDE)
    parents = parents_of(found)
    for name in "a", "b":
        assert parents["opened in " + name] == "numbers"
        assert parents["more in " + name] == parents["again in " + name] == "opened in " + name
        assert parents["behind in " + name] == "numbers"
    assert {parents["got %d %d" % (i, i)] for i in range(1, 5)} == {"caller"}
    assert parents["then"] == "caller" and parents["still then"] == "then" and parents["after"] is None
    assert [row["name"] for row in found if row["is_open"]] == ["numbers", "opened in left"]


# In a thread with a small stack, which a recursion through the chain would fill soon.
SCHEDULES = """
import asyncio, threading, time
loop = asyncio.new_event_loop()
kind = type(probing.span("x"))
times, counts = [], []
def tick(n):
    with probing.span("tick"):
        if n % 5000 == 0:
            times.append(time.thread_time() if hasattr(time, "thread_time") else time.process_time())
            counts.append(sys.getrefcount(kind))
        if n < 20000:
            loop.call_soon(tick, n + 1)
        else:
            loop.stop()
def work():
    loop.call_soon(tick, 0)
    loop.run_forever()
    loop.close()
threading.stack_size(1 << 19)
thread = threading.Thread(target=work)
thread.start()
thread.join()
took = [b - a for a, b in zip(times, times[1:])]
assert max(counts) - counts[0] < 100, counts
assert len(took) == 4 and min(took[1:]) < 3 * took[0] + 0.1, took
"""

NEVER_LEFT = """
import threading
kind = type(probing.span("x"))
def count():
    return sys.getrefcount(kind)
before = count()
def work():
    for i in range(50000):
        probing.span("begun").__enter__()
    assert count() - before < 25000, count() - before
threading.stack_size(1 << 18)
for _ in range(2):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
for _ in range(100):
    with probing.span("left"):
        pass
assert count() - before < 300, count() - before
try:
    import contextvars, gc, weakref
except ImportError:
    contextvars = None
if contextvars:
    class Large:
        pass
    alive, variable = [], contextvars.ContextVar("large")
    def request():
        variable.set(Large())
        alive.append(weakref.ref(variable.get()))
        probing.span("begun").__enter__()
    for _ in range(2000):
        contextvars.copy_context().run(request)
    gc.collect()
    assert sum(each() is not None for each in alive) < 100, "contexts are kept by spans that were never left"
"""


@pytest.mark.parametrize("code", [pytest.param(SCHEDULES, id="callbacks"), pytest.param(NEVER_LEFT, id="never-left")])
@pytest.mark.parametrize("python", EACH)
def test_spans_keep_no_others(python, code):
    """A callback that schedules the next one has its span in the context of that; what a program enters and never
    leaves."""
    done = subprocess.run([python, "-c", HEAD + code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
                          universal_newlines=True)
    assert done.returncode == 0, done.stdout[-500:]


INHERITED = """
import asyncio, threading
async def background(name):
    await asyncio.sleep(0.01)
    for i in range(2):
        with probing.span("%s %d" % (name, i)):
            await asyncio.sleep(0)
async def main():
    with probing.span("server"):
        with probing.span("request"):
            task = asyncio.ensure_future(background("work"))
        await task
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
loop.run_until_complete(main())
with probing.span("around"):
    elsewhere = probing.span("ended elsewhere")
    elsewhere.__enter__()
    thread = threading.Thread(target=elsewhere.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    for i in range(2):
        with probing.span("later %d" % i):
            pass
with probing.span("last"):
    pass
"""


def test_an_ended_span_is_around_what_it_started_and_nothing_else():
    found = run(WITH_CONTEXTS[-1], INHERITED)
    parents, traces = parents_of(found), {row["name"]: row["trace_id"] for row in found}
    assert parents["work 0"] == parents["work 1"] == "request" and parents["request"] == "server"
    assert traces["work 0"] == traces["work 1"] == traces["server"]
    assert "ended elsewhere" not in (parents["later 0"], parents["later 1"]) and parents["last"] is None
    assert not any(row["is_open"] for row in found)


# Everything that can be done to a span, in an order that the seed decides, in contexts that are copied and in four
# threads. Without modules in C: the free-threaded builds have none.
AT_RANDOM = """
import gc, threading
try:
    import contextvars
except ImportError:
    contextvars = None
kind = type(probing.span("x"))
before = sys.getrefcount(kind)
def play(state, spans):
    def draw(n):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (state >> 33) % n
    contexts = [contextvars.copy_context() if contextvars else None for _ in range(4)]
    def within(context, function, *args):
        return context.run(function, *args) if context is not None else function(*args)
    def nested():
        with probing.span("a"):
            probing.event("b")
    for _ in range(8000):
        context, doing = contexts[draw(4)], draw(9)
        try:
            if doing < 2 or not spans:
                spans.append(probing.span("s"))
                within(context, spans[-1].__enter__)
            elif doing == 2:
                within(context, spans[draw(len(spans))].__exit__, None, None, None)
            elif doing == 3:
                within(context, spans[draw(len(spans))].suspend)
            elif doing == 4:
                within(context, spans[draw(len(spans))].resume)
            elif doing == 5:
                within(context, spans[draw(len(spans))].__enter__)
            elif doing == 6:
                del spans[draw(len(spans))]
            elif doing == 7 and contextvars:
                contexts[draw(4)] = within(context, contextvars.copy_context)
            else:
                within(context, nested)
        except (RuntimeError, IndexError):  # entered twice; another thread was faster
            pass
for seed in SEEDS:
    spans = []
    threads = [threading.Thread(target=play, args=(seed * 100 + k, spans)) for k in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    del spans[:]
for _ in range(100):
    with probing.span("last"):
        pass
gc.collect()
assert sys.getrefcount(kind) - before < 10, sys.getrefcount(kind) - before
print("done", flush=True)
"""


@pytest.mark.parametrize("python", [*EACH, *FREE_THREADED])
def test_no_order_of_what_is_done_to_spans_hangs_or_keeps_them(python, tmp_path):
    script = tmp_path / "at_random.py"
    script.write_text(HEAD + "SEEDS = %r" % (list(range(20 if SOAK else 2)),) + AT_RANDOM)
    path = builds.path(python) / "trainer" if python in builds.FREE_THREADED else python
    done = subprocess.run([path, script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600 if SOAK else 60,
                          universal_newlines=True)
    assert done.returncode == 0 and done.stdout == "done\n", done.stdout[-500:]


# Contexts of the program, and what it set there: spans begin in one and end in another, in any order.
OWN_VARIABLES = """
import contextvars
class random:  # the module needs math, which some builds lack
    state = 1
    @classmethod
    def randrange(cls, n):
        cls.state = (cls.state * 1103515245 + 12345) % 2 ** 31
        return (cls.state >> 8) % n
    @classmethod
    def choice(cls, of):
        return of[cls.randrange(len(of))]
variables = [contextvars.ContextVar("own %d" % i) for i in range(40)]
def check(context, model):
    own = {each: value for each, value in context.items() if each.name != "probing.span"}
    assert own == model and all(context.run(each.get) == value for each, value in model.items()), (own, model)
    assert len(context) - len(model) in (0, 1)
for seed in range(ROUNDS):
    random.state = seed
    contexts, opened, tokens = [(contextvars.Context(), {}) for _ in range(3)], [], []
    for step in range(120):
        context, model = random.choice(contexts)
        doing = random.randrange(6)
        if doing == 0:
            variable = random.choice(variables)
            tokens.append((context, model, context.run(variable.set, step), model.get(variable)))
            model[variable] = step
        elif doing == 1 and tokens:
            context, model, token, old = tokens.pop()
            context.run(token.var.reset, token)
            model.pop(token.var) if old is None else model.update({token.var: old})
        elif doing in (2, 3):
            opened.append(probing.span("each"))
            context.run(opened[-1].__enter__)
        elif doing == 4 and opened:
            context.run(opened.pop(random.randrange(len(opened))).__exit__, None, None, None)
        elif len(contexts) < 6:
            contexts.append((context.copy(), dict(model)))
        for each in contexts:
            check(*each)
context = contextvars.Context()
def in_turn():
    spans = [probing.span("one"), probing.span("other")]
    for each in spans: each.__enter__()
    for each in spans: each.__exit__(None, None, None)
    def deep(n):
        with probing.span("deep"): n and deep(n - 1)
    deep(100)
context.run(in_turn)
assert len(context) == 0, list(context.items())
"""


@pytest.mark.parametrize("python", [*[each for each in EACH if each.values[0] in WITH_CONTEXTS], *FREE_THREADED])
def test_contexts_keep_the_programs_variables_and_none_of_ours(python, tmp_path):
    script = tmp_path / "contexts.py"
    script.write_text(HEAD + OWN_VARIABLES.replace("ROUNDS", "200" if SOAK else "12"))
    path = builds.path(python) / "trainer" if python in builds.FREE_THREADED else python
    done = subprocess.run([path, script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
                          universal_newlines=True)
    assert (done.returncode, done.stdout) == (0, "")


ODD_EXCEPTION = """
asked = []
class Asked(type):
    def __getattribute__(cls, name):
        asked.append(name)
        raise SystemExit(3)
class Odd(Exception, metaclass=Asked): pass
try:
    with probing.span("fails"): raise Odd("x")
except Odd: pass
try:
    with probing.span("fails too"): raise OSError("x")
except OSError: pass
assert not asked, asked
"""


@pytest.mark.parametrize("python", EACH)
def test_the_class_of_an_exception_is_not_asked_for_its_name(python):
    errors = {row["name"]: row["error"] for row in run(python, ODD_EXCEPTION)}
    assert errors == {"fails": "Odd", "fails too": "OSError"}
