"""Injection as it must hold: at any moment, into any kind of target, twice, refused, failing, and with the tool
killed at every step. The driver is pb_inject itself (inject_kit.py)."""
import errno
import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import inject_kit
import interpreters
import jobs
import pytest
import roots
from inject_kit import Kit, assert_agent_runs, traced


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    where = tmp_path_factory.mktemp("inject")
    return Kit(where)


@pytest.fixture(params=["", "musl-"], ids=["glibc", "musl"])
def libc(request):
    return request.param


# ---- where the main thread is -------------------------------------------------------------------------------------


def test_a_timed_wait_is_neither_cut_short_nor_prolonged(kit, libc):
    """Of two seconds: one that began anew in the middle would take three."""
    def wait(how):
        with kit.run(libc + "wait", how) as target:
            time.sleep(1)
            assert_agent_runs(target.pid, kit.inject(target.pid, options=how), how)
            assert target.line() == "undisturbed", how

    every = ["sleep", "nanosleep", "select", "poll", "epoll"]
    with ThreadPoolExecutor(len(every)) as pool:
        list(pool.map(wait, every))


@pytest.mark.parametrize("how", ["read", "futex"])
def test_a_wait_for_an_event_goes_on(kit, libc, how):
    with kit.run(libc + "wait", how) as target:
        time.sleep(0.1)
        assert_agent_runs(target.pid, kit.inject(target.pid))
        time.sleep(0.1)
        target.process.stdin.write(b"x")
        target.process.stdin.flush()
        assert target.line() == "undisturbed"


def test_registers_errno_and_red_zone_are_as_before(kit, libc):
    with kit.run(libc + "registers") as target:
        for _ in range(20):
            assert_agent_runs(target.pid, kit.inject(target.pid))
            assert target.gets_on(), target.line()


def test_a_stopped_process_stays_stopped_and_gets_its_agent(kit, libc):
    with kit.run(libc + "wait", "poll") as target:
        time.sleep(0.1)
        os.kill(target.pid, signal.SIGSTOP)
        time.sleep(0.05)
        answer = kit.inject(target.pid)
        assert answer["r"] == 0 and answer["process_stopped"]
        time.sleep(0.05)
        assert target.state() == "T"
        os.kill(target.pid, signal.SIGCONT)
        assert_agent_runs(target.pid, answer)
        assert target.line() == "undisturbed"


def test_a_process_stopped_inside_its_allocator_is_refused_at_once(kit):
    for _ in range(20):
        with kit.run("malloc", 3) as target:
            os.kill(target.pid, signal.SIGSTOP)
            time.sleep(0.02)
            before = target.traces()
            answer = kit.inject(target.pid)
            if answer["r"] < 0:
                assert "is stopped while its thread" in answer["error"] and "kill -CONT" in answer["error"]
                assert answer["whole_ns"] < 2e9
                assert target.traces() == before and target.state() == "T"
                return
    pytest.fail("in 20 stops no thread was inside the allocator")


# ---- what it leaves ------------------------------------------------------------------------------------------------


def test_only_the_agent_and_its_thread_are_new(kit, libc):
    with kit.run(libc + "wait", "read") as target:
        time.sleep(0.05)
        before = target.traces()
        assert_agent_runs(target.pid, kit.inject(target.pid))
        after = target.traces()
        new = set(after.pop("named")) - set(before.pop("named"))
        # Built for glibc 2.17 the agent asks for libpthread, which newer ones keep as an empty library.
        new = [name for name in new if not name.endswith("/libpthread.so.0")]
        assert len(new) == 1 and "memfd:probing-agent-" in new[0]
        assert after.pop("threads") == before.pop("threads") + 1
        assert after == before


def test_the_agents_thread_starts_with_signals_blocked(kit):
    with kit.run("wait", "read") as target:
        mask = assert_agent_runs(target.pid, kit.inject(target.pid)).mask
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM, signal.SIGCHLD):
            assert mask >> (number - 1) & 1, f"signal {number} could interrupt the agent instead of the program"


