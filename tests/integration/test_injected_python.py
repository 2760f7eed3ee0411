"""`probing` from Python in a process that was only injected: nothing is installed there, and the agent carries the
files of the package itself."""
import subprocess

import interpreters
import jobs
import pytest
from jobs import probe

ENDS = [pytest.param(path, id=interpreters.interpreter_id(path))
        for path in sorted({interpreters.INTERPRETERS[0], interpreters.INTERPRETERS[-1]})]
PROGRAM = """
import threading, time
def wait():
    while True:
        time.sleep(0.02)
        train(1)
def train(n):
    return n + 1
threading.Thread(target=wait, daemon=True).start()
print("ready", flush=True)
wait()
"""

# Code, and what it prints. One process runs them all.
PRINTS = [
    ("import probing; print(probing.query('SELECT 20 + 1 AS a'))", "[{'a': 21}]"),
    ("import probing; print(probing.query('SELECT func FROM python.backtrace')[-1]['func'])", "<module>"),
    ("import probing; t = probing.table('mine', {'a': int}); t.append(3); print(probing.query('SELECT a FROM mine'))",
     "[{'a': 3}]"),
    ("import probing; probing.log(epoch=2, loss=0.5); print(probing.query('SELECT epoch, loss FROM training_logs'))",
     "[{'epoch': 2, 'loss': 0.5}]"),
    ("import probing\nwith probing.trace('blocks') as s:\n  probing.event('inside')\n"
     "print(probing.query('SELECT span_id FROM blocks')[0]['span_id'] == s.id())", "True"),
    ("import probing\n@probing.probe()\ndef f(n):\n  return n\nf(1)\n"
     "print(probing.query(\"SELECT count(*) AS n FROM python.trace_event WHERE name = 'f'\"))", "[{'n': 1}]"),
    ("import probing; probing.record_span('given', 1.0, 2.0); print(probing.query(\"SELECT duration_ms FROM "
     "python.trace_event WHERE name = 'given'\"))",
     "[{'duration_ms': 1000.0}]"),
    ("import probing; probing.register('lent', function=lambda: [{'a': 1}]); print(probing.query('SELECT a FROM "
     "lent')); probing.unregister('lent')", "[{'a': 1}]"),
    ("import probing; print(probing.set_role(dp=3), probing.current_role(), probing.clear_role(), probing.step(7), "
     "probing.phase())", "dp=3 dp=3 None 7 idle"),
    ("import probing; print(probing.is_enabled(), probing.start(), probing.VERSION == probing.__version__, "
     "issubclass(probing.Rows, list))", "True True True True"),
    ("import probing; print(probing.query_outcome('SELECT nope').ok, probing.query_outcome('SELECT 1').ok, "
     "probing.Error.__name__)", "False True Error"),
    ("import probing.config; probing.config.set('probing.sample_rate', 0.2); "
     "print(probing.config.get('probing.sample_rate'), probing.config.contains_key('no'))",
     "0.2 False"),
    ("from probing import config; print('probing.sample_rate' in config.keys(), config.len() > 5, config.is_empty())",
     "True True False"),
    ("from probing.inspect import trace, untrace; trace('__main__:train'); import probing, time; "
     "time.sleep(0.5); untrace()\n"
     "print(probing.query(\"SELECT DISTINCT name FROM python.trace_event WHERE record_type = 'call'\"))",
     "[{'name': '__main__:train'}]"),
    ("import probing.tracing, probing; print(len(probing.query(probing.tracing.SPANS_SQL)) > 1)", "True"),
    ("import probing; t = probing.ExternalTable('outer', ['a']); t.append([5]); print(t.take(1)[0][1])", "[5]"),
    ("import os, probing; print(probing.query('SELECT 5 AS f', target=os.getpid()))", "[{'f': 5}]"),
]


@pytest.mark.parametrize("python", ENDS)
def test_everything_in_python_works_in_a_process_that_was_only_injected(python, tmp_path):
    with jobs.python(PROGRAM, interpreter=python, env={"PATH": "/usr/bin:/bin"}) as job:
        for code, expected in PRINTS:
            done = probe(job.pid, "eval", code)
            assert (done.stdout, done.returncode) == (expected + "\n", 0), (code, done.stderr)
        script = tmp_path / "asks.py"
        script.write_text("import probing\nprint(probing.query('SELECT 6 AS s'))\n")
        assert probe(job.pid, "execute", str(script)).stdout == "[{'s': 6}]\n"


@pytest.mark.parametrize("python", ENDS)
def test_a_prompt_of_such_a_process_has_it_too(python):
    with jobs.python(PROGRAM, interpreter=python, env={"PATH": "/usr/bin:/bin"}) as job:
        done = subprocess.run([str(jobs.PROGRAM), str(job.pid), "repl"],
                              input="import probing\nprint(probing.query('SELECT 6 AS s'))\n", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True, timeout=60)
        assert "[{'s': 6}]" in done.stdout, done.stdout
