"""query on a terminal: the prompt, its completion and commands, the progress line, --watch, and tables that fit."""
import os
import re
import signal
import stat
import sys
import time

import jobs
import pytest
from jobs import probe
from terminal_kit import probing

UP, LEFT = "\x1b[A", "\x1b[D"
CTRL_C, CTRL_D, CTRL_R, CTRL_U = "\x03", "\x04", "\x12", "\x15"
FOR_EVER = "SELECT count(*) FROM range(1000000000000)"


def asks(screen):
    return screen.lines()[screen.row] == "sql>"


@pytest.fixture
def state(tmp_path):
    return {"XDG_STATE_HOME": str(tmp_path)}


@pytest.fixture
def prompt(state):
    with probing("query", env=state) as terminal:
        terminal.wait(asks)
        yield terminal


def test_statements_over_several_lines_are_run(prompt):
    prompt.send("SELECT 1 AS a,\r2 AS b; SELECT ';' AS c\r;\r")
    lines = prompt.wait(lambda screen: screen.lines()[screen.row] == "sql>" and "\n;" in screen.text()).lines()
    assert lines[1:10] == ["sql> SELECT 1 AS a,", "...> 2 AS b; SELECT ';' AS c", "...> ;", "a  b", "1  2", "", "c",
                           ";", "sql>"]
    prompt.send("SELECT 'open\r\r;' AS text\r\r")
    prompt.wait("open\\n\\n;")


def test_what_was_entered_is_there_next_time(state):
    for keys, seen in (("SELECT 'multi\rline' AS t;\r", "multi\\nline"), (UP + "\r", "multi\\nline"),
                       (CTRL_R + "multi\r", "multi\\nline")):
        with probing("query", env=state) as terminal:
            terminal.wait(asks)
            terminal.send(keys)
            terminal.wait(seen)
            terminal.wait(asks)
            terminal.send(CTRL_D)
            assert terminal.end() == 0
    file = os.path.join(state["XDG_STATE_HOME"], "probing", "sql_history")
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(file)).st_mode) == 0o700
    assert open(file).read() == "SELECT 'multi\\nline' AS t;\n"


@pytest.mark.parametrize("typed, becomes", [
    ("sele\t", "select"), ("SELE\t", "SELECT"), ("select * from mem\tusage\t", "select * from memory_usage"),
    ("select * from python.ba\t", "select * from python.backtrace"), ("select count_\t", "select count_"),
    ("select date_tru\t", "select date_trunc("), ("describe system.thr\t", "describe system.threads"),
    (".sch\tsystem.pro\t", ".schema system.process"),
    ("select  from memory_usage" + LEFT * 18 + "memory_m\t", "select memory_mb  from memory_usage"),
    ("select  from memory_usage m" + LEFT * 20 + "m.me\t", "select m.memory_mb  from memory_usage m"),
])
def test_tab_completes_what_the_catalog_has(prompt, typed, becomes):
    prompt.send(typed)
    prompt.wait(lambda screen: screen.lines()[screen.row] == "sql> " + becomes)


def test_tab_lists_what_it_cannot_decide(prompt):
    prompt.send("select * from system.\t")
    prompt.wait("system.threads")
    prompt.wait(lambda screen: screen.lines()[screen.row] == "sql> select * from system.")
    assert "system.maps" in prompt.screen.text()


def test_a_table_that_appears_is_completed_at_once():
    with jobs.python() as job, probing("-t", job.pid, "query") as terminal:
        terminal.wait(asks)
        assert terminal.screen.lines()[0] == f"probing {version()}: SQL over process {job.pid}; .help explains"
        terminal.send("select pid from system.pro\t;\r")
        terminal.wait(f"{job.pid}\nsql>")
        os.kill(job.pid, signal.SIGKILL)
        job.process.wait()
        terminal.send("select 7;\r")
        terminal.wait("has ended")
        terminal.wait(asks)


def version():
    return probe("version").stdout.split()[1]


def test_the_commands_of_the_prompt(prompt):
    prompt.send(".tables\r")
    prompt.wait("system.threads")
    prompt.send(".schema memory_usage\r")
    prompt.wait("TIMESTAMP")
    prompt.send(".format json\r.timing on\rSELECT 1 AS a;\r")
    prompt.wait('{"a": 1}')
    prompt.wait(lambda screen: re.search(r"\d ms\n", screen.text()))
    prompt.send(".expanded\rSELECT 2 AS b;\r")
    prompt.wait("-- row 1\nb: 2")
    prompt.send(".nonsense\r.schema nothing\r.format parquet\rSELECT nonsense;\r")
    prompt.wait("error: there is no such command")
    prompt.wait("error: there is no such table")
    prompt.wait("error: a format is")
    prompt.send(".help\r")
    prompt.wait("Ctrl-R searches")
    prompt.send(".quit\r")
    assert prompt.end() == 0


def test_ctrl_c_clears_the_line_or_stops_the_query(prompt):
    prompt.send("SELECT nonsense" + CTRL_C)
    prompt.wait("^C\nsql>")
    prompt.send(FOR_EVER + ";\r")
    prompt.wait("running, ")
    began = jobs.calm()
    prompt.send(CTRL_C)
    prompt.wait("stopped\nsql>")
    assert jobs.calm() - began < 2
    prompt.send("SELECT 'next';\r")
    prompt.wait("'next'\nnext\nsql>")


def test_the_terminal_is_given_back(state):
    for leave, status in ((CTRL_D, 0), (signal.SIGTERM, -signal.SIGTERM)):
        with probing("query", env=state) as terminal:
            terminal.wait(asks)
            assert terminal.flags() == (False, False, False)
            terminal.send(leave) if isinstance(leave, str) else os.kill(terminal.pid, leave)
            assert terminal.end() == status
            assert terminal.flags() == (True, True, True) and "2004" not in terminal.screen.modes


