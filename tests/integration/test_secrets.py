"""Secrets are masked at every outlet, by the words of the process asked about and those of the tool."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import jobs
from interpreters import INTERPRETERS, interpreter_id

# Each secret is spelled SECRET.., each value that may be seen seen-..
CODE = """
import time

class Account:
    def __init__(self):
        self.user, self.auth_token = "seen-user", "SECRET-attribute"

    def forward(self):
        pass

class Sub(Account):
    pass

def account_of():
    return Sub().forward

def stuck(api_key, plain="seen-plain"):
    password, token_count, api_key_loaded, secret_fn, credential = 987654321, 17, None, stuck, time
    src_key_padding_mask, key, eos_token = "seen-mask", "seen-key", "seen-eos"
    passwords = ["SECRET-in-list", ("SECRET-in-tuple", 5551)]
    forward_call, write_secret = account_of(), print
    nested = {"deep": {"client_secret": "SECRET-dict"}, b"my_token": "SECRET-bytes", ("db", "password"): "SECRET-tuple", "name": "seen-name"}
    account = Account()
    listed = [{"credential": "SECRET-list"}, "seen-item"]
    hostname = "seen-host"
    print("ready", flush=True)
    time.sleep(120)

stuck("SEC" + "RET-argument")
"""
ENV = {"MY_API_KEY": "SECRET-environment", "PLAIN_NAME": "seen-variable", "PROBING_DIR": ""}
ARGS = ["--api-key", "SECRET-option", "--password=SECRET-equals", "--lr", "seen-rate"]
# Only text and bytes are secrets: not numbers, None, functions or modules, by whatever name.
HIDDEN = ("SECRET",)
SHOWN = ("seen-plain", "seen-name", "seen-user", "seen-item", "seen-host", "seen-mask", "seen-key", "seen-eos",
         "987654321", "5551",
         "token_count = 17", "api_key_loaded = None", "secret_fn = <function stuck at 0x", "credential = <module time>",
         "forward_call = <method Account.forward of Sub at 0x", "write_secret = <built-in function print>")


def probe(*args, env=None):
    done = subprocess.run([jobs.PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **(env or {})})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def job(tmp_path):
    script = tmp_path / "stuck.py"
    script.write_text(CODE)
    with jobs.start(sys.executable, script, *ARGS, ready="ready", env=ENV) as target:
        yield target


def outlets(pid):
    """What each of them shows of the process."""
    yield "backtrace --locals", probe(pid, "backtrace", "--locals")
    yield "backtrace --locals --json", probe(pid, "backtrace", "--locals", "--json")
    yield "python.backtrace", probe(pid, "query", "--format", "json", "SELECT func, locals FROM python.backtrace")
    yield "system.envs", probe(pid, "query", "--format", "json", "SELECT * FROM system.envs")
    yield "system.process", probe(pid, "query", "--format", "json", "SELECT * FROM system.process")
    yield "list", "\n".join(line for line in probe("list").splitlines() if str(pid) in line.split())


@pytest.mark.parametrize("interpreter", [INTERPRETERS[0], INTERPRETERS[-1]], ids=interpreter_id)
def test_locals_of_old_and_new_pythons(interpreter, tmp_path):
    (tmp_path / "stuck.py").write_text(CODE)
    with jobs.start(interpreter, tmp_path / "stuck.py", ready="ready") as target:
        text = probe(target.pid, "backtrace", "--locals")
        assert not any(word in text for word in HIDDEN), text
        assert all(word in text for word in SHOWN), text


def test_no_outlet_shows_a_secret(job):
    for probed in (False, True):
        for outlet, text in outlets(job.pid):
            assert text and not any(word in text for word in HIDDEN), f"{outlet}: {text}"
            if "locals" in outlet or "python" in outlet:
                as_text = text.replace('": "', " = ")  # JSON has an object for the variables of a frame
                assert all(word in as_text for word in SHOWN), f"{outlet}: {text}"
        envs = json.loads(dict(outlets(job.pid))["system.envs"])
        assert {row["name"]: row["value"] for row in envs if row["name"] in ENV} == {**ENV, "MY_API_KEY": "***"}
        commands = [row["command"] for row in json.loads(probe("list", "--json"))]  # whole: a table cuts them
        assert any("--api-key *** --password=*** --lr seen-rate" in command for command in commands)
        probe(job.pid, "inject")


def run_folder(pid):
    """Where the agent, or a recorder of that process, keeps its files."""
    found = [path for root in ("/dev/shm", "/tmp", "/var/tmp") for path in Path(root).glob(f"probing-{os.geteuid()}/*")
             if f"-{pid}-" in path.name]
    assert found
    return found


def test_no_file_holds_a_secret(job):
    probe(job.pid, "inject")
    probe(job.pid, "record", "--watchdog", "1s", "--duration", "3")
    hangs = json.loads(probe(job.pid, "query", "--format", "json", "SELECT locals FROM python.hangs WHERE function "
                                                                   "LIKE '%stuck%'"))
    assert hangs and all(word in hangs[0]["locals"] for word in SHOWN)
    folders = run_folder(job.pid)
    assert len(folders) == 2
    for folder in folders:
        for path in folder.iterdir():
            if path.is_file():
                assert b"SECRET" not in path.read_bytes(), path


def test_the_words_of_the_process_count_and_those_of_the_tool_are_added(job):
    probe(job.pid, "config", "probing.redact=host,plain,option")
    for outlet, text in outlets(job.pid):
        assert "seen-host" not in text and "seen-plain" not in text and "seen-variable" not in text, outlet
    assert "SECRET-dict" in probe(job.pid, "backtrace", "--locals")
    text = probe(job.pid, "backtrace", "--locals", env={"PROBING_REDACT": "secret,NAME"})
    assert "SECRET-dict" not in text and "seen-name" not in text and "seen-host" not in text and "SECRET-list" in text
    probe(job.pid, "config", "probing.redact=")
    assert "SECRET-attribute" in probe(job.pid, "backtrace", "--locals")


def test_a_variable_of_the_process_is_enough(tmp_path):
    (tmp_path / "stuck.py").write_text(CODE)
    with jobs.start(sys.executable, tmp_path / "stuck.py", ready="ready", env={"PROBING_REDACT": "hostname"}) as target:
        text = probe(target.pid, "backtrace", "--locals")
        assert "seen-host" not in text and "SECRET-dict" in text
