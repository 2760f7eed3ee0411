"""The tool in trouble: killed at any moment, a full disk. The program does not notice, the tool says a line."""
import os
import random
import subprocess
import sys
from contextlib import contextmanager

import pytest
import runner
import tables
from runner import tell
from tables import COMMAND, COMMANDS


def test_tools_killed_at_any_moment_leave_nothing(parts, control, soak):
    rng = random.Random(runner.SEED)
    plan = [(COMMAND[rng.choice(["inject", "eval", "detach", "backtrace-native"])], "kill")
            for _ in range(600 if soak else 60)]
    harms = runner.confirmed(lambda: runner.Case(tables.BY_NAME["quiet"], sys.executable, parts, control), plan)
    assert not harms, tell(harms)


@contextmanager
def small_disk(at, kilobytes):
    at.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(at)], stderr=subprocess.PIPE)
    if done.returncode:
        pytest.skip(f"no small file system can be mounted: {done.stderr.decode().strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


class FullDisk(runner.Case):
    def judge_tool(self, command, disturbance, status, out, err):
        """Whether a command works there depends on the size; that it says why in a line does not."""
        text = err.decode(errors="replace")
        if status not in (0, 1) or status == 1 and not text.strip():
            self.harms.append(f"{command.name} gave status {status}: {text[-400:]!r}")
        if command.name == "flamegraph" and status and "No space left on device" not in text:
            self.harms.append(f"{command.name} does not say why: {text[-400:]!r}")
        return True


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root rights")
@pytest.mark.parametrize("kilobytes", [4, 64, 1024])
def test_a_full_disk_is_told_in_a_line(kilobytes, parts, control):
    with small_disk(parts / f"disk-{kilobytes}", kilobytes) as disk:
        writes = [tables.Command("flamegraph", ["flamegraph", "--duration", "200ms", "-o", f"{disk}/x.svg"]),
                  tables.Command("fill", ["query", "-o", f"{disk}/rows.csv", "SELECT * FROM range(1000000)"])]
        names = ("inject", "eval", "eval-prints", "config-set", "record", "tables", "query", "memory", "detach")
        plan = [(command, "none") for command in COMMANDS
                if command.name in names] + [(command, "none") for command in writes]
        harms = runner.confirmed(lambda: FullDisk(tables.BY_NAME["prints-buffered"], sys.executable, parts, control,
                                                  env={"PROBING_DIR": str(disk)}), plan)
    assert not harms, tell(harms)
