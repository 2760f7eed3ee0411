"""report: one HTML file about a process, which shows what the process says and obeys none of it."""
import html.parser

import jobs
from jobs import probe

EVIL = "<img src=x onerror=alert(1)>&\\x1b[2J"
HOSTILE = """
import threading, time
def wait(): time.sleep(1000)
def outer(): wait()
threading.Thread(target=outer, name="EVIL", daemon=True).start()
print("ready", flush=True)
outer()
""".replace("EVIL", EVIL)


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def test_a_report_tells_what_runs_and_obeys_nothing_of_it(tmp_path):
    with jobs.python(HOSTILE, flags=("-X", "api_key=hunter2")) as job:
        path = tmp_path / "ticket.html"
        assert probe(job.pid, "report").returncode == 2
        assert probe(job.pid, "inject").returncode == 0
        done = probe(job.pid, "report", "-o", path)
        assert done.returncode == 0, done.stderr
        text = path.read_text()
        page = Page(text)
        assert {tag for tag, _ in page.tags} <= {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p",
                                                 "table", "tr", "th", "td", "svg", "polyline", "text"}
        assert not [name for _, attributes in page.tags for name in attributes
                    if name in ("src", "href", "onerror", "onload", "style")]
        assert "<img src=x onerror=alert(1)>&" in page.text and "\x1b" not in text and "hunter2" not in text
        assert "outer" in page.text
        assert "wait" in page.text
        assert job.script in page.text
        assert "probing.sample_rate" in page.text
        assert list(tmp_path.iterdir()) == [path]
        assert probe(job.pid, "report", "-o", tmp_path / "none" / "x.html").returncode == 1


def test_of_several_processes_each_has_a_file_of_its_own(tmp_path):
    pair = ("-X", f"pair={tmp_path.name}")
    with jobs.python(flags=pair, env={"RANK": "0"}) as a, jobs.python(flags=pair, env={"RANK": "1"}) as b:
        for job in (a, b):
            assert probe(job.pid, "inject").returncode == 0 and probe(job.pid, "detach").returncode == 0
        done = probe("-t", pair[1], "--all", "report", "-o", tmp_path / "ticket.html")
        assert done.returncode == 0, done.stderr
        files = {rank: (tmp_path / f"ticket-rank-{rank}.html").read_text() for rank in (0, 1)}
        assert f"Process {a.pid}," in files[0] and f"Process {b.pid}," in files[1]
        assert done.stderr.count(f"process {a.pid} is not probed any more") == 1, done.stderr
