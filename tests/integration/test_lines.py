"""Lines are right at every instruction of the standard library, on every version; the reader's tables against what the
interpreter itself says of them."""
import subprocess

import interpreters
import jobs
import pytest
import roots
import stack_kit

# Run by each interpreter: for every code object of the files it is given, our input and the truth. Before 3.10 the
# truth is what tracebacks use there: the last line that starts at or before the instruction.
DUMP = """
import bisect, dis, glob, os, sys, sysconfig
kind = 0 if sys.version_info < (3, 10) else 1 if sys.version_info < (3, 11) else 2
def lines_of(code):
    n = len(code.co_code)
    if kind:
        out = [0] * (n // 2)
        for start, end, line in code.co_lines():
            for at in range(start // 2, min(end, n) // 2):
                out[at] = line or 0
        return out
    starts = list(dis.findlinestarts(code))
    import types
    def line_at(at):
        frame_line = code.co_firstlineno
        address = 0
        for a, l in zip(code.co_lnotab[::2], code.co_lnotab[1::2]):
            address += a
            if address > at:
                break
            frame_line += l - 256 if l > 127 else l
        return frame_line
    out = [line_at(at) for at in range(0, n, 2)]
    for at, line in starts:  # an oracle of its own: where dis says a line starts, it starts
        assert out[at // 2] == line, (code, at)
    return out
def walk(code):
    yield code
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            yield from walk(constant)
lib = sysconfig.get_paths()["stdlib"]
wanted = sorted(glob.glob(lib + "/*.py") + glob.glob(lib + "/asyncio/*.py") + glob.glob(lib + "/test/test_[a-g]*.py"))[:int(sys.argv[1])]
for path in wanted:
    try:
        module = compile(open(path, "rb").read(), path, "exec")
    except (SyntaxError, ValueError, RecursionError):
        continue
    for code in walk(module):
        table = code.co_linetable if kind else code.co_lnotab
        runs, last, count = [], None, 0
        for line in lines_of(code) + [None]:
            if line != last and count:
                runs.append("%d*%d" % (last, count))
                count = 0
            last = line
            count += 1
        print(kind, code.co_firstlineno, len(code.co_code), table.hex() or "-", "|", " ".join(runs))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    binary = tmp_path_factory.mktemp("lines") / "lines"
    top = stack_kit.TOP
    subprocess.run(["cc", "-std=gnu17", "-O2", f"-I{top / 'src'}", "-o", binary, stack_kit.TARGETS / "lines_driver.c",
                    top / "src/remote/python/line_tables.c"], check=True)
    return binary


def compare(driver, dump):
    rows = [line.split("|") for line in dump.splitlines()]
    assert len(rows) > 1000, "hardly any code was looked at"
    ours = subprocess.run([driver], input="\n".join(left for left, _ in rows) + "\n", stdout=subprocess.PIPE,
                          check=True, universal_newlines=True).stdout.splitlines()
    assert len(ours) == len(rows)
    wrong = [(left, right.strip(), got) for (left, right), got in zip(rows, ours) if right.strip() != got.strip()]
    assert not wrong, f"{len(wrong)} of {len(rows)} code objects: {wrong[0]}"


@pytest.mark.parametrize("interpreter", interpreters.INTERPRETERS, ids=interpreters.interpreter_id)
def test_every_instruction_of_the_standard_library_has_its_line(driver, interpreter):
    dump = subprocess.run([interpreter, "-W", "ignore", "-c", DUMP, "170"], stdout=subprocess.PIPE, check=True,
                          universal_newlines=True).stdout
    compare(driver, dump)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", roots.INTERPRETERS["sid"])
def test_newer_versions_in_a_container(driver, program):
    root = roots.path("sid")
    dump = subprocess.run(["chroot", root, program, "-W", "ignore", "-c", DUMP, "170"], stdout=subprocess.PIPE,
                          check=True, universal_newlines=True).stdout
    compare(driver, dump)


# A program that writes down the line it is at, by its own means, just before it sleeps at it.
WAITING = '''
import sys, time
from contextlib import contextmanager
def say(n=1):
    frame = sys._getframe(n)
    trace = []
    while frame:
        trace.append("%s:%d" % (frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    print("|".join(trace), flush=True)
    time.sleep(1000)
class Guard:
    def __enter__(self):
        return self
    def __exit__(self, *rest):
        say()
def decorate(f):
    say_it = globals().get("CASE") == "decorator"
    if say_it:
        say()
    return f
def multi_line(a, b):
    return a
def case_call():
    multi_line(
        1,
        say(),
    )
def case_with():
    with Guard():
        x = 1
        y = 2
def case_loop():
    for i in range(
        3
    ):
        if i == 2:
            say()
def case_comprehension():
    return [
        say()
        for i in range(3)
        if i == 1
    ]
def case_decorator():
    @decorate
    def f():
        pass
def case_try():
    try:
        1 / 0
    except ZeroDivisionError:
        say()
    finally:
        x = 1
def case_chain():
    return (1 +
            2 +
            len([say()]))
def case_generator():
    def numbers():
        yield 1
        say()
        yield 2
    for n in numbers():
        pass
def case_lambda():
    f = lambda: (
        say())
    f()
CASE = sys.argv[1]
globals()["case_" + CASE]()
'''
CASES = ["call", "with", "loop", "comprehension", "decorator", "try", "chain", "generator", "lambda"]


@pytest.mark.parametrize("interpreter", interpreters.INTERPRETERS, ids=interpreters.interpreter_id)
def test_a_program_that_knows_its_line_agrees(interpreter, tmp_path):
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    for case in CASES:
        with jobs.start(interpreter, script, case, ready="\n") as job:
            said = job.output.strip().split("|")
            shown = jobs.probe("-t", job.pid, "backtrace", "--format", "tsv").stdout.splitlines()[1:]
            rows = [row.split("\t") for row in shown]
            seen = [f"{row[6].split('.')[-1]}:{row[8]}" for row in rows]
            # say() itself is at its sleep by now.
            assert [word for word in seen if not word.startswith("say:")] == said, case


def test_the_tables_are_those_of_the_headers():
    done = subprocess.run([stack_kit.TOP / "build/venv/bin/python", stack_kit.TOP / "scripts/layouts.py", "--check"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0, done.stdout
