"""make demo: the first thing that a person runs shows a stack, a query and a flame graph of a real job, and leaves it
alone."""
import re
import subprocess

import jobs


def test_the_demo_shows_what_the_program_is_for():
    picture = jobs.TOP / "build/flamegraph.svg"
    picture.unlink(missing_ok=True)
    done = subprocess.run([jobs.TOP / "scripts/demo.sh", jobs.PROGRAM], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0, done.stdout
    shown = {block.split()[2]: block for block in re.split(r"^\$ probing ", done.stdout, flags=re.M)[1:]
             if block.startswith("-t ")}
    ranks = set() if (jobs.TOP / "build/venv/installed/torch.missing").exists() else {"diagnose"}
    assert {"inject", "eval", "backtrace", "flamegraph", "tables", "query", "detach"} | ranks == set(shown), done.stdout
    if ranks:
        assert "Rank 1 holds up the job" in shown["diagnose"] and "hang.py:16" in shown["diagnose"], done.stdout
    assert re.search(r"MainThread.*\n(    .*\n)*    train\w* \(\S*examples/train.py:\d+\)",
                     shown["backtrace"]), shown["backtrace"]
    assert re.search(r"rows +mb +threads\n +[1-9]\d* +\d+(\.0)? +\d+", shown["query"]), shown["query"]
    text = picture.read_text()
    assert "<svg" in text and "train" in text and str(picture) in done.stdout
    assert "the job trains on, undisturbed: step" in done.stdout
    # It ends with the page's address for the job.
    if (jobs.PROGRAM.parent / "probing-serve").exists():
        pid = re.search(r"it runs as process (\d+)", done.stdout)[1]
        assert re.search(rf"in a browser: http://127\.0\.0\.1:\d+/\?token=\w+#/activity\?target={pid}$",
                         done.stdout.strip(), re.M), done.stdout
