#!/usr/bin/env python3
"""kubectl as an API server's answers make it behave: kubectl_recorded.py PODS.json ARGUMENTS...

PODS.json is what `kubectl get pods --output json` gives. A pod that runs has an annotation with the pid of a process
whose namespaces are its own: exec goes there. Messages and exit statuses are those of kubectl 1.32 for pods that are
gone, nodes that do not answer and programs that are not there.
"""
import json
import os
import re
import subprocess
import sys


def fail(text, status=1):
    print(text, file=sys.stderr)
    sys.exit(status)


def option(words, *names):
    """Takes "--name VALUE" or "--name=VALUE" out of the words."""
    for at, word in enumerate(words):
        if word in names:
            del words[at]
            return words.pop(at)
        if word.partition("=")[0] in names and "=" in word:
            return words.pop(at).partition("=")[2]
    return None


def field(thing, path):
    for name, index in re.findall(r"\.([\w-]+)(?:\[(\d+)\])?", path):
        thing = thing[name][int(index)] if index else thing[name]
    return thing


def get(pods, words):
    selector, phase, output = option(words, "--selector",
                                     "-l"), option(words, "--field-selector"), option(words, "--output", "-o")
    assert words == ["get", "pods"], words
    labels = dict(part.split("=") for part in selector.split(","))
    chosen = [pod for pod in pods if labels.items() <= pod["metadata"]["labels"].items()
              and f"status.phase={pod['status']['phase']}" == phase]
    inside = re.fullmatch(r"jsonpath=\{range \.items\[\*\]\}(.*)\{end\}", output)[1]
    for pod in chosen:
        print(re.sub(r"\{(.*?)\}", lambda part: json.loads(part[1]) if part[1].startswith('"') else field(pod, part[1]),
                     inside), end="")


def run(pods, words):
    at = words.index("--")
    words, command = words[:at], words[at + 1:]
    namespace, container = option(words, "-n"), option(words, "-c")
    assert words[:2] == ["exec", "-i"] and len(words) == 3, words
    pod = next((pod for pod in pods if (pod["metadata"]["namespace"],
                                        pod["metadata"]["name"]) == (namespace, words[2])), None)
    if pod is None:
        fail(f'Error from server (NotFound): pods "{words[2]}" not found')
    if container not in [each["name"] for each in pod["spec"]["containers"]]:
        fail(f'error: Internal error occurred: unable to upgrade connection: container not found ("{container}")')
    pid = pod["metadata"]["annotations"].get("test/pid")
    if pid is None:
        fail("Error from server: error dialing backend: dial tcp 10.0.0.9:10250: i/o timeout")
    if not os.access(command[0], os.X_OK):
        fail(f'error: Internal error occurred: Internal error occurred: error executing command in container: failed '
             f'to exec in container: failed to start exec '
             f'"7f1": OCI runtime exec failed: exec failed: unable to start container process: exec: "{command[0]}": '
             f'stat {command[0]}: no such file or directory: unknown')
    status = subprocess.run(["nsenter", f"--target={pid}", "--pid", "--mount", *command]).returncode
    if status:
        fail(f"command terminated with exit code {status}", status)


if __name__ == "__main__":
    with open(sys.argv[1]) as recorded:
        known = json.load(recorded)["items"]
    (get if sys.argv[2] == "get" else run)(known, sys.argv[2:])