def test_twice_into_the_same_process_calls_the_one_that_is_there(kit, libc):
    with kit.run(libc + "wait", "read") as target:
        first = kit.inject(target.pid, options="one")
        assert_agent_runs(target.pid, first, "one")
        second = kit.inject(target.pid, options="two")
        agent = assert_agent_runs(target.pid, second, "two")
        assert not first["reused"] and second["reused"]
        assert first["status"] == second["status"] and agent.calls == 2


def test_another_agent_beside_the_first_is_not_taken_for_it(kit):
    """glibc knows libraries by name: two memfds of the same number must not be one to it."""
    with kit.run("wait", "read") as target:
        assert kit.inject(target.pid, "slow")["r"] == 0
        assert_agent_runs(target.pid, kit.inject(target.pid, "ok", options="x"), "x")


def test_signals_that_come_meanwhile_all_arrive(kit):
    code = ("import signal, time\nseen = []\nsignal.signal(signal.SIGUSR1, lambda *a: seen.append(1))\n"
            "print('ready', flush=True)\nwhile len(seen) < 30: time.sleep(0.001)\nprint('all', flush=True)\n"
            "time.sleep(60)")
    process = subprocess.Popen([interpreters.INTERPRETERS[-1], "-c", code], stdout=subprocess.PIPE,
                               stdin=subprocess.PIPE)
    target = inject_kit.Target(process)
    try:
        assert target.line() == "ready"
        for _ in range(30):
            driver = subprocess.Popen([str(kit.where / "driver"), str(target.pid), str(kit.agent("ok"))],
                                      stdout=subprocess.DEVNULL)
            time.sleep(0.001)
            os.kill(target.pid, signal.SIGUSR1)
            assert driver.wait() == 0
            time.sleep(0.01)
        assert target.line() == "all"
    finally:
        process.kill()
        process.communicate()


# ---- the allocator -------------------------------------------------------------------------------------------------


@pytest.mark.timeout(3600)
def test_no_injection_hangs_in_a_target_that_lives_in_its_allocator(kit, soak, capsys):
    runs, looks, inside, all_inside = (1000 if soak else 40), 0, 0, 0
    for number in range(runs):
        # Its threads are never idle: where it is to be done a thousand times, the test itself goes first.
        with kit.run("malloc", 4, prefix=["nice"] if soak else []) as target:
            answer = kit.inject(target.pid, timeout_ms=30000)
            assert_agent_runs(target.pid, answer, seconds=20)
            assert target.gets_on(20), f"run {number}: the target hangs"
            looks += answer["unsafe_looks"]
            inside += answer["unsafe_rounds"]
            all_inside += answer["unsafe_rounds"] > 0
    with capsys.disabled():
        print(f"\n{runs} injections: {looks} looks found a thread inside the allocator or loader, {inside} rounds "
              f"found every "
              f"thread there, in {all_inside} of the injections")
    assert looks > 0, "the target was never where it hurts: this test shows nothing"


@pytest.mark.parametrize("target", ["joins", "musl-joins"])
def test_no_injection_hangs_in_a_target_that_gives_stacks_back(kit, soak, target):
    for number in range(300 if soak else 30):
        with kit.run(target) as running:
            answer = kit.inject(running.pid, timeout_ms=30000)
            assert_agent_runs(running.pid, answer, seconds=20)
            assert running.gets_on(20), f"run {number}: the target hangs"


@pytest.mark.parametrize("target", ["detached", "musl-detached"])
def test_no_injection_hangs_in_a_target_whose_threads_give_their_own_stacks_back(kit, soak, target):
    """Hardly any moment is safe: an injection may give up, which must be all that it does."""
    for number in range(200 if soak else 12):
        with kit.run(target) as running:
            answer = kit.inject(running.pid, timeout_ms=300)
            assert answer["r"] == 0 or "waits for a lock" not in answer["error"], f"run {number}: {answer}"
            assert running.gets_on(20), f"run {number}: the target hangs: {answer}"


def test_a_held_thread_changes_hands_four_times(kit):
    """Stopped, into one system call, out of it, the stub run; once more where it is the only thread. How long that
    takes is the machine's."""
    for command, most in ((("malloc", 3), 4), (("wait", "read"), 5)):
        for _ in range(3):
            with kit.run(*command) as target:
                answer = kit.inject(target.pid, timeout_ms=30000)
                assert answer["r"] == 0 and 0 < answer["stops"] <= most, (command, answer)


