"""The examples of examples/serve: what systemd, a container and Kubernetes are told must be true of the program."""
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from jobs import PROGRAM, probe

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/serve"


def options_used(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def test_the_options_that_examples_use_are_there():
    known = options_used(probe("serve", "--help").stdout)
    for name in ("probing.service", "Containerfile", "sidecar.yaml"):
        for line in re.findall(r"probing\W+serve[^\n]*", (EXAMPLES / name).read_text()):
            assert options_used(line) <= known, (name, line)
    assert {"--record", "--watchdog", "--archive", "--token-file"} <= known


def test_systemd_takes_the_unit(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "probing.service"
    unit.write_text((EXAMPLES / "probing.service").read_text().replace("/usr/bin/env probing",
                                                                       str(PROGRAM)).replace(
                                                                           "Documentation=man:probing(1)\n", ""))
    done = subprocess.run(["systemd-analyze", "verify", "--user", unit], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)})
    if re.search(r"Failed to (connect|initialize|get|lookup)", done.stderr):
        pytest.skip(f"systemd-analyze cannot work here: {done.stderr.strip()[:200]}")
    assert done.returncode == 0 and "probing.service" not in done.stderr, done.stderr


def test_the_pod_shares_processes_and_keeps_the_token_secret():
    if not importlib.util.find_spec("yaml"):
        pytest.skip("PyYAML is not installed: scripts/setup.sh test")
    import yaml
    secret, pod = yaml.safe_load_all((EXAMPLES / "sidecar.yaml").read_text())
    assert pod["spec"]["shareProcessNamespace"] is True and len(secret["stringData"]["token"]) == 64
    probing = pod["spec"]["containers"][1]
    assert probing["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE"]
    assert "--token-file" in " ".join(probing["command"])
    assert [volume["secret"]["defaultMode"] for volume in pod["spec"]["volumes"] if "secret" in volume] == [0o400]
    assert {mount["name"] for mount in probing["volumeMounts"]} == {volume["name"] for volume in pod["spec"]["volumes"]}
