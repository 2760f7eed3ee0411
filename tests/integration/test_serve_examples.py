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
    for name in ("probing.service", "probing-machine.service", "Containerfile", "sidecar.yaml", "daemonset.yaml"):
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


def test_the_daemonset_sees_the_node_and_its_image_has_the_service():
    if not importlib.util.find_spec("yaml"):
        pytest.skip("PyYAML is not installed: scripts/setup.sh test")
    import yaml
    names = [each["kind"] for each in yaml.safe_load_all((EXAMPLES / "daemonset.yaml").read_text())]
    spec = list(yaml.safe_load_all((EXAMPLES / "daemonset.yaml").read_text()))[1]["spec"]
    pod = spec["template"]["spec"]
    assert names == ["Namespace", "DaemonSet"] and pod["hostPID"] is True
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    command = pod["containers"][0]["command"]
    assert command[:3] == ["probing", "serve", "--socket"] and command[3].startswith("/run/probing/")
    assert yaml.safe_load((EXAMPLES / "kustomization.yaml").read_text())["resources"] == ["daemonset.yaml"]
    # A wheel has no service: the image is made from the package, which has it.
    assert "probing_*.deb" in (EXAMPLES / "Containerfile").read_text()


@pytest.mark.parametrize("name", ["sidecar.yaml", "daemonset.yaml"])
def test_kubernetes_takes_the_manifest(name):
    """By the schemas of Kubernetes itself, which nothing else may be added to."""
    if not importlib.util.find_spec("kubernetes_validate"):
        pytest.skip("the schemas of Kubernetes are not installed (make soak)")
    import kubernetes_validate
    import yaml
    for each in yaml.safe_load_all((EXAMPLES / name).read_text()):
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
