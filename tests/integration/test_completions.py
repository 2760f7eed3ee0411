"""Completions as a person has them: a shell on a terminal, what was begun, and Tab."""
import os
import shutil
import subprocess

import jobs
import pytest
from jobs import probe
from terminal_kit import Terminal

START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {script}"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -u -D; source {script}"),
}
# What is typed, and what stands there after one Tab.
TYPED = [
    ("probing exe", "probing execute "), ("probing -t 1 detac", "probing -t 1 detach "),
    ("probe flameg", "probe flamegraph "),
    ("probing -t 1 backtrace --loc", "probing -t 1 backtrace --locals "),
    ("probing record --watchd", "probing record --watchdog "),
    ("probing memory --js", "probing memory --json "), ("probing list --form", "probing list --format "),
    ("probing list --format js", "probing list --format json "),
]


def environment():
    return {**os.environ, "PATH": f"{jobs.PROGRAM.parent}:{os.environ['PATH']}", "PS1": "> ", "TERM": "xterm"}


@pytest.fixture(scope="module", params=["bash", "zsh"])
def shell(request, tmp_path_factory):
    """A shell that has read its completions, on a terminal."""
    if not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    script = tmp_path_factory.mktemp("completions") / "script"
    script.write_text(probe("completions", request.param).stdout)
    words, load = START[request.param]
    with Terminal(shutil.which(words[0]), *words[1:], env=environment(), columns=120) as terminal:
        terminal.send(f"{load.format(script=script)}; PS1='> '; PROMPT='> '; echo l''oaded\r")
        terminal.wait("loaded\n>")
        yield terminal


def current(screen):
    return screen.lines()[screen.row]


@pytest.mark.parametrize("typed, becomes", TYPED, ids=[typed for typed, _ in TYPED])
def test_tab_completes(shell, typed, becomes):
    shell.send("\x15\x0c")  # a clean line on a clean screen
    shell.settle()
    shell.send(typed + "\t")
    shell.wait(lambda screen: becomes.rstrip() in current(screen))
    # What comes next begins a new word, so the completion was taken as whole.
    shell.send("Z")
    shell.wait(lambda screen: becomes + "Z" in current(screen))
    shell.send("\x15")


def test_tab_lists_the_options_of_that_command_and_no_commands(shell):
    shell.send("\x15\x0c")
    shell.settle()
    shell.send("probing list --\t\t")
    shell.wait("--json")
    text = shell.screen.text()
    assert not [option for option in ("--watchdog", "--timeout", "--all") if option in text]
    assert "flamegraph" not in text
    shell.send("\x15")


def test_a_target_completes_to_a_process(shell):
    with jobs.python() as job:  # only part of its number is typed
        begun = str(job.pid)[:-1]
        shell.send("\x15\x0c")
        shell.settle()
        shell.send(f"probing -t {begun}\t\t")
        # On the line where it is the only one that begins so, else in a list below.
        shell.wait(lambda screen: str(job.pid) in screen.text())
        shell.send("\x15")


def fish(script, line):
    """What fish itself would offer, one a line."""
    done = subprocess.run(["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, env=environment(), timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return [offer.split("\t")[0] for offer in done.stdout.splitlines()]


def test_fish_completes(tmp_path):
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    script = tmp_path / "script"
    script.write_text(probe("completions", "fish").stdout)
    for typed, becomes in TYPED:
        assert fish(script, typed) == [becomes.split()[-1]], typed
    offered = fish(script, "probing list --")
    assert "--json" in offered and not {"--watchdog", "--timeout", "--all"} & set(offered)
    assert {"--timeout", "--all"} <= set(fish(script, "probing eval --"))
    commands = fish(script, "probing ")
    assert {"list", "query", "help"} <= set(commands) and not [name for name in commands if name.startswith("-")]
    with jobs.python() as job:
        assert str(job.pid) in fish(script, "probing -t ")
