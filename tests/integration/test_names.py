"""Names and types of tables: what the recorder accepts, SQL and the archive accept too; and ranks whose types differ
are reconciled or named."""
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import jobs

SOURCES = str(jobs.TOP / "python")
HEAD = f"import sys; sys.path.insert(0, {SOURCES!r}); import probing\n"

KEYWORDS = ["select", "order", "group", "table", "at", "all", "end", "user", "default", "true", "null", "rank",
            "target_pid", "rowid", "file", "timestamp", "Values"]
PLAIN = ["a", "_x", "A9", "steps", "x" * 47, "_" * 47, "z9_" * 15]
ODD = ["", "1a", "a b", "a.b", "a-b", "\u00e4", "a'b", 'a"b', "a\0b", "x" * 48, "a;b", "..", " a", "a ", "\u4e2d"]
SCHEMAS = ["", "mine.", "python.", "main.", "order.", "X.", "temp.", "memory.", "pg_catalog.", "information_schema.",
           "probing.", "y" * 59 + ".", "y" * 60 + "."]

SAYS = HEAD + """
import json
tables, columns = json.loads(sys.stdin.readline())
took = []
for number, name in enumerate(tables):
    try:
        t = probing.table(name, {"n": int})
        t.append(number)
        took.append([number, name])
    except (TypeError, ValueError):
        pass
kept = []
for name in columns:
    try:
        probing.table("probe_of_columns", {name: int, "other_one": int})
        kept += [name] if name.lower() not in map(str.lower, kept) else []   # the first name fixes the table: the others of it are an error of another kind
    except ValueError as error:
        if "with other columns" in str(error) and name.lower() not in map(str.lower, kept):
            kept.append(name)
    except TypeError:
        pass
for both in (["steps", "STEPS"], ["select", "Select"]):
    try:
        probing.table("twice", [(name, int) for name in both])
        raise SystemExit("%s were two columns" % both)
    except TypeError:
        pass
wide = probing.table("wide", [(name, int) for name in kept])
wide.append(*range(len(kept)))
try:
    probing.table("STEPS", {"other": str})
    raise SystemExit("a table of that name has other columns")
except ValueError:
    pass
print(json.dumps([took, kept]), flush=True)
sys.stdin.readline()
"""


def quoted(name):
    return ".".join('"%s"' % part for part in name.split("."))


