"""A client of the Debug Adapter Protocol, after its specification, for tests of `probing debug` on every interpreter.
VS Code's own client is in test_debug_vscode.py."""
import contextlib
import json
import socket
import time

import jobs
from interpreters import INTERPRETERS
from jobs import probe


def debug_address(job, *words):
    done = probe(job.pid, "debug", *words)
    assert done.returncode == 0, done.stderr
    host, _, port = done.stdout.strip().rpartition(":")
    return host.strip("[]"), int(port)


class Failed(Exception):
    pass


class Client:
    def __init__(self, address, attach=True, **arguments):
        self.socket = socket.create_connection(address, 10)
        self.buffer, self.seq, self.events, self.answers = b"", 0, [], {}
        if attach:
            self.capabilities = self.ask("initialize", adapterID="probing", linesStartAt1=True)
            self.ask("attach", **arguments)
            self.wait("initialized")
            self.ask("configurationDone")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, command, **arguments):
        self.seq += 1
        text = json.dumps({"seq": self.seq, "type": "request", "command": command, "arguments": arguments}).encode()
        self.socket.sendall(b"Content-Length: %d\r\n\r\n" % len(text) + text)
        return self.seq

    def receive(self, deadline):
        while True:
            head, found, rest = self.buffer.partition(b"\r\n\r\n")
            size = int(head.split(b":")[1]) if found else 0
            if found and len(rest) >= size:
                self.buffer = rest[size:]
                message = json.loads(rest[:size].decode())
                if message["type"] == "response":
                    self.answers[message["request_seq"]] = message
                else:
                    self.events.append(message)
                return
            self.socket.settimeout(max(0.01, deadline - time.monotonic()))
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError("the debugger closed the connection")
            self.buffer += data

    def result(self, seq, seconds=20):
        deadline = time.monotonic() + seconds
        while seq not in self.answers:
            self.receive(deadline)
        answer = self.answers.pop(seq)
        if not answer["success"]:
            raise Failed(answer["message"])
        return answer.get("body")

    def ask(self, command, **arguments):
        return self.result(self.send(command, **arguments))

    def wait(self, name, seconds=20):
        deadline = time.monotonic() + seconds
        while True:
            for number, event in enumerate(self.events):
                if event["event"] == name:
                    del self.events[number]
                    return event.get("body") or {}
            self.receive(deadline)

    def stop_at(self, path, *lines, **options):
        """Sets breakpoints; returns the answer for each."""
        points = [dict(line, **options) if isinstance(line, dict) else dict(line=line, **options) for line in lines]
        return self.ask("setBreakpoints", source={"path": str(path)}, breakpoints=points)["breakpoints"]

    def stopped(self):
        """The next stop: its event, with the stack."""
        event = self.wait("stopped")
        event["frames"] = self.ask("stackTrace", threadId=event["threadId"])["stackFrames"]
        return event

    def locals(self, frame):
        scopes = self.ask("scopes", frameId=frame["id"])["scopes"]
        return {each["name"]: each for each in self.ask("variables",
                                                        variablesReference=scopes[0]["variablesReference"])[
                                                            "variables"]}, \
            scopes[0]["variablesReference"]

    def value(self, expression, frame=None, context="repl"):
        where = {"frameId": frame["id"]} if frame else {}
        return self.ask("evaluate", expression=expression, context=context, **where)["result"]

    def go(self, stop, how="continue"):
        return self.ask(how, threadId=stop["threadId"])


def line_of(code, text):
    return next(number for number, line in enumerate(code.splitlines(), 1) if text in line)


@contextlib.contextmanager
def script(tmp_path, code, python=None, **options):
    """A program in a file, as people have them."""
    path = tmp_path / "train.py"
    path.write_text(code)
    with jobs.start(python or INTERPRETERS[-1], path, ready="ready", env={"PYTHONUNBUFFERED": "1"}, **options) as job:
        yield job, path


def ends(job, words):
    jobs.wait_until(lambda: words in job.output and job.output.endswith("\n"), what=words)
