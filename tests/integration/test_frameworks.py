"""Real frameworks: what is told of their trainings is what their own callbacks count, and docs/frameworks.md says which
of it is. In make soak, for the packages of requirements/frameworks.txt."""
import importlib.metadata
import importlib.util
import json
import os
import sys

import frameworks_kit
import jobs
import pytest
from jobs import probe
from jobs import rows as query

pytestmark = [pytest.mark.skipif(not os.environ.get("PROBING_SOAK"), reason="a hundred MB of frameworks: make soak"),
              pytest.mark.timeout(300)]
COLUMNS = ("steps", "micro-batches", "samples", "phases", "evaluation", "loss", "lr", "epoch", "norm", "modules")


def run(name, text, tmp_path):
    """Gives the running job, and what the program has counted."""
    (tmp_path / "train.py").write_text(text)
    return jobs.start(sys.executable, tmp_path / "train.py", tmp_path / "go", ready="ready\n", ready_seconds=120)


def counted(job, tmp_path):
    assert probe(job.pid, "config", "probing.torch.budget=off",
                 "probing.torch.profiling=on,exprs=lr,loss,epoch,grad_norm").returncode == 0
    jobs.wait_until(lambda: "of the steps" in probe(job.pid, "probes").stdout, 30, "the probe")
    (tmp_path / "go").write_text("")
    jobs.wait_until(lambda: "\ncounted" in job.output or not job.alive(), 120, "the training")
    assert job.alive(), job.output
    return json.loads(job.output.split("\ncounted ")[1].splitlines()[0])


def close(one, other):
    return len(one) == len(other) and all(abs(a - b) <= 1e-4 * max(abs(b), 1e-6) for a, b in zip(one, other))


def judge(job, said, paths):
    """Which of COLUMNS is right."""
    steps = query(job, "SELECT * FROM python.torch_step WHERE kind = 'train' ORDER BY timestamp")
    evaluated = query(job, "SELECT * FROM python.torch_step WHERE kind = 'eval'")
    logs = query(job, "SELECT * FROM training_logs ORDER BY timestamp")
    modules = {row["module"] for row in query(job, "SELECT DISTINCT module FROM python.torch_trace "
                                                   "WHERE stage = 'forward'")}
    values = lambda name: [row[name] for row in logs if row.get(name) is not None]
    last = lambda known: known[-len(values("loss") or [0]):]
    first = said["unseen_steps"] if said.get("numbers") else 0
    yield ([row["seen"] for row in steps] == list(range(said["steps"] - said["unseen_steps"]))
           and [row["step"] for row in steps] == [row["seen"] + first for row in steps]
           and (not said.get("numbers") or {row["step"] for row in steps} <= {row["step"] for row in logs}))
    yield {row["micro_batches"] for row in steps} == {said["batches"] // said["steps"]}
    yield ({row["samples"] for row in steps} == {said["samples"]}
           and {row["tokens"] for row in steps} == {said.get("tokens")})
    phases = [[row[phase + "_ms"] for phase in ("forward", "backward", "optimizer")] for row in steps]
    yield all(min(each) > 0 and sum(each) + row["data_ms"] <= row["duration_ms"] * 1.001
              for each, row in zip(phases, steps))
    yield (len(evaluated) == said["evaluated"] - said.get("sanity", 0)
           and {row["samples"] for row in evaluated} <= {said.get("eval_samples")})
    yield close(values("loss"), last(said.get("losses", [None])))
    yield bool(values("lr")) and (said["lr"] is None or set(values("lr")) == {said["lr"]})
    epochs = said.get("epochs", 0)
    first = said["unseen_steps"] * epochs // said["steps"]
    yield not epochs or sorted(set(values("epoch"))) == list(range(first, epochs))
    norms = values("grad_norm")
    yield bool(norms) and ("norms" not in said or close(norms, said["norms"][-len(norms):]))
    yield modules >= set(paths) and not [path for path in modules if "_orig_mod" in path or path.startswith("module.")]


@pytest.mark.parametrize("name", frameworks_kit.TRAININGS)
def test_what_is_told_of_a_framework_is_what_it_counts(name, tmp_path):
    package = frameworks_kit.PACKAGES.get(name, name)
    assert importlib.util.find_spec(package), f"scripts/setup.sh soak installs {package}"
    with run(name, frameworks_kit.TRAININGS[name], tmp_path) as job:
        said = counted(job, tmp_path)
        found = dict(zip(COLUMNS, judge(job, said, frameworks_kit.PATHS[name])))
    words = [f"{name} {importlib.metadata.version(package)}"] + ["right" if found[each] else "no" for each in COLUMNS]
    line = "| " + " | ".join(words) + " |"
    assert line in (jobs.TOP / "docs/frameworks.md").read_text(), f"docs/frameworks.md says otherwise: {line}"


def steps_of(job):
    return query(job, "SELECT seen, step, samples FROM python.torch_step WHERE kind = 'train' ORDER BY timestamp")


def test_a_manual_optimization_has_the_number_of_lightning_in_all_tables(tmp_path):
    """The first of two optimizers ends a step, so the next one begins with a number that Lightning has after that."""
    assert importlib.util.find_spec("lightning"), "scripts/setup.sh soak installs lightning"
    with run("manual", frameworks_kit.LIGHTNING_MANUAL, tmp_path) as job:
        said = counted(job, tmp_path)
        found = [row["step"] for row in steps_of(job)]
        waited = query(job, "SELECT l.step AS loader, s.step FROM python.torch_loader l JOIN python.torch_step s "
                            "ON l.timestamp BETWEEN s.timestamp "
                            "AND s.timestamp + to_microseconds(CAST(s.duration_ms * 1000 AS BIGINT))")
        logged = query(job, "SELECT DISTINCT step FROM training_logs WHERE step > 0 ORDER BY step")
    assert said["numbers"] == list(range(0, 48, 2))
    assert found == [number - 1 for number in said["numbers"][1:]]
    assert [row["step"] for row in logged] == said["numbers"][1:]
    assert waited, found
    assert not [row for row in waited if row["loader"] != row["step"]]


def test_each_training_of_a_process_has_numbers_of_its_own(tmp_path):
    """Of another optimizer the first steps are not counted: our rule for several. The row that has them, and the
    change, has the number that would come next."""
    assert importlib.util.find_spec("transformers"), "scripts/setup.sh soak installs transformers"
    with run("turns", frameworks_kit.TRAININGS_IN_TURN, tmp_path) as job:
        assert counted(job, tmp_path)["steps"] == [20, 20]
        steps = steps_of(job)
    found = {size: [row["step"] for row in steps if row["samples"] == size] for size in (4, 5, 6)}
    assert found[4] == list(range(1, 20)), steps
    assert found[5] == list(range(4, 20)), steps
    assert found[6] == list(range(21, 37)), steps


def test_a_server_has_calls_a_thread_and_is_idle(tmp_path):
    with run("server", frameworks_kit.SERVER, tmp_path) as job:
        said = counted(job, tmp_path)
        found = query(job, "SELECT kind, samples, count(*) AS n FROM python.torch_step GROUP BY ALL")
        assert found == [{"kind": "call", "samples": 2, "n": said["requests"] - 8}]
        shown = probe(job.pid, "torch", "--once").stdout
        assert "p99_ms" in shown
        assert "step_ms" not in shown
        assert query(job, "SELECT * FROM python.alerts") == []
