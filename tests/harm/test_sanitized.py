"""The same suite with an agent that was built with ASan and UBSan, and one with TSan. The sanitizer's run time is
preloaded into the target; what it writes is the finding. Times and memory are not judged here."""
import random
import sys

import pytest
import runner
import tables
from runner import tell

SHORT = {"asan": ["prints", "forks", "threads", "c-native"], "tsan": ["prints", "threads", "c-native"]}
# tsan wants its addresses free, whatever the kernel's address space randomization does.
# tsan's own run time faults now and then where it starts a thread (it reads the arguments from the stack of the one
# that asked, before it has noted the new one), once in some ten runs on a busy machine, and cannot say of what. A
# finding has a stack, and counts the first time.
NOT_A_FINDING, TRIES = "ThreadSanitizer: nested bug in the same thread", 3
PREFIX = {"asan": (), "tsan": ("setarch", "-R")}


def cases():
    for preset in ("asan", "tsan"):
        names = [target.name for target in tables.TARGETS
                 if not (target.preload or target.cgroup_mb or target.refuses or target.alone)]
        for name in names if runner.SOAK else SHORT[preset]:
            yield pytest.param(preset, tables.BY_NAME[name], id=f"{preset}-{name}")


@pytest.mark.parametrize("preset, target", list(cases()))
def test_a_sanitizer_has_nothing_to_say(preset, target, parts):
    why = tables.why_not(target, sys.version_info[:3])
    if why:
        pytest.skip(why)
    for _ in range(TRIES):
        case = runner.Case(target, sys.executable, parts, env=runner.SANITIZERS[preset], preload=[runtime(preset)],
                           prefix=PREFIX[preset], timing=False, program=runner.installation(preset, parts))
        rng = random.Random(f"{runner.SEED} {preset} {target.name}")
        plan = runner.plan_for(target, rng.randrange(len(tables.TARGETS)), rng)
        harms = case.run(plan)
        if NOT_A_FINDING not in tell(harms):
            break
    assert not harms, tell(harms)


def runtime(preset):
    return runner.runtime({"asan": "libasan.so", "tsan": "libtsan.so"}[preset])
