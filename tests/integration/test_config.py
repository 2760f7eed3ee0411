"""Settings: shown with all that is known of them, changed in a running process, kept when it has ended. And what they
do: the bound holds, secrets are masked at every outlet."""

import json
import os
import signal
import subprocess
import time

import pytest

import jobs
from jobs import rows

SETTINGS = {"probing.sample_rate", "probing.max_memory", "probing.retention_days", "probing.compression",
            "probing.redact",
            "probing.torch.profiling", "probing.torch.budget", "probing.torch.hang_timeout", "probing.memory.sampling",
            "probing.archive", "probing.diagnose.rules", "probing.diagnose.every", "probing.alert.webhook"}
IDLE = "print('ready', flush=True); import time; time.sleep(120)"


def probe(*args, env=None):
    return subprocess.run([jobs.PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **(env or {})})


def config(*args, env=None):
    done = probe(*args, "config", "--json", env=env)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


def test_without_a_process_the_defaults_and_this_environment_are_shown():
    shown = config(env={"PROBING_SAMPLE_RATE": "0.1", "PROBING_RETENTION_DAYS": "30", "PROBING_COMPRESSION": "best"})
    assert set(shown) == SETTINGS
    for row in shown.values():
        assert row["default_value"] and row["explanation"] and row["target"] is None
    assert (shown["probing.sample_rate"]["value"], shown["probing.sample_rate"]["origin"]) == ("0.1", "environment")
    assert (shown["probing.retention_days"]["value"], shown["probing.retention_days"]["unit"]) == ("30", "days")
    assert shown["probing.compression"]["value"] == "zstd" and "wrong" in shown["probing.compression"]["origin"]
    text = probe("config").stdout
    assert all(name in text for name in SETTINGS) and "default" in text and "40MB  (default)" in text
    archive = config(env={"PROBING_ARCHIVE": "/data/a", "XDG_DATA_HOME": "/data/x"})["probing.archive"]
    assert (archive["value"], archive["default_value"],
            archive["origin"]) == ("/data/a", "/data/x/probing/archive", "environment")
    assert config(env={"PROBING_ARCHIVE": "none"})["probing.archive"]["value"] == "none"
    hook = config(env={"PROBING_ALERT_WEBHOOK": "https://me:pass@hooks.test:1/T0/secret"})["probing.alert.webhook"]
    assert hook["value"] == "https://hooks.test:1/..", "who has the path may post there"
    done = probe("config", "probing.diagnose.rules=/data/r")
    assert done.returncode == 2 and "PROBING_DIAGNOSE_RULES=/data/r" in done.stderr
    done = probe("config", "probing.archive=/data/a")
    assert done.returncode == 2 and "PROBING_ARCHIVE=/data/a" in done.stderr
    assert len(probe("config", "--format", "csv").stdout.splitlines()) == 1 + len(SETTINGS)
    done = probe("config", "probing.sample_rate=0.5")
    assert done.returncode == 2 and "which process" in done.stderr


@pytest.mark.parametrize("word, said", [
    ("probing.sample_rat=0.5", "did you mean probing.sample_rate?"),
    ("retention_day", "did you mean probing.retention_days?"),
    ("quux", "(probing config lists them)"), ("probing.sample_rate=2", "a share from 0.0001 to 1"),
    ("probing.sample_rate=", "a share"),
    ("probing.max_memory=1", "a size from 2MB to 1TB"), ("probing.compression=fast", "zstd, snappy, gzip or none"),
    ("probing.retention_days=never", "days from 0.01 to 3650"), ("probing.redact=a b;c", "words of letters")])
def test_what_is_wrong_is_said_with_what_is_allowed(word, said):
    done = probe(os.getpid(), "config", word)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_settings_of_a_running_process_are_changed_several_at_once_or_none():
    with jobs.python(IDLE, env={"PROBING_SAMPLE_RATE": "0.2"}) as job:
        assert config(job.pid)["probing.sample_rate"]["value"] == "0.2"
        assert "probing" not in job.threads(), "to show is not to inject"
        done = probe(job.pid, "config", "probing.max_memory=8MB", "probing.compression=gzip", "--format", "json")
        assert [row["value"] for row in json.loads(done.stdout)] == ["8MB", "gzip"]
        assert probe(job.pid, "config", "probing.compression=none", "probing.max_memory=1").returncode == 2
        shown = config(job.pid)
        assert {name: (row["value"], row["origin"]) for name, row in shown.items() if row["origin"] != "default"} == {
            "probing.sample_rate": ("0.2", "environment"), "probing.max_memory": ("8MB", "command"),
            "probing.compression": ("gzip", "command")}
        in_sql = {row["name"]: row["value"] for row in rows(job.pid, "SELECT * FROM probing.config")}
        assert in_sql == {name: row["value"] for name, row in shown.items()}
        os.kill(job.pid, signal.SIGSTOP)  # no thread of the process needs to answer
        assert config(job.pid)["probing.max_memory"]["value"] == "8MB"
        os.kill(job.pid, signal.SIGKILL)
        job.process.wait()
        assert config(job.pid) == {name: {**row, "target": config(job.pid)[name]["target"]}
                                   for name, row in shown.items()}
        done = probe(job.pid, "config", "probing.max_memory=1GB")
        assert done.returncode == 1 and "has ended" in done.stderr


def test_the_sample_rate_is_what_is_sampled_with():
    with jobs.python() as job:
        for env, set_there, rate in (({}, None, "100"), ({"PROBING_SAMPLE_RATE": "0.05"}, None, "50"),
                                     ({}, "probing.sample_rate=0.02", "20"),
                                     ({"PROBING_SAMPLE_RATE": "0.05"}, None, "20")):
            if set_there:
                assert probe(job.pid, "config", set_there).returncode == 0
            assert f" at {rate} Hz" in probe(job.pid, "record", "--duration", "0.5", env=env).stdout
        assert " at 200 Hz" in probe(job.pid, "record", "--duration", "0.5", "--rate", "200").stdout
        # One that runs goes on at the rate that is set meanwhile.
        recorder = subprocess.Popen([jobs.PROGRAM, "-t", str(job.pid), "record", "--duration", "4"],
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        time.sleep(0.7)
        assert probe(job.pid, "config", "probing.sample_rate=0.04").returncode == 0
        assert " at 40 Hz" in recorder.communicate(timeout=30)[0] and recorder.returncode == 0


def test_the_manual_and_the_document_tell_of_every_setting():
    document = (jobs.TOP / "docs/settings.md").read_text()
    manual = probe("man").stdout
    for name, row in config().items():
        default = "~/.local/share/probing/archive" if name == "probing.archive" else row["default_value"]
        assert f"| `{name}` | {default} |" in document
        assert name.upper().replace(".", "_") in manual
