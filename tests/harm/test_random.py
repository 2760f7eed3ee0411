"""Random sequences of commands and switches, one to three tools at a time, left alone, killed, stopped, or without a
reader, done to programs that notice harm. The matrix does commands one after the other; here each finds what others
left.

The short form plays 15 s against each of two programs; PROBING_SOAK=1 plays 30 minutes, on all of PLAYED with every
interpreter found. To repeat a failure: HARM_SEED=<seed> build/venv/bin/python -m pytest tests/harm/test_random.py.
"""
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import runner
import tables
from cases import cases, skip_where_impossible
from runner import Ended, tell
from tables import DISTURBANCES

MOVES = tables.COMMANDS + tables.SWITCHES * 2  # what is switched meets what another move left switched
PLAYED = ("prints", "loader") if not runner.SOAK else ("prints", "quiet", "forks", "threads", "asyncio_loop",
                                                       "greenlets", "signals", "storm", "loader")
CASES = [case for case in cases() if case.values[0].name in PLAYED]
SECONDS = 1800 / len(CASES) if runner.SOAK else 15


def play(case, rng):
    """The seed says what is done. When a tool is killed depends on the machine too."""
    end = time.monotonic() + SECONDS * runner.SLOW
    with ThreadPoolExecutor(3) as tools:
        while time.monotonic() < end:
            # One may take away what another needs, also one that came before: a pause that was left, a detach.
            moves = [(replace(rng.choice(MOVES), status=(0, 1), says=None), rng.choice(DISTURBANCES))
                     for _ in range(rng.choice([1, 1, 2, 3]))]
            for tool in [tools.submit(case.tool, *move) for move in moves]:
                tool.result()
            if not case.alive():
                raise Ended(f"the program ended with {case.describe_end()}")
            if case.harms:  # of the tool: what comes after no error message more
                return


@pytest.mark.parametrize("target, position, python, version", CASES)
def test_no_sequence_of_commands_harms(target, position, python, version, parts, control, monkeypatch):
    made = []
    # Several tools at a time: more threads of ours allocate at the same moment, each in a heap that stays
    # (docs/safety.md).
    monkeypatch.setitem(runner.GROWTH_KB, "VmRSS", 32 << 10)

    def make():
        made.append(runner.Case(replace(target, gap=tables.GAP_SECONDS), python, parts, control))
        return made[-1]

    skip_where_impossible(make(), version)
    harms = runner.confirmed(make, lambda case: play(case, random.Random(f"{runner.SEED} {target.name}")))
    case = made[-1]
    last = ", ".join(f"{command.name} ({how}) {began - case.log[0][0]:.3f} to {ended - case.log[0][0]:.3f} s"
                     for began, ended, command, how in case.log[-12:])
    assert not harms, f"{tell(harms)}\nafter {len(case.log)} commands, last {last}"
