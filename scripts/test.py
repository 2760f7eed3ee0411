"""Runs every suite and closes with one line: N passed, N failed, N skipped.

scripts/test.py [suite...]    suites: unit integration asan tsan fuzz lint harm (default: all, in this order)
scripts/test.py quick         for people who change code: unit tests without those that take long, and integration tests
                              marked quick, in under two minutes on two cores

A suite is a list of programs or one pytest run. What the suites need is built in the background, with a low share of the
CPUs, while the first ones run: integration tests wait half of their time. A failing suite does not stop the others. A suite in which nothing
passed is a failure even when nothing failed: that is how a suite that skips everything is noticed. A skip that
tests/skips.txt does not allow is a failure too. PROBING_SOAK=1 asks for the long form. PROBING_BUILT=1: what is under build/ was built elsewhere (scripts/arm64.sh). PROBING_SLOW=N: the machine
is so many times slower than others, and has as much more time. Standard library only.
"""
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests"))
import quick as selection  # noqa: E402
import surroundings  # noqa: E402

SKIPS = TOP / "tests/skips.txt"
REPORTS = TOP / "build" / "test-reports"
SOAK = bool(os.environ.get("PROBING_SOAK"))
SLOW = int(os.environ.get("PROBING_SLOW", 1))
PROGRAM_SECONDS = (1800 if SOAK else 120) * SLOW
PYTEST_SECONDS = 4 * 3600 if SOAK else 2400
FUZZ_SECONDS = 300 if SOAK else 3
ROOTS = ["bionic", "bullseye", "sid"]
# Unit tests that take longest, which begin first.
LONGEST = ["table_retire", "table_kill", "table_interrupt", "table_threads", "table_step", "engine_stream", "engine_plan", "engine_load",
           "threads_listed", "engine_bounds", "table_clock", "table_scribble", "engine_scan", "table_mirror", "engine_ranks"]
# Unit tests that want an answer within milliseconds, or samples at a rate: not beside those that use the CPUs.
BY_THE_CLOCK = ["ask_task", "ask_profiles", "interrupted", "moment_signals"]
# What suites need: preset and targets, those that are needed first first.
NEEDED = {
    "unit": [("release", "all", "unit-tests")],
    "integration": [("release", "all")],
    "asan": [("asan", "unit-tests")],
    "tsan": [("tsan", "unit-tests")],
    "fuzz": [("fuzz", "fuzzers")],
    "lint": [("release", "all", "unit-tests", "benchmarks"), ("zig", "all"), ("aarch64-check", "probing")],
    "harm": [("release", "all"), ("asan", "agent-glibc"), ("tsan", "agent-glibc"), ("faults", "agent-glibc")],
    "quick": [("release", "all", "unit-tests")],
}
# A failed test is tried again, a few tests per run; the output of each failed try is shown too.
RERUNS = ["--reruns=2", "--reruns-delay=5", "--max-suite-reruns=8", "--rerun-show-tracebacks"] if sys.version_info >= (3, 10) else []
FAILURE_LINES = 12  # of what a failed test said, at the end of the run


class Count:
    """Counts, and the names of tests that the closing lines show: failed (with output), skipped (with the reason) and
    passed only when tried again."""

    def __init__(self):
        self.passed, self.failures, self.skips, self.retried = 0, [], [], []

    @property
    def failed(self):
        return len(self.failures)

    @property
    def skipped(self):
        return len(self.skips)

    def fail(self, name, text=""):
        self.failures.append((name, text))
        return self

    def __iadd__(self, other):
        self.passed += other.passed
        self.failures += other.failures
        self.skips += other.skips
        self.retried += other.retried
        return self

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


running = set()  # processes, by all threads


def say(text):
    print(text, flush=True)


def run(command, seconds, capture=False, patient=False, **env):
    """Runs a command in a process group of its own, so that a hung test leaves no children. Returns (status, output);
    the status is None when the time was up. A patient one leaves the CPUs to others."""
    process = subprocess.Popen(
        [*(["nice", "-n", "19"] if patient else []), *map(str, command)], cwd=TOP, env={**os.environ, **env}, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if capture else None,
        stderr=subprocess.STDOUT if capture else None)
    running.add(process)
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, (output or b"").decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, (output or b"").decode(errors="replace")
    finally:
        if process.returncode is not None:
            running.discard(process)


