"""The shape of what commands print for programs: every --json and --format, as in golden/outputs.txt.

A shape is the output with `_` for each value, so keys, their order, nesting, commas and line ends are held to the
byte while pids and times may differ. Elements of an array that have one shape stand once, plain values not at all. After a change that is
meant, write the file anew and read its diff:

    WRITE_GOLDEN=1 build/venv/bin/python -m pytest tests/integration/test_output_shapes.py
"""
import json
import os
import re
from pathlib import Path

import cluster_kit
import jobs
import pytest

GOLDEN = Path(__file__).parent / "golden/outputs.txt"
VALUE = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|-?\b\d[\d.eE+-]*|\b(?:true|false|null)\b')

ONE_THREAD = """
import time
numbers = [1, 2]
def wait(depth):
    text = "a 'b' = \\"c\\" {}\\n"
    print("ready", flush=True)
    time.sleep(3600)
wait(3)
"""

QUERY = ("SELECT 1 AS n, 'a \"b\"|' AS t, NULL AS none, [1, 2] AS l, 1.5::DECIMAL(4,2) AS d, chr(8238) || chr(27) AS c "
         "UNION ALL SELECT 2, '', 'x', [], 2, '' ORDER BY n")
EXACT = [("query", *words, QUERY) for words in [
    ("--format", "json"), ("--format", "jsonl"), ("--format", "jsonl", "--columns"), ("--format", "csv"),
    ("--format", "tsv"), ("--format", "markdown"), ("--format", "table")]]
EXACT.append(("query", "--format", "json", "SELECT 1 AS n WHERE false"))
PROCESS = [
    ("backtrace",), ("backtrace", "--locals"), ("backtrace", "--native"), ("backtrace", "--merge"), ("now",),
    ("doctor",), ("memory",), ("probes",), ("tables",), ("config",), ("groups",), ("trace",), ("watch",), ("break",),
    ("inspect", "wait"), ("inspect", "numbers"), ("show", "numbers")]
HEADERS = [("list",), ("memory",), ("config",), ("now",), ("doctor",)]
CLUSTER = [("backtrace",), ("backtrace", "--count", "2", "--interval", "10ms"), ("now",), ("memory",), ("show", "rank"),
           ("query", "SELECT rank FROM memory_usage WHERE false")]


def shape(text):
    """JSON without its values, each shape of an element once."""
    json.loads(text)
    text = re.sub(r'"waits_for": (?:\{[^{}]*\}|null)', '"waits_for": 0', text)  # a thread may go on meanwhile
    text = re.sub(r'"still": \[(?:\[[^\]]*\](?:, )?)*\]', '"still": 0', text)  # some ranks, or none
    text = VALUE.sub(lambda match: match[0] if match[2] else "_", text)
    whole = {}
    while inner := re.search(r"[\[{][^\[\]{}]*[\]}]", text):
        part = inner[0]
        if part[0] == "[":
            kept = []
            for between, element in re.findall(r"((?:,\s*)?)([_\ue000-\uf8ff])", part):
                if element != "_" and element not in (one for _, one in kept):
                    kept.append((between, element))
            space = re.search(r"\[(\s*)", part)[1] if kept else ""
            end = re.search(r"(\s*)\]$", part)[1]
            part = "[" + space + "".join(between + element for between, element in kept) + end + "]"
        text = text[:inner.start()] + whole.setdefault(part, chr(0xe000 + len(whole))) + text[inner.end():]
    for part, sign in reversed(whole.items()):
        text = text.replace(sign, part)
    return text


def output(*words, expect=(0,)):
    done = jobs.probe(*words, env={**os.environ, "COLUMNS": "120"})
    assert done.returncode in expect, f"{words}: {done.stderr}"
    return done.stdout


def name(words):
    return " ".join(words)


def of_process(job):
    for words in PROCESS:
        yield name(words) + " --json", shape(output("-t", job.pid, *words, "--json", expect=(0, 1)))
    for words in HEADERS:
        for form in ("csv", "tsv"):
            target = () if words == ("list",) else ("-t", job.pid)
            yield f"{name(words)} --format {form}", output(*target, *words, "--format", form).split("\n")[0] + "\n"


def of_profile(job, folder):
    for form in ("json", "gecko.json"):
        made = folder / f"out.{form}"
        output("-t", job.pid, "flamegraph", "-d", "0.3", "-o", made)
        yield f"flamegraph .{form}", shape(made.read_text())


def of_cluster(folder):
    with cluster_kit.nodes(2, 2, folder) as job:
        cluster_kit.attach("shapes", job)
        for words in CLUSTER:
            yield "cluster " + name(words) + " --json", shape(output("-t", "cluster:shapes", *words, "--json"))


def check(made):
    """Compares sections of the file with these, or writes them into it."""
    kept = {}
    for section in re.split(r"^== ", GOLDEN.read_text(), flags=re.M)[1:] if GOLDEN.exists() else []:
        title, _, body = section.partition("\n")
        kept[title] = body
    made = dict(made)
    if os.environ.get("WRITE_GOLDEN"):
        kept.update(made)
        GOLDEN.write_text("".join(f"== {title}\n{kept[title]}" for title in sorted(kept)))
    assert made
    for title, body in made.items():
        assert body == kept.get(title), title


def test_of_queries():
    check((name(words[:-1]) + (" (none)" if words[-1] != QUERY else ""), output(*words)) for words in EXACT)


def test_of_a_process(tmp_path):
    with jobs.python(ONE_THREAD) as job:
        check(of_profile(job, tmp_path))
        output("-t", job.pid, "inject")
        check(of_process(job))


def test_of_ranks(tmp_path):
    check(of_cluster(tmp_path))


@pytest.mark.parametrize("text, left", [
    ('{"a": 1, "b": ["x", null, 3],\n "c": {}}\n', '{"a": _, "b": [],\n "c": {}}\n'),
    ('[{"k": 1},\n  {"k": 2}, {"z": "[{"}\n]', '[{"k": _}, {"z": _}\n]'), ("[\n]\n", "[\n]\n"), ("[]", "[]")])
def test_a_shape(text, left):
    assert shape(text) == left
