"""serve --diagnose: what is wrong is told without a question: an alert, a metric, a post, and the evidence that stays; and
told again when it is over."""
import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jobs
import pytest
from serve_kit import NEEDS_SERVE, service

pytestmark = NEEDS_SERVE

SLEEPER = """
import signal, time
def wait_for_the_end():
    print("ready", flush=True)
    time.sleep(1000)
try:
    wait_for_the_end()
except KeyboardInterrupt:
    signal.pause()
"""
# What others do on this machine is no finding of this test.
RULE = """-- kind: asleep
-- sure: likely
-- says: {Who} sleeps in {call}.
-- evidence: waits | {who} {thread} | {place} | {source}
SELECT *, still AS since FROM ends WHERE wait = 'sleep' AND file LIKE '%/asleep_here.py'
"""


class Receiver:
    """An address that takes posts; the first is refused for a while."""

    def __enter__(self):
        posts, refused = self.posts, self.refused = [], []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                # Other jobs of this machine may have findings too.
                ours = body["alerts"][0]["labels"]["job"] == "asleep_here.py"
                first = ours and not refused
                if ours:
                    (refused if first else posts).append(body)
                self.send_response(503 if first else 200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/hook/secret"
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def of(self, status):
        return [post for post in self.posts if post["status"] == status]


@pytest.mark.timeout(720)
def test_what_is_wrong_is_told_kept_and_told_when_it_is_over(tmp_path, monkeypatch):
    script = tmp_path / "asleep_here.py"
    script.write_text(SLEEPER)
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/asleep.sql").write_text(RULE)
    monkeypatch.setenv("PROBING_DIAGNOSE_RULES", str(tmp_path / "rules"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    alerts = "SELECT kind, severity, subject, message FROM python.alerts ORDER BY timestamp"
    with Receiver() as to, jobs.start(sys.executable, script) as job:
        monkeypatch.setenv("PROBING_ALERT_WEBHOOK", to.address)
        assert jobs.probe(job.pid, "inject").returncode == 0
        with service(tmp_path / "run", "--diagnose", "1s") as served:
            jobs.wait_until(lambda: to.of("firing"), 110, "the post")
            jobs.wait_until(lambda: b'{job="asleep_here.py"' in served.ask("/metrics")[2], 110, "the metric")
            metrics = served.ask("/metrics")[2].decode()
            jobs.wait_until(lambda: jobs.rows(job, alerts), 110, "the alert")
            os.kill(job.pid, signal.SIGINT)
            jobs.wait_until(lambda: to.of("resolved"), 110, "the end")
            jobs.wait_until(lambda: len(jobs.rows(job, alerts)) == 2, 110, "its alert")
            jobs.wait_until(lambda: b'{job="asleep_here.py"' not in served.ask("/metrics")[2], 110, "no metric")
        begun, over = jobs.rows(job, alerts)
    (told,), (ended,) = to.of("firing"), to.of("resolved")
    says = f"Process {job.pid} sleeps in clock_nanosleep."
    assert told["text"].startswith("asleep_here.py on ") and told["text"].endswith(": " + says)
    assert told["content"]["text"] == told["text"] == to.refused[0]["text"], "it was posted again"
    (alert,) = told["alerts"]
    assert alert["labels"].items() >= {"alertname": "probing_finding", "job": "asleep_here.py", "kind": "asleep",
                                       "sure": "likely"}.items()
    assert "asleep_here.py:5" in alert["annotations"]["evidence"]
    assert "time.sleep" not in json.dumps(told), "lines of source may hold a secret"
    assert "over after" in ended["text"] and ended["alerts"][0]["endsAt"] >= alert["startsAt"]
    assert 'probing_finding{job="asleep_here.py",kind="asleep",rank="",sure="likely"} 1' in metrics
    assert (begun["kind"], begun["severity"], begun["message"]) == ("asleep", "error", says)
    assert over["kind"] == "over" and says in over["message"]
    kept = json.loads(open(begun["subject"]).read())
    assert kept["diagnosis"]["verdict"] == says
    assert "wait_for_the_end" in {frame["function"] for thread in kept["stacks"][0]["threads"]
                                  for frame in thread.get("frames", [])}
    assert os.stat(begun["subject"]).st_mode & 0o77 == 0


def test_what_cannot_be_posted_to_is_refused(monkeypatch):
    monkeypatch.setenv("PROBING_ALERT_WEBHOOK", "ftp://nowhere/secret")
    done = jobs.probe("diagnose", "--every", "1s")
    assert done.returncode == 1 and "begins with http:// or https://" in done.stderr and "secret" not in done.stderr
