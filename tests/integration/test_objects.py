"""The walk over all objects (src/agent/module/objects.c): nothing is missed while the program makes objects, drops them and
collects, and none ends in our thread."""
import subprocess

import interpreters
import jobs
import pytest

PYTHON = [pytest.param(path, id=interpreters.interpreter_id(path)) for path in interpreters.INTERPRETERS]
SOURCES = str(jobs.TOP / "python")

PROGRAM = f"import sys; sys.path.insert(0, {SOURCES!r}); import probing\n" + """
import gc, random, threading, time
import _probing
from probing import _objects
_objects.SLICE_US = 50  # so that the heap need not be large

class Thing:
    ended_in = set()
    def __del__(self):
        self.ended_in.add(threading.get_ident())

sliced = (3, 9) <= sys.version_info[:2] <= (3, 13)
rings = _probing.objects_rings(*gc.get_threshold())
assert bool(rings) == sliced, rings
many, kept = [], []
for i in range(60000):
    many.append([i])
    if i % 100 == 0:
        kept.append(Thing())
class Cycle:
    def __init__(self):
        self.self = self
wanted, rounds, failed, over = {id(each) for each in kept}, [0], [], threading.Event()

def look():
    try:
        while not over.is_set():
            slices, found = 0, []
            for _ in _objects.walk((None, None, None, Thing), (None, None, None), id, found):
                slices += 1
            missed = wanted.difference(found)
            assert not missed, "%d of %d were missed" % (len(missed), len(wanted))
            assert slices > 1 or not sliced, slices
            rounds[0] += 1
            time.sleep(0.001)
    except BaseException as error:
        failed.append("%s: %s" % (type(error).__name__, error))
        over.set()

walker = threading.Thread(target=look)
walker.start()
begun, turn = time.monotonic(), 0
while not over.is_set() and (time.monotonic() - begun < 1 or rounds[0] < 5) and time.monotonic() - begun < 60:
    turn += 1
    time.sleep(0)
    short = [Thing() for _ in range(20)]
    long = [Cycle() for _ in range(50)]
    many[random.randrange(len(many))] = [[] for _ in range(5)]
    if turn % 100 == 0:
        gc.collect(turn // 100 % 3)
    if turn % 2000 == 0 and sliced:  # else there is only gc.get_objects, which does not tell of what is frozen
        gc.unfreeze() if turn // 2000 % 2 else gc.freeze()
over.set()
walker.join()
assert not failed, failed
assert rounds[0] >= 5, rounds
assert Thing.ended_in == {threading.get_ident()}, "objects of the program ended in the thread that looks"
gc.unfreeze() if hasattr(gc, "unfreeze") else None
gc.collect()
assert wanted <= {id(each) for each in gc.get_objects()} and gc.isenabled()
print("whole")
"""


@pytest.mark.parametrize("python", PYTHON)
def test_a_walk_over_a_heap_that_changes_misses_nothing_and_ends_nothing(python):
    done = subprocess.run([python, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "whole\n", done.stderr