def ask(words, sql, env):
    done = jobs.probe(*words, "query", "--format", "json", sql, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_name_that_is_recorded_is_shown_and_archived(tmp_path):
    tables = [schema + name for schema, name in itertools.product(SCHEMAS[:5], KEYWORDS[:6] + PLAIN + ODD)]
    tables += [schema + "one" for schema in SCHEMAS] + ["x" * 63, "x" * 64, "_probing", "Steps", "mine.STEPS",
                                                        "steps.steps"]
    columns = KEYWORDS + PLAIN + ODD + ["STEPS", "Select"]
    env = dict(os.environ, PROBING_ARCHIVE=str(tmp_path / "archive"))
    with subprocess.Popen([sys.executable, "-c", SAYS], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          universal_newlines=True, env=env) as job:
        try:
            job.stdin.write(json.dumps([tables, columns]) + "\n")
            job.stdin.flush()
            took, kept = json.loads(job.stdout.readline())
            accepted = [name for _, name in took]
            # What must be accepted, and what must not.
            assert set(PLAIN + KEYWORDS[:6] + ["mine.select", "order.order", "x" * 63,
                                               "y" * 59 + ".one"]) <= set(accepted)
            assert not set(schema + name for schema in SCHEMAS[:5] for name in ODD if name and "." not in name
                           and len(name) < 48) & set(accepted)
            assert not {"x" * 64, "_probing", "temp.one", "main.one", "memory.one", "pg_catalog.one",
                        "information_schema.one", "y" * 60 + ".one"} & set(accepted)
            assert set(PLAIN) <= set(kept) and "select" in kept and "timestamp" not in kept and not set(ODD) & set(kept)
            # One name, whatever its case: as SQL has it.
            assert "STEPS" not in kept and "Select" not in kept

            sql = " UNION ALL ".join("SELECT '%s' AS t, n FROM %s" % (name, quoted(name)) for name in accepted)
            wide = "SELECT %s FROM wide" % ", ".join('"%s" AS c%d' % (name, i) for i, name in enumerate(kept))
            same = lambda name: name.lower()[5:] if name.lower().startswith("main.") else name.lower()
            expected = sorted([each, number] for each in accepted for number, name in took
                              if same(each) == same(name)), [
                {"c%d" % i: i for i in range(len(kept))}]
            live = ["-t", job.pid]

            def query(words, text, env):
                found = ask(words, text, env)
                return sorted(map(list, map(dict.values, found))) if text is sql else found

            assert (query(live, sql, env), query(live, wide, env)) == expected
            assert jobs.probe("-t", job.pid, "archive", "--once", env=env).returncode == 0  # segments that are full
            # Live rows that are archived are not counted twice; and the archive alone has them all.
            assert (query(live, sql, env), query(live, wide, env)) == expected
            time.sleep(1.5)  # what is in memory is copied for afterwards several times a second
        finally:
            os.kill(job.pid, signal.SIGKILL)
    done = jobs.probe("-t", job.pid, "archive", "--once", env=env)  # the rest
    assert done.returncode == 0, done.stderr
    jobs.forget(job.pid)
    alone = ["--archive", str(tmp_path / "archive")]
    done = [jobs.probe("query", *alone, "--format", "json", each) for each in (sql, wide)]
    assert [each.returncode for each in done] == [0, 0], done[0].stderr + done[1].stderr
    assert (sorted(map(list, map(dict.values, json.loads(done[0].stdout)))), json.loads(done[1].stdout)) == expected


# A table of one name in two ranks: n, x and b have one type that holds both, exactly; text has none.
DIFFER = HEAD + """
import json, time
columns, row = json.loads(sys.argv[2])
probing.table("metrics", columns).append(*row)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
RANKS = [({"n": "int32", "x": "float32", "b": "uint8", "text": "int64"}, (-2**31, 0.5, 255, 7)),
         ({"n": "int64", "x": "float64", "b": "int8", "text": "str"}, (2**53 + 1, 0.1, -128, "seven"))]


def test_ranks_whose_types_differ_have_one_type_or_are_named(tmp_path):
    script = tmp_path / "ranks-that-differ.py"
    script.write_text(DIFFER)
    start = lambda rank: jobs.start(sys.executable, script, "--", json.dumps(RANKS[rank]), ready="ready",
                                    env={"RANK": str(rank)})
    with start(0) as zero, start(1) as one:
        words = ["-t", str(script), "--all"]
        assert ask(words, "SELECT rank, n, x, b, typeof(n) AS n_type, typeof(b) AS b_type FROM metrics ORDER BY rank",
                   None) == [
            {"rank": 0, "n": -2**31, "x": 0.5, "b": 255, "n_type": "BIGINT", "b_type": "SMALLINT"},
            {"rank": 1, "n": 2**53 + 1, "x": 0.1, "b": -128, "n_type": "BIGINT", "b_type": "SMALLINT"}]
        for sql in ("SELECT text FROM metrics", "SELECT count(text) FROM metrics", "SELECT * FROM metrics"):
            done = jobs.probe(*words, "query", sql)
            assert done.returncode == 1 and done.stdout == "", sql
            assert "the column text of metrics has no one type" in done.stderr, done.stderr
            assert f"BIGINT in rank 0 (process {zero.pid})" in done.stderr, done.stderr
            assert f"VARCHAR in rank 1 (process {one.pid})" in done.stderr, done.stderr
        assert ask(["-t", zero.pid], "SELECT text FROM metrics", None) == [{"text": 7}]
        assert ask(["-t", one.pid], "SELECT text FROM metrics", None) == [{"text": "seven"}]
