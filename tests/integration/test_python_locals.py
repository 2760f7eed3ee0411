"""Locals: arrays and tensors by what they are, not by what is in them; and whatever else a frame holds, within
bounds."""
import ast
import importlib.util
import re
import sys

import interpreters
import jobs
import pytest
from stack_kit import backtrace

TENSORS = """
import time, warnings
import numpy, torch
warnings.simplefilter("ignore")
class Mine(torch.Tensor):
    pass
def work():
    plain, scalar, six = torch.zeros(2, 3), torch.tensor(5), torch.zeros(1, 2, 1, 2, 1, 2)
    part, turned, empty = torch.arange(10)[4:], torch.zeros(2, 3).t(), torch.zeros(0, 4, dtype=torch.bool)
    half, eight = torch.zeros(4, dtype=torch.bfloat16), torch.zeros(9).to(torch.float8_e4m3fn)[3:]
    wide, complex_, quantized = torch.zeros(2, dtype=torch.uint16)[1:], torch.zeros(2, dtype=torch.complex64), torch.zeros(3).half()
    weight, mine = torch.nn.Parameter(torch.zeros(3)), torch.zeros(3).as_subclass(Mine)
    meta = torch.zeros(7, 7, device="meta")
    tensors = dict(locals())
    truth = {name: (str(t.dtype)[6:], tuple(t.shape), str(t.device), t.data_ptr()) for name, t in tensors.items()}
    print("tensors", truth, flush=True)
    array, zero, numbers = numpy.zeros((2, 3)), numpy.array(5), numpy.arange(10, dtype=numpy.int16)[3:]
    big_endian, flags, deep = numpy.zeros(3, ">i4"), numpy.zeros(2, bool), numpy.zeros((1,) * 20)
    masked, matrix = numpy.ma.zeros(3), numpy.asmatrix([[1]])
    arrays = {name: a for name, a in locals().items() if isinstance(a, numpy.ndarray)}
    print("arrays", {name: (a.dtype.name, a.shape, a.ctypes.data) for name, a in arrays.items()}, flush=True)
    print("ready", flush=True)
    time.sleep(1000)
work()
"""


def told(output, word):
    return ast.literal_eval(next(line for line in output.splitlines() if line.startswith(word)).partition(" ")[2])


def test_arrays_and_tensors_are_what_they_say():
    if not importlib.util.find_spec("torch"):
        pytest.skip("there is no torch for this Python")
    with jobs.python(TENSORS, sys.executable, ready=None) as job:
        jobs.wait_until(lambda: "ready" in job.output or not job.alive(), seconds=60, what="torch")
        values = backtrace(job.pid, "--locals")["threads"][0]["frames"][0]["locals"]
        tensors, arrays = told(job.output, "tensors "), told(job.output, "arrays ")
    assert len(tensors) == 14 and len(arrays) == 8
    for name, (dtype, shape, device, data) in tensors.items():
        assert values[name] == f"tensor(dtype={dtype}, shape={shape}, device={device}, data={data:#x})", name
    for name, (dtype, shape, data) in arrays.items():
        assert values[name] == f"array(dtype={dtype}, shape={shape}, data={data:#x})", name


BOUNDS = """
import sys, time
class Slots:
    __slots__ = ("a", "b")
class Text(str):
    pass
class Table(dict):
    pass
def work(*args, **kwargs):
    huge, negative, digit = 2 ** 20000, -(2 ** 30) + 1, 2 ** 30
    long_text, wide = "x" * 100000, "\\U0001f600" * 5000
    lone, zero = "a\\udc80b", "a\\0b"
    deep = []
    for _ in range(5000):
        deep = [deep]
    ring = {}
    ring["ring"] = ring
    frozen = frozenset([frozenset([frozenset([frozenset([1])])])])
    many, wide_dict = set(range(100000)), {i: i for i in range(100000)}
    emptied = {1, 2, 3}
    emptied.discard(2)
    gone = {"a": 1, "b": 2}
    del gone["a"]
    floats = (1e300, -0.0, float("inf"), float("nan"), 0.1, 3.0)
    text, table, slots = Text("t"), Table(k=1), Slots()
    data, nothing = bytes(range(256)) * 100, (None, ..., NotImplemented)
    number, unset = 5, 6
    del unset
    print("ready", flush=True)
    time.sleep(1000)
work(1, k=2)
"""


@pytest.mark.parametrize("interpreter", interpreters.INTERPRETERS, ids=interpreters.interpreter_id)
def test_values_are_right_and_bounded(interpreter):
    with jobs.python(BOUNDS, interpreter) as job:
        values = backtrace(job.pid, "--locals")["threads"][0]["frames"][0]["locals"]
    assert all(len(value.encode()) < 260
               for value in values.values()), {name: len(value) for name, value in values.items()}
    wanted = {"args": "(1,)", "kwargs": "{'k': 2}", "negative": str(-(2 ** 30) + 1), "digit": str(2 ** 30),
              "lone": "'a\ufffdb'",
              "zero": "'a\\x00b'", "deep": "[[[[..]]]]", "frozen": "{{{{..}}}}", "gone": "{'b': 2}", "text": "'t'",
              "table": "{'k': 1}", "floats": "(1e+300, -0.0, inf, nan, 0.1, 3.0)", "number": "5"}
    assert {name: values.get(name) for name in wanted} == wanted
    assert "unset" not in values and values["emptied"] in ("{1, 3}", "{3, 1}")
    assert values["huge"] == "<int of 20010 bits>" and values["ring"].startswith("{'ring': {'ring': ")
    assert values["many"].endswith("100000 in all}")
    assert values["long_text"].startswith("'xxx")
    assert values["long_text"].endswith("..")
    assert values["wide"].startswith("'\U0001f600") and values["data"].endswith(".. (25600 bytes)")
    assert re.fullmatch(r"<Slots at 0x[0-9a-f]+>", values["slots"]) and values["nothing"].startswith("(None, <")