def build(preset, *targets):
    if os.environ.get("PROBING_BUILT"):
        return (TOP / "build" / preset).is_dir()
    status, _ = run([TOP / "scripts/build.sh", preset, *targets], 1800, patient=True)
    return status == 0


def make_root(name):
    """A root file system that integration tests start processes in. Without root these tests skip and say so."""
    if os.geteuid() == 0 and not os.environ.get("PROBING_BUILT"):
        run([TOP / "scripts/root.sh", name], 900)


class Background:
    """What the chosen suites need: builds one after the other in a thread, and the roots beside them, as they wait for
    the network and the disk."""

    def __init__(self, names):
        self.pool, self.builds = ThreadPoolExecutor(1), {}
        self.roots = []
        if "integration" in names:
            maker = ThreadPoolExecutor(len(ROOTS))
            self.roots = [maker.submit(make_root, name) for name in ROOTS]
        for step in [step for name in names for step in NEEDED[name]]:
            self.begin(step)

    def begin(self, step):
        if step not in self.builds:
            self.builds[step] = self.pool.submit(build, *step)

    def wait_for(self, name):
        """Whether all that a suite needs is there."""
        if name == "integration":
            for root in self.roots:
                root.result()
        return all([self.builds[step].result() for step in NEEDED[name]])

    def wait_for_all(self):
        for each in self.builds.values():
            each.result()


def indent(text):
    return "".join(f"    {line}\n" for line in text.splitlines())


def case_name(path, case):
    """suite/file::test, for a case of pytest (whose class is tests.suite.file) and of cmocka (whose folder is
    suite-unit-file) alike. A file that is skipped whole has its module as the name."""
    name, module = case.get("name"), case.get("classname")
    if module is None:
        suite, _, program = path.parent.name.partition("-")
        return f"{suite}/{program.replace('unit-', '', 1)}::{name}"
    return "/".join((module or name).split(".")[1:3]) + "::" + (name if module else "*")


def read_reports(paths):
    """Sums JUnit files, of cmocka and of pytest alike; a case is failed, skipped or passed by the child it has. Of a test
    that was tried twice the second case counts."""
    count = Count()
    cases = {}
    for path in paths:
        for case in ET.parse(path).getroot().iter("testcase"):
            cases.setdefault(case_name(path, case), []).append(case)
    for name, tries in cases.items():
        kinds = {child.tag: child for child in tries[-1]}
        if "failure" in kinds or "error" in kinds:
            count.fail(name, "\n".join(child.text or child.get("message") or "" for child in tries[-1]))
        elif "skipped" in kinds:
            skip = kinds["skipped"]
            count.skips.append((name, (skip.text if skip.get("message") == "collection skipped" else skip.get("message")) or ""))
        else:
            count.passed += 1
            if len(tries) > 1:
                count.retried.append(name)
    return count


def allowed_skips(text):
    """Patterns for "test: message" out of the lines "when | pattern | why" that hold in this run."""
    holds = {"always": True, "kernel": True, "short": not SOAK, "user": os.geteuid() != 0,
             "emulated": bool(os.environ.get("PROBING_BUILT")), "old python": sys.version_info < (3, 10),
             "no torch": (TOP / "build/venv/installed/torch.missing").exists()}
    lines = [line.split(" | ", 2) for line in text.splitlines() if line and not line.startswith("#")]
    return [re.compile(".*".join(re.escape(part) for part in pattern.strip().split("*")), re.S)
            for when, pattern, _ in lines if holds[when.strip()]]


def refuse_unlisted(skips, text):
    """Failures for skips that the list does not allow."""
    allowed = allowed_skips(text)
    return [(name, f"skipped: {message}\nIt should run here, or tests/skips.txt should say why it may be skipped.")
            for name, message in skips if not any(pattern.fullmatch(f"{name}: {message}") for pattern in allowed)]


def outcome(status):
    if status is None:
        return f"killed after {PROGRAM_SECONDS} s"
    if status < 0:
        return f"died of {signal.Signals(-status).name}"
    return f"exit status {status}"


