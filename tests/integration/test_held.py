"""now and backtrace of a process that a prompt of ours holds: by what, since when, where its own code is, and how it
goes on."""
import json
import re
import time

import jobs
import pytest
from jobs import probe
from prompt_kit import COUNTING
from every_python import SOME, program

FAILS = COUNTING.replace("        total +=", "        if step > 300: raise ValueError('x')\n        total +=")
LINE = COUNTING.splitlines().index("        step += 1") + 1


def looks(job):
    """(the line of now, the text of backtrace, its JSON)."""
    line = next(line for line in json.loads(probe("-t", job.pid, "now", "--json").stdout) if line["pid"] == job.pid)
    return line, probe("-t", job.pid,
                       "backtrace").stdout, json.loads(probe("-t", job.pid, "backtrace", "--json").stdout)[0]


@SOME
def test_a_pause(python):
    with program(python, COUNTING) as job:
        before, text, _ = looks(job)
        assert "paused" not in text and "paused" not in before["state"]
        began = time.monotonic()
        first = probe("-t", job.pid, "pause", "--limit", "60s")
        assert first.returncode == 0, first.stderr
        time.sleep(2.2)
        line, text, data = looks(job)
        most = time.monotonic() - began + 1
        seconds = int(re.search(r"paused by `pause` since (\d+) s", text).group(1))
        assert 1 <= seconds <= most and 1.9 <= line["since"] <= most
        assert re.fullmatch(r"paused by `pause` since \d+ s", line["state"]), line
        assert line["function"].endswith(("train", "helper")), line
        assert first.stdout.strip() in line["verdict"]
        assert f"`probing -t {job.pid} continue` resumes it" in line["verdict"]
        assert line["verdict"] in text or "paused by `pause`" in text
        thread = next(thread for thread in data["threads"] if thread["tid"] == job.pid
                      or thread["name"] == "MainThread")
        assert thread["state"].startswith("paused by `pause` since ") and "paused by `pause`" in data["verdict"]
        assert "<probing>" not in str([frame for frame in thread["frames"]]), thread
        second = probe("-t", job.pid, "pause")
        assert (second.returncode, second.stdout) == (0, first.stdout), second.stderr
        assert re.search(r"paused already, since \d+ s at \S+:\d+ (train|helper)", second.stderr), second.stderr
        assert probe("-t", job.pid, "continue").returncode == 0
        jobs.wait_until(lambda: "paused" not in probe("-t", job.pid, "backtrace").stdout, what="the end of the pause")


@pytest.mark.parametrize("command,says", [(("catch", "--limit", "60s"), "catch --stop` lets it end"),
                                          (("break", f"FILE:{LINE}", "--limit", "60s"), "continue` resumes it")])
def test_other_prompts(command, says):
    import sys

    with program(sys.executable, FAILS if command[0] == "catch" else COUNTING) as job:
        file = re.search(r"/\S+\.py", open(f"/proc/{job.pid}/cmdline").read().replace("\0", " ")).group(0)
        done = probe("-t", job.pid, *[word.replace("FILE", file) for word in command])
        assert done.returncode == 0, done.stderr
        jobs.wait_until(lambda: "held by `" in probe("-t", job.pid, "backtrace").stdout, what="the hold")
        line, text, data = looks(job)
        assert line["state"].startswith(f"held by `{command[0]}` since ")
        assert says in line["verdict"]
        assert str(job.pid) in line["verdict"]
        assert f"held by `{command[0]}`" in text and says in data["verdict"]
        if command[0] == "catch":
            raises = next(number for number, each in enumerate(FAILS.splitlines(), 1) if "raise ValueError" in each)
            assert done.stdout.strip() in line["verdict"], line
            assert f"after ValueError in train ({file}:{raises})" in line["verdict"], line
            assert (line["function"], line["file"], line["line"]) == ("train", file, raises), text
            assert "<probing>" not in text + str(data), text
        else:
            assert line["function"].endswith("train") and line["line"] == LINE
