"""Playbooks of the original tool: read as they are, run over all ranks in the sandbox, what cannot run is named."""
import json
import os
import subprocess
import sys

import pytest

import jobs
from jobs import probe
from serve_kit import NEEDS_SERVE, service

FOLDER = jobs.TOP / "tests/integration/skills"
# Rank 1 records twice as many spans as rank 0.
PROGRAM = """
import os, time
import probing
for _ in range(6 if os.environ["RANK"] == "1" else 3):
    with probing.span("all_reduce"):
        pass
print("ready", flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return {"HOME": str(tmp_path_factory.mktemp("home")), "PROBING_SKILLS_DIR": ""}


def skill(home, *words, target=None, **options):
    target = ["-t", target] if target else []
    return probe(*target, "skill", *words, env={**os.environ, **home}, **options)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    script = tmp_path_factory.mktemp("ranks") / "train.py"
    script.write_text(PROGRAM)
    both = [subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                  "MASTER_PORT": str(os.getpid()), "PROBING": "1",
                                  "PYTHONPATH": str(jobs.TOP / "python")})
            for rank in range(2)]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    yield [process.pid for process in both]
    for process in both:
        process.kill()
        process.wait()
        jobs.forget(process.pid)


@pytest.fixture(scope="module")
def installed(home):
    done = skill(home, "install", FOLDER)
    assert done.returncode == 0 and "3 playbooks copied" in done.stdout, done.stderr
    return home


def test_a_playbook_runs_over_all_ranks_and_its_rules_are_remarks(installed, ranks):
    done = skill(installed, "run", "rank_waits", "--json", target=ranks[0])
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    steps = {step["id"]: step for step in answer["steps"]}
    assert {name: step["state"] for name, step in steps.items()} == {
        "rank_latency": "rows", "by_host": "rows", "window_in_where": "failed", "snapshot": "hint",
        "elsewhere": "skipped", "missing_table": "failed", "nothing": "empty", "open_page": "hint"}
    assert [row[:2] for row in steps["rank_latency"]["rows"]] == [[1, 6], [0, 3]]
    assert [row[0] for row in steps["by_host"]["rows"]] == [0, 1]
    assert {row[3] for row in steps["by_host"]["rows"]} == {"global.python.none"}  # a text is no table
    assert "window functions" in steps["window_in_where"]["text"]
    assert f"probing -t {ranks[0]} backtrace" in steps["snapshot"]["text"]
    says = {remark["rule"]: remark["says"] for remark in answer["remarks"]}
    assert set(says) == {"spread", "enough"}
    assert says["spread"] == "Rank 1 has 61.5 ms; 2 ranks, window 20"
    assert [rule["rule"] for rule in answer["unjudged"]] == ["unknown_clause"]
    assert all(remark["sure"] == "remark" for remark in answer["remarks"])
    assert "2 ranks" in answer["summary"] and answer["next"]


def test_for_a_person_it_says_the_same_and_names_what_gives_a_verdict(installed, ranks):
    text = skill(installed, "run", "rank_waits", target=ranks[1]).stdout
    assert "remark   Rank 1 has " in text and "(spread, warning)" in text
    assert "  no rows: no such collective" in text
    assert f"probing -t {ranks[1]} diagnose" in text


def test_every_clause_of_a_rule_is_judged(installed, ranks):
    answer = json.loads(skill(installed, "run", "table_overview", "--json", target=ranks[0]).stdout)
    assert {remark["says"] for remark in answer["remarks"]} == {"said"}
    assert [remark["rule"] for remark in answer["remarks"]] == ["max", "top", "avg", "value", "text", "ratio", "last",
                                                                "median", "contains", "spread"]
    assert [rule["rule"] for rule in answer["unjudged"]] == ["no_column", "no_step"]


def test_a_step_without_rows_ends_it(installed, ranks):
    answer = json.loads(skill(installed, "run", "rank_waits", "-p", "op_name=none", "-p", "step_window=5", "--json",
                              target=ranks[0]).stdout)
    assert [step["state"] for step in answer["steps"]] == ["empty"] + 7 * ["skipped"]
    assert answer["steps"][0]["text"].startswith("No spans. Check:")


@pytest.mark.parametrize("words, why", [
    (["run", "rank_waits", "-p", "step_window=1; DROP"], "no whole number"),
    (["run", "rank_waits", "-p", "op_name=a' OR 'b"], "has a quote"),
    (["run", "rank_waits", "-p", "nobody=1"], "no parameter 'nobody'"),
    (["run", "rank_waits", "nobody"], "one word too many"),
    (["run", "nobody"], "no playbook 'nobody'"),
    (["run", "only_words"], "has no steps"),
    (["fetch", "nobody"], "list, run ID or install DIR"),
])
def test_what_cannot_be_run_is_refused(installed, ranks, words, why):
    done = skill(installed, *words, target=ranks[0])
    assert done.returncode in (1, 2) and why in done.stderr, done.stderr
    assert not done.stdout


def hostile(folder, name, spec):
    (folder / name).mkdir(parents=True)
    (folder / name / "steps.yaml").write_text(f"metadata:\n  id: {name}\nspec:\n{spec}")


def test_a_playbook_from_elsewhere_can_only_compute(ranks, home, tmp_path):
    """It reads no file, runs nothing, ends in its time, and what it says reaches no terminal as a command."""
    step = "  steps:\n    - id: x\n      type: sql\n      sql: \"{}\"\n"
    secret = tmp_path / "secret"
    secret.write_text("hidden words\n")
    hostile(tmp_path, "reads", step.format(f"SELECT * FROM read_text('{secret}')"))
    hostile(tmp_path, "writes", step.format(f"COPY (SELECT 1) TO '{tmp_path}/made'"))
    hostile(tmp_path, "two", step.format("SELECT 1; SELECT 2"))
    hostile(tmp_path, "long", step.format("SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000) c"))
    hostile(tmp_path, "large", step.format("SELECT i, repeat('x', 100) FROM range(1000000) t(i)"))
    hostile(tmp_path, "drawn", step.format("SELECT chr(27) || '[31m' AS a") + "  next_steps: [\"\\x1b[31mred\"]\n")
    hostile(tmp_path, "settings", "  steps:\n    - {id: x, type: config, key: a.b, value: c}\n")
    hostile(tmp_path, "alias", "  a: &x 1\n  b: *x\n")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe/steps.yaml")
    own = {**home, "PROBING_SKILLS_DIR": str(tmp_path)}

    def run(name, *words):
        done = skill(own, "run", name, "--json", *words, target=ranks[0])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["steps"][0]

    for name in ("reads", "writes", "two"):
        assert run(name)["state"] == "failed"
    assert not (tmp_path / "made").exists()
    assert run("long", "--timeout", "1s")["state"] == "failed"
    large = run("large")
    assert large["cut"] and len(large["rows"]) == 10000
    drawn = skill(own, "run", "drawn", target=ranks[0]).stdout
    assert "[31m" in drawn and "\x1b" not in drawn
    assert "not changed" in run("settings")["text"]
    broken = skill(own, "list").stdout
    assert "broken: steps.yaml, line 4: anchors" in broken
    assert "broken: steps.yaml is no plain file" in broken
    assert skill(own, "run", "alias", target=ranks[0]).returncode == 1
    into = {**home, "HOME": str(tmp_path / "home")}
    done = skill(into, "install", tmp_path)
    assert done.returncode == 0 and "the playbook alias is left out" in done.stderr
    assert not (tmp_path / "home/.probing/skills/alias").exists()


@NEEDS_SERVE
def test_an_assistant_runs_a_playbook(installed, ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", installed["HOME"])
    with service(tmp_path / "run") as served:
        def ask(tool, **arguments):
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                    "params": {"name": tool, "arguments": arguments}}
            answer = json.loads(served.ask("/mcp", body=json.dumps(body),
                                           headers={"Content-Type": "application/json"})[2])["result"]
            return answer["isError"], answer["content"][0]["text"]
        failed, text = ask("list_skills")
        assert not failed and {s["id"] for s in json.loads(text)} == {"rank_waits", "table_overview", "only_words"}
        failed, text = ask("run_skill", target=str(ranks[0]), skill="rank_waits", param="step_window=7")
        assert not failed and "window 7" in text, text
        failed, text = ask("run_skill", target=str(ranks[0]), skill="nobody")
        assert failed and "no playbook 'nobody'" in text
