"""Every stack of a profile is one that the program was in, and no function is seen more often than it runs."""
import jobs
import profile_kit
import pytest
from interpreters import INTERPRETERS

pytestmark = pytest.mark.alone  # a target that waits for a CPU makes every reader look right
SAMPLES, SOAK_SAMPLES, RATE = 20000, 1000000, 30000


def folded(tmp_path, pid, *options):
    out = tmp_path / "profile.folded"
    done = jobs.probe("-t", pid, "flamegraph", "-o", out, *options, timeout=600)
    assert done.returncode == 0, done.stderr
    return profile_kit.read_folded(out.read_text()), done.stdout


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version, interpreter, root", profile_kit.everywhere())
def test_no_stack_is_one_that_the_program_cannot_form(version, interpreter, root, tmp_path, soak):
    tree = profile_kit.Tree()
    wanted, seconds = (SOAK_SAMPLES, 900) if soak else (SAMPLES, 6)
    with profile_kit.started(tree.source, interpreter, root, tmp_path) as job:
        total, impossible, cut, examples, delay, said = profile_kit.sample_tree(
            tree, job.pid, jobs.probe, wanted, RATE, seconds,
                                                                               tmp_path / "a.folded")
    said = f"of {total} samples, {delay:.0%} of the time without a CPU, such as {examples}\n{said}"
    assert total >= (wanted if soak else wanted / 8), said
    assert impossible == 0, f"{impossible} are impossible {said}"
    assert cut <= total / 100, f"{cut} are not of full depth {said}"


@pytest.mark.parametrize("options", [[], ["--no-stop"]], ids=["stopping", "no-stop"])
def test_functions_are_seen_as_often_as_they_run(options, tmp_path):
    interpreter = INTERPRETERS[-1]
    with profile_kit.shares(interpreter) as (job, spent):
        before, (ran, delayed) = spent(), profile_kit.run_delay(job.pid)
        stacks, said = folded(tmp_path, job.pid, "--rate", 2000, "--duration", 4, *options)
        after, (ran_after, delayed_after) = spent(), profile_kit.run_delay(job.pid)
    truth = {f"g{i}": b - a for i, (a, b) in enumerate(zip(before, after))}
    counts = {}
    for stack, count in stacks:
        if stack[-1][0] in truth:
            counts[stack[-1][0]] = counts.get(stack[-1][0], 0) + count
    n = sum(counts.values())
    assert n > 500, said
    # What as many truly random samples would show: half the sum of the mean absolute errors.
    shares = [t / sum(truth.values()) for t in truth.values()]
    floor = sum((2 / 3.14159 * s * (1 - s) / n) ** 0.5 for s in shares) / 2
    found = profile_kit.distance(truth, counts)
    delay = (delayed_after - delayed) / max(1, ran_after - ran)
    assert found <= 0.02 + 2 * floor, f"{found:.3f} off, noise {floor:.3f}, run delay {delay:.2f} of run time\n{said}"