def test_musl_too(kit):
    for _ in range(5):
        with kit.run("musl-malloc", 3) as target:
            assert_agent_runs(target.pid, kit.inject(target.pid, timeout_ms=30000), seconds=20)
            assert target.gets_on(20)


def test_the_deadline_leaves_the_target_untouched(kit):
    """A millisecond is too short to find a safe point in most runs: those that fail must leave nothing behind."""
    failed = 0
    for _ in range(30):
        with kit.run("malloc", 3) as target:
            threads = len(os.listdir(f"/proc/{target.pid}/task"))
            answer = kit.inject(target.pid, timeout_ms=1)
            if answer["r"] == 0:
                continue
            failed += 1
            assert any(text in answer["error"] for text in ("inside its allocator", "did not come up in time",
                                                            "nothing was changed")), answer
            inject_kit.wait_until_clean(target.pid)
            time.sleep(0.01)
            assert not inject_kit.executable(target.pid) and len(os.listdir(f"/proc/{target.pid}/task")) == threads
            assert target.gets_on()
            assert_agent_runs(target.pid, kit.inject(target.pid, timeout_ms=30000), seconds=20)
    assert failed, "30 injections all found a safe point within a millisecond: this test shows nothing"


# ---- the tool dies -------------------------------------------------------------------------------------------------


# Without scalable vectors, and with the longest: more than the kernel's part of a signal frame holds.
LENGTHS = ["registers 0", "registers 256"] if os.uname().machine == "aarch64" else []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["wait read", "wait futex", "registers", "malloc 3", "musl-wait read",
                                    "musl-wait futex", "musl-registers", *LENGTHS])
def test_the_tool_killed_at_every_step_leaves_the_target_whole(kit, victim):
    steps = kit.steps(*victim.split())
    assert len(steps) > 14 and "stub running" in steps and "registers restored" in steps and "told to go on" in steps

    def die_at(number):
        where = f"after step {number} ({steps[number - 1]})"
        with kit.run(*victim.split(), prefix=["nice"] if "malloc" in victim else []) as target:
            time.sleep(0.02)
            mask = inject_kit.status_field(target.pid, "SigBlk")
            answer = kit.inject(target.pid, timeout_ms=30000, PROBING_DIE_AT=str(number))
            # Waiting and looking for a safe point give more or fewer steps; the last may not be reached.
            assert answer == "killed" or answer["r"] == 0
            assert inject_kit.status_field(target.pid, "TracerPid") == "0"
            if "wait" in victim:
                deadline = time.monotonic() + 5
                while target.state() != "S" and time.monotonic() < deadline:
                    time.sleep(0.002)
                assert target.state() == "S", where
            else:
                assert target.gets_on(), f"{where}: {target.line() if not target.alive() else 'hangs'}"
            inject_kit.wait_until_clean(target.pid)
            assert inject_kit.status_field(target.pid, "SigBlk") == mask, where
            assert_agent_runs(target.pid, kit.inject(target.pid, timeout_ms=30000), seconds=20)
            assert target.alive()
            if "wait" in victim:
                target.process.stdin.write(b"x")
                target.process.stdin.flush()
                assert target.line() == "undisturbed", where

    # What was left behind is gone after two seconds: several wait for that at once.
    with ThreadPoolExecutor(4 if "malloc" in victim else 8) as pool:
        list(pool.map(die_at, range(1, len(steps) + 1)))


def test_a_thread_that_waits_for_a_dead_tool_is_not_borrowed(kit, libc):
    """It would be the best: it sleeps, and the others have signals blocked that keep them from being borrowed for a
    second."""
    with kit.run(libc + "wait", "masked") as target:
        assert kit.inject(target.pid, timeout_ms=30000, PROBING_DIE_AT="loader ready") == "killed"
        began = time.monotonic()
        assert_agent_runs(target.pid, kit.inject(target.pid, timeout_ms=30000), seconds=20)
        assert time.monotonic() - began > 0.9
        inject_kit.wait_until_clean(target.pid)
        assert target.alive()