def run_unit(program, suite, **env):
    """One cmocka program. Its report is missing when it crashes or ends before its tests do: that is a failure too."""
    folder = REPORTS / f"{suite}-{program.name}"
    folder.mkdir(parents=True)
    began = time.monotonic()
    status, output = run([program], PROGRAM_SECONDS, capture=True, CMOCKA_MESSAGE_OUTPUT="XML",
                         CMOCKA_XML_FILE=f"{folder}/%g.xml", **env)
    count = read_reports(folder.glob("*.xml"))
    if (status != 0 or count.passed + count.skipped == 0) and count.failed == 0:
        count.fail(f"{folder.name}: {outcome(status)}", output)
    say(f"  {program.name}: {count} ({time.monotonic() - began:.1f} s)")
    if count.failed:
        say(indent(output) + f"    {program.name}: {outcome(status)}")
        for report in sorted(folder.glob("*.xml")):
            say(indent(report.read_text(errors="replace")))
    elif count.skipped:
        say(indent(output))
    return count


def run_unit_suite(suite, preset, chosen, **env):
    count = Count()
    # The SQL worker is not our child and has no standard error: its sanitizer writes to a file (tests/sanitizers/worker.c).
    report = TOP / f"build/{preset}/bin/probing-sql.report"
    report.unlink(missing_ok=True)
    programs = [source.stem for source in sorted((TOP / "tests/unit").glob("*.c")) if chosen(source)]

    def run_one(name):
        program = TOP / f"build/{preset}/unit/unit-{name}"
        count = run_unit(program, suite, **env)
        if count.failed and (name in BY_THE_CLOCK or suite == "unit"):  # what a sanitizer sees once is there
            say(f"  {program.name}: a second try, as other programs may have had the CPUs")
            first, count = count, run_unit(program, f"{suite}-again", **env)
            count.retried = [test for test, _ in first.failures if not count.failed]
        return count

    first = [name for name in LONGEST if name in programs]
    last = [name for name in programs if name in BY_THE_CLOCK]
    for workers, names in ((os.cpu_count() + 1, [*first, *(name for name in programs if name not in first + last)]), (2, last)):
        with ThreadPoolExecutor(workers) as pool:
            for each in pool.map(run_one, names):
                count += each
    if report.exists() and report.stat().st_size > 0:
        text = report.read_text(errors="replace")[:8000]
        say(indent(text) + "    probing-sql: the sanitizer has a report")
        count.fail(f"{suite}: the sanitizer's report on probing-sql", text)
    return count


def single_steps(source):
    """Whether the test single-steps a program: it would step through the sanitizer's instructions too, for minutes."""
    return '"single_step.h"' in source.read_text()


def has_threads(source):
    """What the thread sanitizer is for: tests with threads, and those of the SQL worker, which has some. A file that it
    cannot follow says `tsan: no` and why."""
    text = source.read_text()
    return ("pthread_create" in text or '"engine_test.h"' in text) and "tsan: no" not in text


def unit():
    return run_unit_suite("unit", "release", lambda source: True)


def asan():
    return run_unit_suite("asan", "asan", lambda source: not single_steps(source), ASAN_OPTIONS="detect_leaks=1",
                          UBSAN_OPTIONS="print_stacktrace=1")


def tsan():
    return run_unit_suite("tsan", "tsan", has_threads, TSAN_OPTIONS="halt_on_error=1")


def fuzz_one(source):
    """Status, inputs tried and output of one fuzzer."""
    program = TOP / f"build/fuzz/fuzz/fuzz-{source.stem}"
    corpus = TOP / f"build/fuzz/corpus/{source.stem}"
    corpus.mkdir(parents=True, exist_ok=True)
    status, output = run([program, f"-max_total_time={FUZZ_SECONDS}", "-print_final_stats=1", f"-artifact_prefix={corpus}-", corpus],
                         FUZZ_SECONDS + 60, capture=True)
    runs = re.search(r"number_of_executed_units:\s*(\d+)", output)
    return program.name, status, int(runs.group(1)) if runs else 0, output


