"""Each probe and each hook is switched on and off again and again beside a program that notices harm: 1,000 times in the
long form, each by itself with an interpreter that the seed chooses; some times in the short form, one after the other.
"""
import zlib
from dataclasses import replace

import pytest
import runner
import tables
from cases import cases, skip_where_impossible
from runner import tell
from tables import COMMAND, GAP_SECONDS, SWITCHES, Command

TIMES = 1000 if runner.SOAK else 5
ON = {command.name: command for command in SWITCHES}
PAIRS = {
    "agent": ("prints", COMMAND["inject"], COMMAND["detach"]),
    "memory_usage": ("prints", COMMAND["probes-start"], ON["probes-stop"]),
    "catch": ("prints", COMMAND["catch-quiet"], COMMAND["catch-stop"]),
    "trace": ("prints", ON["trace-on"], COMMAND["trace-stop"]),
    "watch": ("prints", ON["watch-on"], ON["watch-stop"]),
    "break": ("prints", Command("break-on", ["break", "kit.py:101", "--log", "{x}"], injects=True, runs_code=True),
              COMMAND["break-stop"]),
    "pause": ("prints", ON["pause-all"], ON["pause-continue"]),
    "memory": ("prints", COMMAND["memory-on"], COMMAND["memory-off"]),
    "torch": ("loader", COMMAND["probes-torch"], COMMAND["probes-torch-off"]),
    "track": ("loader", COMMAND["track"], Command("track-stop", ["track", "off"])),
    "memory of torch": ("loader", COMMAND["memory-on"], COMMAND["memory-off"]),
}


def plans():
    """(target, commands): one for each pair in the long form, one for each target in the short form."""
    for name in PAIRS if runner.SOAK else ("prints", "loader"):
        pairs = [pair for key, pair in PAIRS.items() if name in (key, pair[0])]
        plan = [(command, "none") for _, on, off in pairs for _ in range(TIMES) for command in (on, off)]
        found = [case for case in cases() if case.values[0] is tables.BY_NAME[pairs[0][0]]]
        case = found[(zlib.crc32(name.encode()) + runner.SEED) % len(found)]
        yield pytest.param(*case.values, plan, id=f"{name}-{case.id}")


@pytest.mark.parametrize("target, position, python, version, plan", list(plans()))
def test_what_comes_and_goes_does_no_harm(target, position, python, version, plan, parts, control):
    make = lambda: runner.Case(replace(target, gap=GAP_SECONDS), python, parts, control)
    skip_where_impossible(make(), version)
    harms = runner.confirmed(make, plan)
    assert not harms, tell(harms)
