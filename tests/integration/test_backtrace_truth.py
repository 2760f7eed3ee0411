"""No stack is reported that never was: samples of a program whose every stack can be judged (stack_kit.Tree), by every
way of reading and on every interpreter. PROBING_SOAK=1 takes a million of each."""
import os
import subprocess
import time

import interpreters
import jobs
import pytest
import stack_kit

pytestmark = pytest.mark.alone  # a target that waits for a CPU makes every reader look right
SAMPLES = 1000000 if os.environ.get("PROBING_SOAK") else 5000
EVERY = pytest.mark.parametrize("interpreter", interpreters.INTERPRETERS, ids=interpreters.interpreter_id)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return stack_kit.build("stack_driver.c", tmp_path_factory.mktemp("driver"))


def judge(tree, output):
    """How many stacks there were; every one of them must be possible."""
    *stacks, summary = output.splitlines()
    total, deep = 0, 0
    for line in stacks:
        count, _, stack = line.partition(" ")
        assert tree.wrong(stack) is None, (stack, tree.wrong(stack))
        total += int(count)
        deep = max(deep, len(stack.split()))
    return total, deep, summary


def test_the_judge_knows_wrong_stacks():
    tree = stack_kit.Tree()
    child = next(i for i in tree.parent if tree.parent[i] == 0)
    good = (f"<module>:{tree.main_line} main:{tree.call_line[0]} f0:{tree.call_line[child]} "
            f"{tree.name(child)}:{tree.lines[child][0]}")
    assert tree.wrong(good) is None
    assert tree.wrong(good.replace("<module>", "x")) and tree.wrong(good.replace(f"f0:{tree.call_line[child]}", "f0:1"))
    grandchild = next(i for i in tree.parent if tree.parent[i] == child)
    assert tree.wrong(good.rsplit(" ", 1)[0] + f" {tree.name(grandchild)}:{tree.lines[grandchild][0]}")


@pytest.mark.parametrize("ways", ["as", "s", "aps"])
@EVERY
def test_no_stack_that_never_was(driver, interpreter, ways):
    tree = stack_kit.Tree()
    with jobs.python(tree.text, interpreter) as job:
        done = subprocess.run([driver, str(job.pid), str(job.pid), str(SAMPLES), ways], stdout=subprocess.PIPE,
                              check=True, universal_newlines=True)
    total, deep, summary = judge(tree, done.stdout)
    # 5,000 samples may take less time than the program needs for one of its deepest calls.
    assert total >= 0.99 * SAMPLES and deep >= 4, summary


def run_time(pid):
    with open(f"/proc/{pid}/schedstat") as f:
        return int(f.read().split()[0])


def test_a_tool_that_is_killed_leaves_nothing_stopped(driver):
    tree = stack_kit.Tree()
    with jobs.python(tree.text) as job:
        for _ in range(20):
            tool = subprocess.Popen([driver, str(job.pid), str(job.pid), "100000000", "s"], stdout=subprocess.DEVNULL)
            time.sleep(0.05)
            tool.kill()
            tool.wait()
        before = run_time(job.pid)
        time.sleep(0.3)
        assert run_time(job.pid) > before, "it does not run any more"
        with open(f"/proc/{job.pid}/status") as f:
            assert "TracerPid:\t0" in f.read()