def test_a_tool_that_gets_no_cpu_begins_anew(kit, libc):
    """Our threads in the target wait two seconds for the tool, and one more until their answer is read."""
    def stop_at(step, again):
        with kit.run(libc + "wait", "masked") as target:
            if again:  # an agent that is there already is only called
                assert_agent_runs(target.pid, kit.inject(target.pid, timeout_ms=60000), seconds=20)
            driver = subprocess.Popen([str(kit.where / "driver"), str(target.pid), str(kit.agent("ok")), "", "60000"],
                                      stdout=subprocess.PIPE, env={**os.environ, "PROBING_STOP_AT": step})
            try:
                jobs.wait_until(lambda: inject_kit.status_field(driver.pid, "State")[0] == "T", what="the stop")
                time.sleep(3.5)  # at least: they may be late too
                driver.send_signal(signal.SIGCONT)
                answer = json.loads(driver.communicate(timeout=100)[0])
            finally:
                driver.kill()
            assert_agent_runs(target.pid, answer, seconds=20)
            inject_kit.wait_until_clean(target.pid, 30)
            assert inject_kit.status_field(target.pid, "TracerPid") == "0"

    cases = [("stub done", False), ("loader ready", False), ("told to go on", False), ("stub done", True)]
    with ThreadPoolExecutor(len(cases)) as pool:
        list(pool.map(stop_at, *zip(*cases)))


def test_ctrl_c_while_the_library_loads_lets_it_load_on(kit):
    with kit.run("wait", "read") as target:
        driver = subprocess.Popen([str(kit.where / "driver"), str(target.pid), str(kit.agent("slow"))],
                                  stdout=subprocess.PIPE)
        time.sleep(0.5)
        driver.send_signal(signal.SIGINT)
        driver.communicate(timeout=5)
        assert driver.returncode != 0
        assert inject_kit.status_field(target.pid, "TracerPid") == "0"
        time.sleep(1.5)
        target.process.stdin.write(b"x")
        target.process.stdin.flush()
        assert target.line() == "undisturbed"


# ---- libraries that fail ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent, code, says", [
    ("missing", "ENOEXEC", "a_symbol_that_nobody_has"),
    ("noentry", "ENOEXEC", "pb_agent_start"),
    ("null", "ECANCELED", "returned nothing"),
])
def test_a_library_that_fails_says_why_and_leaves_nothing(kit, libc, agent, code, says):
    with kit.run(libc + "wait", "poll") as target:
        time.sleep(0.05)
        before = target.traces()
        answer = kit.inject(target.pid, agent)
        assert answer["r"] == -getattr(errno, code) and says in answer["error"], answer
        after = target.traces()
        if libc:  # musl's dlclose never unmaps, by its design
            after.pop("named"), before.pop("named")
        assert after == before
        assert_agent_runs(target.pid, kit.inject(target.pid))
        assert target.line() == "undisturbed"


def test_a_library_that_crashes_does_not_take_the_target_along(kit):
    with kit.run("wait", "poll") as target:
        answer = kit.inject(target.pid, "crash")
        assert answer["r"] < 0 and "crashed with SIGSEGV" in answer["error"]
        assert target.line() == "undisturbed"


def test_a_slow_library_is_waited_for_past_the_deadline(kit):
    with kit.run("wait", "read") as target:
        answer = kit.inject(target.pid, "slow", timeout_ms=200)
        assert answer["r"] == 0 and "still loading in thread" in answer["stderr"]


def test_options_too_long_are_refused(kit):
    with kit.run("wait", "read") as target:
        assert "longer than" in kit.inject(target.pid, options="x" * 5000)["error"]
        longest = "y" * 4095
        assert_agent_runs(target.pid, kit.inject(target.pid, options=longest), longest)


# ---- Python
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", interpreters.INTERPRETERS, ids=interpreters.interpreter_id)
@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "while True: sum(range(1000))"],
                         ids=["sleeping", "computing"])
