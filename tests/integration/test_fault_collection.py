"""The collection of faults (faults/README.md): its truths are well formed, and diagnose names twelve of them."""
import random
import re
import subprocess
import sys

import pytest

import jobs

sys.path.insert(0, str(jobs.TOP / "faults"))
import collection  # noqa: E402

FAULTS = collection.faults()


def kinds_of_readme():
    text = (collection.HERE / "README.md").read_text().split("## Words for the kind")[1].split("## Judging")[0]
    return {word for row in re.findall(r"^\| (`.*?) \|", text, re.M) for word in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_a_truth_names_a_known_kind_and_places_that_are_there(fault):
    kinds = collection.as_list(fault.truth["kind"])
    assert kinds == [None] or set(kinds) <= kinds_of_readme()
    for seed in range(3):
        source, names, lines = collection.drawn_source(fault, random.Random(seed))
        compile(source, fault.name, "exec")
        assert "TRUTH" not in source and "<- here" not in source
        for function in collection.Truth(fault, 0, names, lines).functions:
            assert re.search(rf"def {function}\(", source), function


def test_the_collection_is_as_large_as_its_readme_says():
    text = (collection.HERE / "README.md").read_text()
    said = {folder: int(count) for folder, count in re.findall(r"^\| `(\w+)` \| (\d+) \|", text, re.M)}
    there = {folder: sum(f.folder == folder for f in FAULTS) for folder in collection.FOLDERS}
    assert said == there
    assert sum(there.values()) - there["healthy"] >= 50 and there["healthy"] >= 14


def test_two_seeds_draw_different_programs():
    fault = collection.faults(["hang/two_locks"])[0]
    assert len({collection.drawn_source(fault, random.Random(seed))[0] for seed in range(8)}) > 4


# A kind each, and three jobs that look as if something were wrong: 12 of the collection, four at a time.
SAMPLE = ["hang/two_locks", "hang/lock_kept", "hang/gil_regex", "hang/socket", "hang/fifo", "hang/future",
          "hang/evaluate_on_some", "hang/one_step_less", "hang/stopped", "healthy/threads_with_locks",
          "healthy/idle_server", "healthy/held"]


def wrong_answers(names):
    done = subprocess.run([sys.executable, jobs.TOP / "faults/run", *names, "--at-once", "4"], capture_output=True,
                          text=True, timeout=300 * jobs.SLOW)
    assert re.search(rf"^\d+ of {len(names)} right", done.stdout, re.M), done.stdout + done.stderr
    return re.findall(r"^WRONG +(\S+)", done.stdout, re.M), done.stdout


@pytest.mark.skipif((jobs.TOP / "build/venv/installed/torch.missing").exists(), reason="no torch here")
def test_diagnose_is_right_about_a_sample():
    """On a machine that is busy a rank may not answer in time; so what was wrong is asked once more."""
    wrong, text = wrong_answers(SAMPLE)
    if wrong:
        wrong, again = wrong_answers(wrong)
        text += again
    assert not wrong, text