def fuzz():
    count = Count()
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # a fuzzer has one thread
        for name, status, runs, output in pool.map(fuzz_one, sorted((TOP / "tests/fuzz").glob("*.c"))):
            if status == 0 and runs > 0:
                count.passed += 1
                say(f"  {name}: {runs} inputs in {FUZZ_SECONDS} s, no finding")
            else:
                count.fail(f"{name}: {outcome(status)}", output)
                say(indent(output[-8000:]) + f"    {name}: {outcome(status)}")
    return count


def run_pytest(suite, *arguments, part=""):
    report = REPORTS / f"{suite}{part}.xml"
    timeout = ["--timeout=3600"] if SOAK else []
    chosen = [] if any(".py" in word for word in arguments) else [f"tests/{suite}"]
    status, _ = run([sys.executable, "-m", "pytest", *chosen, "-ra", "--durations=5", f"--junitxml={report}",
                     *timeout, *arguments], PYTEST_SECONDS)
    count = read_reports([report]) if report.exists() else Count()
    if status != 0 and count.failed == 0:
        count.fail(f"pytest of {suite}{part}: " + ("the time was up" if status is None else f"exit status {status}"))
    return count


def lint():
    return run_pytest("lint")


def integration():
    # Most tests wait most of the time: four files at once on two CPUs. Tests that measure run alone.
    count = run_pytest("integration", "-m", "not alone", "-n", "4", "--dist", "loadfile", "--no-loadscope-reorder", *RERUNS)
    background.wait_for_all()
    count += run_pytest("integration", "-m", "alone", *RERUNS, part="-alone")
    return count


def harm():
    # At most two at once: their programs watch the clock.
    count = run_pytest("harm", "-m", "not alone", "-n", "2", "--dist", "worksteal")
    count += run_pytest("harm", "-m", "alone", *RERUNS, part="-alone")  # by the clock; a job harmed once is harmed
    return count


def quick():
    count = run_unit_suite("quick", "release", lambda source: source.stem not in selection.LONG_UNITS)
    # Importing all files would take pytest longer than most of them run.
    files = [f"tests/integration/{name}.py" for name in selection.INTEGRATION]
    count += run_pytest("integration", *files, "-m", "quick", "-n", "2", "--dist", "loadfile", part="-quick")
    return count


SUITES = [unit, integration, asan, tsan, fuzz, lint, harm]
background = None


def clear_reports():
    REPORTS.mkdir(parents=True, exist_ok=True)
    for path in sorted(REPORTS.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def main(names):
    suites = [quick] if names == ["quick"] else SUITES
    unknown = set(names) - {suite.__name__ for suite in suites}
    if unknown:
        say(f"scripts/test.py: no such suite: {', '.join(sorted(unknown))}")
        return 2
    clear_reports()
    suites = [suite for suite in suites if not names or suite.__name__ in names]
    global background
    background = Background([suite.__name__ for suite in suites])
    total = Count()
    lines = []
    for suite in suites:
        name = suite.__name__
        say(f"== {name}")
        began = time.monotonic()
        count = suite() if background.wait_for(name) else Count().fail(f"the build for {name}")
        if count.passed == 0 and count.failed == 0:
            say(f"  {name}: nothing ran, which is a failure")
            count.fail(f"{name}: nothing ran")
        lines.append(f"  {name:<12} {time.monotonic() - began:6.1f} s  {count}")
        say(f"== {name}: {count}")
        total += count
    total.failures += refuse_unlisted(total.skips, SKIPS.read_text())
    for name, reason in total.skips:
        say(f"== skipped: {name}: {' '.join(reason.split())}")
    for name in total.retried:
        say(f"== passed when tried again: {name}")
    for name, text in total.failures:
        say(f"== failed: {name}\n" + indent("\n".join(text.strip().splitlines()[-FAILURE_LINES:])))
    say("== all suites\n" + "\n".join(lines))
    say(str(total))
    return 1 if total.failed else 0


if __name__ == "__main__":
    surroundings.take_signals()
    surroundings.take_folders()
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        for process in list(running):
            os.killpg(process.pid, signal.SIGTERM)
        background.pool.shutdown(cancel_futures=True)
        sys.exit(130)