def test_python(kit, python, code):
    process = subprocess.Popen([python, "-c", "print('ready', flush=True)\n" + code], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    target = inject_kit.Target(process)
    try:
        assert target.line() == "ready"
        time.sleep(0.05)
        assert_agent_runs(target.pid, kit.inject(target.pid))
        version = "Python " + ".".join(interpreters.interpreter_id(python).split(".")[:2])
        assert kit.doctor(target.pid)["python"][1].startswith(version)
        assert target.alive()
    finally:
        process.kill()
        process.communicate()


PYTHON_IN_ROOT = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.01)"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name, program", [(name, program) for name in roots.INTERPRETERS
                                           for program in roots.INTERPRETERS[name]])
def test_another_root_and_pid_namespace(kit, name, program):
    with roots.start(name, program, "-c", PYTHON_IN_ROOT) as target:
        target.wait_for("ready")
        assert "another pid and mount namespace; it is process 1 there" == kit.doctor(target.pid)["namespaces"][1]
        assert_agent_runs(target.pid, kit.inject(target.pid))
        assert target.alive()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", roots.INTERPRETERS["sid"])
def test_remote_debugging_where_another_tracer_is_in_the_way(kit, program):
    with roots.start("sid", program, "-c", PYTHON_IN_ROOT) as target:
        target.wait_for("ready")
        with traced(target.pid):
            answer = kit.inject(target.pid, options="quo'te\\")
            assert answer["by_remote_debug"]
            assert_agent_runs(target.pid, answer, "quo'te\\")
            assert "did not start" in kit.inject(target.pid, "null")["error"]
            assert "a_symbol_that_nobody_has" in kit.inject(target.pid, "missing")["error"]
        assert not [path for path in (target.root / "tmp").iterdir() if path.name.startswith(".probing")]
        assert target.alive()


@pytest.mark.timeout(300)
def test_remote_debugging_turned_off_is_respected(kit):
    with roots.start("sid", roots.INTERPRETERS["sid"][0], "-c", PYTHON_IN_ROOT,
                     env={"PYTHON_DISABLE_REMOTE_DEBUG": "1"}) as target:
        target.wait_for("ready")
        with traced(target.pid):
            assert "is traced by" in kit.inject(target.pid)["error"]


# ---- a process on its way to its program ---------------------------------------------------------------------------


def count_of(target):
    """How often it has begun; in the middle of an exec there is no command line."""
    words = open(f"/proc/{target.pid}/cmdline").read().split("\0")
    return int(words[3]) if len(words) > 3 else 0


@pytest.mark.parametrize("who", ["main", "thread"])
def test_a_process_that_execs_meanwhile_is_never_harmed(kit, libc, tmp_path, who):
    """What was planned for one program must not be done to the next: each injection meets some execs."""
    precious = tmp_path / "precious"
    precious.write_text("never written")
    with kit.run(libc + "exec", who, precious, 0) as target:
        for i in range(100):
            answer = kit.inject(target.pid, timeout_ms=100)
            assert answer["r"] == 0 or "process" in answer["error"], answer
            assert target.alive(), f"injection {i} ended it: {target.process.returncode}"
        jobs.wait_until(lambda: count_of(target) > 0, what="a command line")
        before = count_of(target)
        jobs.wait_until(lambda: count_of(target) > before + 3, what="another exec")
        assert inject_kit.status_field(target.pid, "TracerPid") == "0"
    assert precious.read_text() == "never written"


def test_a_program_that_a_shell_is_about_to_begin_gets_its_agent(kit):
    for _ in range(30):
        process = subprocess.Popen(["sh", "-c", f"exec sh -c 'exec {kit.where}/wait read'"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE)
        target = inject_kit.Target(process)
        try:
            answer = kit.inject(target.pid)
            assert target.line() == "ready" and target.alive()
            assert answer["r"] == 0, answer
        finally:
            process.kill()
            process.communicate()


def test_several_at_once_bring_in_one_agent(kit, libc):
    with kit.run(libc + "wait", "read") as target:
        drivers = [subprocess.Popen([str(kit.where / "driver"), str(target.pid), str(kit.agent("ok"))],
                                    stdout=subprocess.PIPE) for _ in range(6)]
        answers = [json.loads(driver.communicate()[0]) for driver in drivers]
        assert [answer["r"] for answer in answers] == [0] * 6, answers
        assert sorted(answer["reused"] for answer in answers) == [0] + [1] * 5
        assert len({answer["status"] for answer in answers}) == 1
