"""Arrays of JAX: what show, inspect, watch and backtrace --locals say of them is what JAX itself says, and nothing
of JAX is called for it. In make soak, for the packages of requirements/frameworks.txt."""
import importlib.util
import json
import os
import re
import sys

import jobs
import pytest
from jobs import probe
from seccomp_kit import KILL, PROCESS_VM_READV, behind

pytestmark = [pytest.mark.skipif(not os.environ.get("PROBING_SOAK"), reason="a hundred MB of frameworks: make soak"),
              pytest.mark.timeout(300)]

# Every method and property of an array counts its calls, once the arrays are made. `pending` is computed without end;
# `given` was donated to a compiled function. `failed` waited for its argument: otherwise the call itself would raise.
PROGRAM = """
import json, os, sys, time
os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_cpu_multi_thread_eigen=false")
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec
jax.config.update("jax_num_cpu_devices", 2)
def train(step):
    matrix = (jnp.arange(12, dtype=jnp.float32) * 1.5).reshape(3, 4)
    half = jnp.arange(-4, 4, dtype=jnp.bfloat16)
    number = jnp.int32(41) + 1
    flags = jnp.arange(5) > 2
    empty = jnp.zeros((0, 3))
    borrowed = jax.device_put(np.linspace(0, 1, 4096, dtype=np.float32).reshape(64, 64))
    turned = jax.device_put(matrix, layout.Format(layout.Layout((1, 0)), matrix.sharding))
    other = jax.device_put(jnp.full((3,), 7.0), jax.devices()[1])
    bad = jnp.array([1.0, float("nan"), float("inf"), 0.0])
    shards = jax.device_put(jnp.arange(8.0), NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x")))
    fetched = jax.device_put(jnp.arange(8.0), shards.sharding); np.asarray(fetched)
    given = jnp.ones(5)
    kept = jax.jit(lambda x: x + 1, donate_argnums=0)(given)
    deleted = jnp.ones(6); deleted.delete()
    small = jnp.ones(4, jnp.int4)
    key = jax.random.key(0)
    square = jnp.ones((700, 700)) / 700
    def refuse(x):
        raise ValueError("refused")
    row = jax.ShapeDtypeStruct((4,), jnp.float32)
    refusing = jax.jit(lambda x: jax.pure_callback(refuse, row, x[0, :4])).lower(square).compile()
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda i, y: jnp.tanh(y @ y), x)).lower(square).compile()
    failed = refusing(slow(square))
    try:
        failed.block_until_ready()
    except Exception:
        pass
    endless = jax.jit(lambda x: jax.lax.while_loop(lambda y: y[0, 0] < 2, lambda y: jnp.tanh(y @ y), x))
    pending = endless(square)
    jax.block_until_ready([matrix, half, number, flags, borrowed, turned, other, bad, shards, kept])
    calls = []
    def counting(name, method):
        def call(*args, **named):
            calls.append(name)
            return method(*args, **named)
        return call
    for name in dir(type(matrix)):
        member = getattr(type(matrix), name)
        if name in ("__class__", "__del__", "__getattribute__", "__setattr__", "__dir__", "__init_subclass__",
                    "__subclasshook__", "__new__", "__dict__", "__weakref__"):
            continue
        if callable(member):
            setattr(type(matrix), name, counting(name, member))
        elif hasattr(member, "__get__"):
            setattr(type(matrix), name, property(counting(name, member.__get__)))
    assert matrix.shape == (3, 4) and "shape" in calls, calls
    calls.clear()
    print("ready", flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    print("calls", calls, flush=True)
    time.sleep(600)
train(0)
"""
GONE = "the program deleted it, or gave its memory to a compiled function (donated)"
# What show says: exact for one number, else least, most and mean.
SHOWN = {"matrix": "ArrayImpl float32 3x4 cpu:0 min 0 max 16.5 mean 8.25",
         "half": "ArrayImpl bfloat16 8 cpu:0 min -4 max 3 mean -0.5",
         "number": "ArrayImpl int32 scalar cpu:0 42",
         "flags": "ArrayImpl bool 5 cpu:0 min 0 max 1 mean 0.4",
         "empty": "ArrayImpl float32 0x3 cpu:0",
         "borrowed": "ArrayImpl float32 64x64 cpu:0 min 0 max 1 mean 0.50000001",
         "turned": "ArrayImpl float32 3x4 cpu:0 min 0 max 16.5 mean 8.25",
         "other": "ArrayImpl float32 3 cpu:1 min 7 max 7 mean 7",
         "bad": "ArrayImpl float32 4 cpu:0 min 0 max 1 mean 0.5, NaN 1 of 4, infinite 1",
         "shards": "ArrayImpl float32 8 not read: its shards are on several devices",
         "fetched": "ArrayImpl float32 8 min 0 max 7 mean 3.5",
         "kept": "ArrayImpl float32 5 cpu:0 min 2 max 2 mean 2",
         "deleted": "ArrayImpl float32 6 not read: " + GONE,
         "given": "ArrayImpl float32 5 cpu:0 not read: " + GONE,
         "small": "ArrayImpl int4 4 cpu:0 not read: of a type that is not known here",
         "pending": "ArrayImpl float32 700x700 cpu:0 not read: it is still being computed",
         "failed": "ArrayImpl float32 4 cpu:0 not read: its computation failed"}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    assert importlib.util.find_spec("jax"), "scripts/setup.sh soak installs jax"
    folder = tmp_path_factory.mktemp("jax")
    (folder / "train.py").write_text(PROGRAM)
    with jobs.start(sys.executable, folder / "train.py", folder / "go", ready="ready\n", ready_seconds=120) as job:
        job.go = folder / "go"
        yield job