def test_a_terminal_that_can_do_nothing_is_asked_line_by_line(state):
    with probing("query", env={**state, "TERM": "dumb"}) as terminal:
        terminal.wait("sql>")
        terminal.send("SELECT 1 AS a,\n2 AS b;\n")
        terminal.wait("a  b\n1  2\nsql>")
        assert b"\x1b[J" not in terminal.raw and b"?2004" not in terminal.raw
        terminal.send(CTRL_D)
        assert terminal.end() == 0


def test_a_resize_draws_it_anew(prompt):
    prompt.send("SELECT 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa中文' AS text")
    prompt.wait("AS text")
    prompt.resize(10, 30)
    prompt.send(";")
    prompt.wait(" text;")
    assert prompt.screen.lines()[:3] == ["sql> SELECT 'aaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaaaaaaa中文' AS", " text;"]


def test_a_long_query_says_how_far_it_is_and_stops():
    with jobs.python() as job:
        assert probe(job.pid, "inject").returncode == 0
        sql = "SELECT count(*) FROM memory_usage, range(1000000000000) WHERE memory_mb + range < 0"
        jobs.wait_until(lambda: "0\n" != probe(job.pid, "query", "--format", "csv",
                                               "SELECT count(*) FROM memory_usage").stdout[-2:])
        with probing("-t", job.pid, "query", sql) as terminal:
            terminal.wait(lambda screen: re.search(r"\[#+ *\] +\d+%  \d+ of \d+ rows, \d", screen.text()))
            terminal.send(CTRL_C)
            assert terminal.end() == 130
            assert terminal.screen.text() == "probing: query: stopped"
        assert probe(job.pid, "query", "SELECT 1").returncode == 0


def test_a_stopped_query_leaves_no_file(tmp_path):
    for number in (signal.SIGINT, signal.SIGTERM):
        out = tmp_path / "rows.csv"
        out.write_text("before")
        with jobs.start(jobs.PROGRAM, "query", "-o", out, FOR_EVER) as job:
            jobs.wait_until(lambda: len(os.listdir(tmp_path)) == 2)
            os.kill(job.pid, number)
            assert job.process.wait(5) == 128 + number
            assert job.output == "probing: query: stopped\n"
        assert os.listdir(tmp_path) == ["rows.csv"] and out.read_text() == "before"


def test_watch_draws_in_place_and_leaves_no_trace():
    with probing("query", "--watch", "200ms", "SELECT current_timestamp AS now, 'text' AS t") as terminal:
        before = terminal.wait("every 0.2 s").text()
        terminal.wait(lambda screen: "every" in screen.text() and screen.text() != before)
        assert "1049" in terminal.screen.modes and not terminal.screen.unknown
        # Drawn over, never wiped: that would flicker.
        assert b"\x1b[2J" not in terminal.raw
        terminal.send("q")
        assert terminal.end() == 0
        assert not terminal.screen.modes & {"1049", "2004"} and terminal.flags() == (True, True, True)
    with probing("query", "--watch", "200ms", "SELECT 1") as terminal:
        terminal.wait("every 0.2 s")
        terminal.send(CTRL_C)
        assert terminal.end() == 0


def test_a_wide_table_fits_the_terminal():
    wide = "SELECT " + ", ".join(f"{i} AS column_{i:02}" for i in range(20)) + ", repeat('中', 300) AS long"
    with probing("query", wide, columns=60) as terminal:
        assert terminal.end() == 0
        lines = terminal.screen.lines()
    assert all(len(line) <= 60 for line in lines[:2])
    assert "columns fit; not shown: " in terminal.screen.text()
    assert "(--expanded shows all)" in terminal.screen.text().replace("\n", "")
    with probing("query", "SELECT repeat('中', 300) AS long, 1 AS a", columns=60) as terminal:
        assert terminal.end() == 0
        assert terminal.screen.lines()[1].endswith("…  1")


def test_no_text_commands_the_terminal():
    evil = "'a' || chr(27) || ']0;title' || chr(7) || chr(155) || '31m' || chr(8238) || chr(13) || chr(10)"
    for words in (["--format", "table"], ["--expanded"], ["--format", "csv"], ["--format", "tsv"], ["--format", "json"],
                  ["--format", "markdown"]):
        with probing("query", *words, f'SELECT {evil} AS "na\x1b[2Jme", [{evil}] AS list',
                     env={"NO_COLOR": "1"}) as terminal:
            assert terminal.end() == 0, terminal.screen.text()
        assert not re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80\xae", terminal.raw), words


def test_no_row_of_any_command_commands_the_terminal():
    """A process's command line is whatever its owner wrote there."""
    code = "import time; print('ready', flush=True); time.sleep(60)"
    with jobs.start(sys.executable, "-c", code, "\x1b]0;title\x07\x9b31m\u202e\x7f\rx", ready="ready"):
        for words in (["--format", "csv"], ["--format", "tsv"], ["--json"]):
            with probing("list", *words, columns=200, rows=50, env={"NO_COLOR": "1"}) as terminal:
                assert terminal.end() == 0, terminal.screen.text()
            assert b"title" in terminal.raw
            assert not re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80\xae", terminal.raw), words


def test_colours_are_for_terminals_that_want_them():
    with probing("query", "SELECT 1 AS a") as terminal:
        assert terminal.end() == 0 and b"\x1b[1m" in terminal.raw
    with probing("query", "SELECT 1 AS a", env={"NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0 and b"\x1b" not in terminal.raw
