"""probing.query in Python: of this process and of others, without hanging on oneself."""
import os
import subprocess
import sys
import threading
import time

import jobs
import pytest
from interpreters import INTERPRETERS, interpreter_id

sys.path.insert(0, str(jobs.TOP / "python"))
import probing  # noqa: E402

CODE = """
import sys; sys.path.insert(0, {path!r})
import probing
def waiting_for_an_answer():
    return probing.query("SELECT func, is_gil FROM python.backtrace WHERE func LIKE '%answer' ORDER BY depth")
rows = waiting_for_an_answer()
print(rows[0]["func"], rows.columns, len(probing.query("SELECT 1 AS a WHERE false")))
try:
    probing.query("SELECT * FROM nowhere")
except probing.Error as error:
    print("there is no table nowhere" in str(error))
"""


@pytest.fixture(autouse=True)
def program(monkeypatch):
    monkeypatch.setenv("PROBING_PROGRAM", str(jobs.PROGRAM))


@pytest.mark.parametrize("python", INTERPRETERS, ids=interpreter_id)
def test_a_process_asks_about_itself(python):
    code = CODE.format(path=str(jobs.TOP / "python"))
    done = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=60)
    assert done.stdout == "waiting_for_an_answer ['func', 'is_gil'] 0\nTrue\n", done.stderr


def test_rows_are_exact_and_have_columns():
    rows = probing.query("SELECT 9223372036854775807 AS big, NULL AS nothing, [1, 2] AS list, 'é' AS text")
    assert rows == [{"big": 9223372036854775807, "nothing": None, "list": [1, 2], "text": "é"}]
    assert rows.columns == ["big", "nothing", "list", "text"]
    assert probing.query("SELECT 1 AS a WHERE false").columns == ["a"]


def test_another_process_is_asked_by_pid():
    with jobs.python() as job:
        assert probing.query("SELECT pid FROM system.process", target=job.pid) == [{"pid": job.pid}]


def test_other_threads_run_meanwhile():
    turns, stop = [], threading.Event()

    def turn():
        while not stop.is_set():
            turns.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=turn)
    thread.start()
    began = time.monotonic()
    probing.query("SELECT count(*) FROM range(300000000)")
    took = time.monotonic() - began
    stop.set()
    thread.join()
    assert len([at for at in turns if at > began]) > took * 100


def test_it_becomes_what_analysts_use():
    rows = probing.query("SELECT range AS n, 'x' || range AS name FROM range(3)")
    assert rows.to_arrow().to_pydict() == {"n": [0, 1, 2], "name": ["x0", "x1", "x2"]}
    assert "<td>x2</td>" in rows._repr_html_() and "<th>name</th>" in rows._repr_html_()
    assert "&lt;b&gt;" in probing.query("SELECT '<b>' AS a")._repr_html_()


def test_without_the_program_it_says_so(monkeypatch):
    monkeypatch.setenv("PROBING_PROGRAM", "/nonexistent")
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(probing.Error, match="not on this machine"):
        probing.query("SELECT 1")
