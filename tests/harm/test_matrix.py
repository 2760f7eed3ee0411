"""Nothing we do may harm the job: every target of tables.py with commands that are left alone, killed, stopped, or lose
their reader. The short form picks some by a seed; PROBING_SOAK=1 takes all, with every interpreter found.

To repeat a failure: HARM_SEED=<seed> build/venv/bin/python -m pytest tests/harm -k '<id>'; HARM_VERBOSE=1 shows each
command; HARM_PYTHON=path picks the interpreter.
"""
import os
import random
import subprocess
import time

import pytest
import runner
import tables
from cases import FOUND, cases, skip_where_impossible
from runner import tell

@pytest.mark.parametrize("target, position, python, version", list(cases()))
def test_no_command_harms(target, position, python, version, parts, control):
    skip_where_impossible(runner.Case(target, python, parts, control), version)
    plan = runner.plan_for(target, position, random.Random(f"{runner.SEED} {target.name}"))
    harms = runner.confirmed(lambda: runner.Case(target, python, parts, control), plan)
    assert not harms, tell(harms)


CALM = [case for case in cases() if runner.SOAK or case.values[0].name in ("prints", "forks", "waits")]


@pytest.mark.parametrize("target, position, python, version", CALM)
def test_the_suite_finds_nothing_where_nothing_is_done(target, position, python, version, parts, control):
    skip_where_impossible(runner.Case(target, python, parts, control), version)
    harms = runner.confirmed(lambda: runner.Case(target, python, parts, control), [])
    assert not harms, tell(harms)


@pytest.mark.parametrize("last", ["exit", "exec"])
def test_a_program_that_ends_meanwhile_ends_as_it_would(last, parts, soak):
    rng = random.Random(f"{runner.SEED} {last}")
    wrong = []
    for number in range(200 if soak else 12):
        python = rng.choice(list(FOUND))
        job = subprocess.Popen([python, tables.BODIES, "short_life", str(rng.uniform(0, 0.25)), last],
                               stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, env={**os.environ, "HARM_REPORT": str(parts / "none")})
        time.sleep(rng.uniform(0, 0.2))
        tool = subprocess.Popen([runner.PROGRAM, "-t", str(job.pid),
                                 *rng.choice([["inject"], ["eval", "1+1"], ["backtrace", "--native"]])],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            out = job.communicate(timeout=20 * runner.SLOW)[0].decode()
        except subprocess.TimeoutExpired:
            job.kill()
            out = "hung " + job.communicate()[0].decode()
        try:
            err = tool.communicate(timeout=30 * runner.SLOW)[1].decode()
        except subprocess.TimeoutExpired:
            tool.kill()
            err = "the tool hangs " + tool.communicate()[1].decode()
        if job.returncode or out != "fine\n" or tool.returncode not in (0, 1):
            wrong.append(f"{python}, run {number}: {job.returncode} {out[-300:]!r}; the tool: {tool.returncode} "
                         f"{err[-300:]!r}")
    assert not wrong, tell(wrong)