def test_show_says_what_jax_says(job):
    assert {name: probe(job.pid, "show", name + "@train").stdout.strip() for name in SHOWN} == SHOWN


def test_inspect_has_shape_device_range_and_histogram(job):
    found = json.loads(probe(job.pid, "inspect", "matrix@train", "--json").stdout)
    assert [found[name] for name in ("shape", "dtype", "device", "elements", "bytes")] == \
        [[3, 4], "float32", "cpu:0", 12, 48]
    assert found["numbers"]["min"] == 0
    assert found["numbers"]["max"] == 16.5
    assert sum(found["numbers"]["histogram"]) == 12
    assert "requires_grad" not in found
    assert "still being computed" in probe(job.pid, "inspect", "pending@train").stdout
    assert "PRNGKeyArray" in probe(job.pid, "inspect", "key@train").stdout


def test_stacks_have_shape_and_device_of_arrays(job):
    shown = probe(job.pid, "backtrace", "--locals").stdout
    matrix = r"matrix *= *jax\.Array\(dtype=float32, shape=\(3, 4\), device=cpu:0, data=0x[0-9a-f]+\)"
    assert re.search(matrix, shown), shown
    assert re.search(r"other *= *jax\.Array\(dtype=float32, shape=\(3,\), device=cpu:1, data=", shown)
    assert re.search(r"shards *= *jax\.Array\(dtype=float32, shape=\(8,\), device=\?\)", shown)


def test_nothing_of_jax_was_called(job):
    job.go.write_text("")
    jobs.wait_until(lambda: "calls [" in job.output, 60, "what was called")
    assert "calls []" in job.output


WATCHED = """
import os, sys, time
os.environ["JAX_PLATFORMS"] = "cpu"
import jax.numpy as jnp
print("ready", flush=True)
def train():
    step = 0
    while True:
        loss = jnp.float32(step) * 2
        loss.block_until_ready()
        time.sleep(0.02)
        step += 1
train()
"""


def test_watch_has_the_numbers_of_an_array(tmp_path):
    (tmp_path / "train.py").write_text(WATCHED)
    with jobs.start(sys.executable, tmp_path / "train.py", ready="ready\n", ready_seconds=120) as job:
        done = probe(job.pid, "watch", "loss@train")
        assert done.returncode == 0, done.stderr
        seen = lambda: jobs.rows(job, "SELECT how, old_number, new_number FROM python.variables "
                                      "WHERE old_number IS NOT NULL ORDER BY timestamp LIMIT 10")
        jobs.wait_until(lambda: len(seen()) >= 10, 60, "ten changes")
        assert {row["how"] for row in seen()} == {"assigned"}
        assert {row["new_number"] - row["old_number"] for row in seen()} == {2}


FIXED = """
import os, time
os.environ["JAX_PLATFORMS"] = "cpu"
import jax.numpy as jnp
step = 0
def train():
    global step
    fixed = jnp.float32(3)
    fixed.block_until_ready()
    print("ready", flush=True)
    while True:
        step += 1
        time.sleep(0.01)
train()
"""
COUNT = """
import gc, types
values = next(each for each in gc.get_objects() if type(each) is types.ModuleType and each.__name__ == "probing._values")
reads, tensor = [], values.tensor
def counting(value):
    reads.append(value)
    return tensor(value)
values.tensor = counting
"""


def test_watch_reads_an_array_once(tmp_path):
    (tmp_path / "train.py").write_text(FIXED)
    with jobs.start(sys.executable, tmp_path / "train.py", ready="ready\n", ready_seconds=120) as job:
        number = lambda text: int(probe(job.pid, "eval", text).stdout)
        assert probe(job.pid, "watch", "fixed@train").returncode == 0
        jobs.wait_until(lambda: jobs.rows(job, "SELECT 1 AS one FROM python.variables"), 60, "the first look")
        done = probe(job.pid, "eval", COUNT)
        assert done.returncode == 0, done.stderr
        first = number("step")
        jobs.wait_until(lambda: number("step") > first + 50, 60, "a hundred lines")
        assert number("len(reads)") == 0


def test_a_watch_behind_a_filter_says_why_there_is_no_number(tmp_path):
    """The filter kills for process_vm_readv; a thread of the program opens no file instead, and one of ours does."""
    (tmp_path / "train.py").write_text(WATCHED)
    command = [*behind([PROCESS_VM_READV], KILL), sys.executable, tmp_path / "train.py"]
    with jobs.start(*command, ready="ready\n", ready_seconds=120) as job:
        assert probe(job.pid, "watch", "loss@train").returncode == 0
        seen = lambda: jobs.rows(job, "SELECT new_number, note FROM python.variables WHERE how = 'assigned' LIMIT 5")
        jobs.wait_until(lambda: len(seen()) >= 5, 60, "five changes")
        assert {row["new_number"] for row in seen()} == {None}
        assert all("seccomp" in row["note"] for row in seen())
        assert re.match(r"ArrayImpl float32 scalar cpu:0 \d+", probe(job.pid, "show", "loss@train").stdout)
