"""Every system call of the agent fails once, and all from it on (faults.c): the program does not notice, the tool
answers with a status and a line, and when calls work again so does the agent."""
import dataclasses
import mmap
import random
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import runner
import tables
from runner import tell
from tables import COMMAND

ROUNDS, SECONDS = 40, 8  # the short form: so many of the calls, in about that time
PROGRAMS = 4  # at once


class Faults:
    """What faults.c shares with us."""

    def __init__(self, path):
        with open(path, "w+b") as file:
            file.truncate(4096)
            self.memory = mmap.mmap(file.fileno(), 4096)

    def set(self, nth, on):
        self.memory[0:48] = struct.pack("4I32s", nth, on, 0, 0, b"")

    def result(self):
        _, _, calls, failed, name = struct.unpack("4I32s", self.memory[0:48])
        return calls, failed, name.split(b"\0")[0].decode()


def turn(case):
    """What a person does: bring the agent in, ask, leave."""
    ok = case.ask("inject")
    ok = case.ask("eval" if case.target.python else "config") and ok
    return case.ask("detach") and ok


class Fault(runner.Case):
    def ask(self, name):
        """The tool ends with a status, and with a line where that is not 0. Returns whether it is 0."""
        found = len(self.harms)
        began = time.monotonic()
        self.status = None
        # An agent that cannot accept a client is not waited for longer than this.
        self.tool(dataclasses.replace(COMMAND[name], words=[*COMMAND[name].words, "--timeout", "2"]))
        if time.monotonic() - began > 15 and len(self.harms) == found:
            self.harms.append(f"{name} took {time.monotonic() - began:.0f} s")
        if not self.alive():
            raise runner.Ended(f"the program ended with {self.describe_end()}")
        return self.status == 0

    def judge_tool(self, command, disturbance, status, out, err):
        self.status, text = status, err.decode(errors="replace")
        if status not in (0, 1) or status == 1 and not 1 <= text.count("\n") <= 2:
            self.harms.append(f"{command.name} gave status {status}: {text[-400:]!r}")
        return True


def fail_calls(name, on, part, parts):
    """Every PROGRAMS-th of the chosen calls, in a program of its own. Returns the harms."""
    shared = parts / f"probing-faults-{name}-{on}-{part}"
    # A root of its own: how many calls there are shall not depend on old runs.
    runs = parts / f"runs-{name}-{on}-{part}"
    runs.mkdir()
    faults = Faults(shared)
    case = Fault(tables.BY_NAME[name], sys.executable, parts,
                 env={"HARM_FAULTS": str(shared), "PROBING_DIR": str(runs)}, timing=False,
                 program=runner.installation("faults", parts))
    rng = random.Random(f"{runner.SEED} {name} {on}")

    def fail_each(case):
        calls = 0
        for _ in range(2):  # the second time is as all later ones
            faults.set(0, 0)
            assert turn(case), f"without a fault: {case.harms}"
            calls = faults.result()[0]
        assert calls > 20, "the calls of the agent do not go through faults.c"
        each = range(1, calls + 20) if runner.SOAK else rng.sample(range(1, calls + 1), min(ROUNDS, calls))
        until = time.monotonic() + SECONDS
        for done, nth in enumerate(each[part::PROGRAMS]):
            # An agent all of whose calls fail answers nothing: three tools then wait out their time.
            if time.monotonic() > until and done >= 2 and not runner.SOAK:
                break
            found = len(case.harms)
            case.label = f"call {nth} fails"
            faults.set(nth, on)
            try:
                turn(case)
            finally:
                failed, call = faults.result()[1:]
                faults.set(0, 0)
                case.harms[found:] = [f"call {nth} ({call}): {harm}" for harm in case.harms[found:]]
            case.label = f"after call {nth} ({call}) failed"
            if not turn(case) and not turn(case):
                case.harms.append(f"call {nth} ({call}): the agent does not work any more when calls work again")
                break

    try:
        return case.run(fail_each)
    except AssertionError:
        case.clean()
        raise


@pytest.mark.timeout(600)
@pytest.mark.parametrize("on", [0, 1], ids=["one", "all-from-there"])
@pytest.mark.parametrize("name", ["forks", "prints", "c-native"] if runner.SOAK else ["forks"])
def test_a_call_that_fails_is_not_noticed(name, on, parts):
    runner.installation("faults", parts)
    with ThreadPoolExecutor(PROGRAMS) as pool:  # their tools wait most of the time
        harms = sum(pool.map(lambda part: fail_calls(name, on, part, parts), range(PROGRAMS)), [])
    assert not harms, tell(harms)
