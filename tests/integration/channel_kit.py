"""A client of channels (src/control/message.h), in Python, so that tests can break every rule of them.

    with jobs.python() as job:
        inject(job)
        channel = Client(job.pid, "channel.write(channel.read())")
        channel.send(b"words")
        assert channel.receive() == b"words"
"""
import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

HELLO, RUN, CHANNEL, LISTEN, LISTEN_STOP = 1, 3, 11, 12, 13
STREAM, WINDOW, INTERRUPT, END = 32, 33, 34, 35
OUTPUT, DONE, ERROR = 64, 65, 66
SECRET, CODE, FILENAME, MODE, TIMEOUT_MS, TEXT, STATUS, NAME, VALUE, DATA = 1, 3, 4, 5, 6, 8, 9, 11, 12, 14
ROOM = 64 << 10

ECHO = """
while True:
    data = channel.read()
    if not data or not channel.write(data):
        break
"""


def frame(kind, fields=b"", number=1):
    return b"PBC1" + struct.pack("<HHII", kind, 0, number, len(fields)) + fields


def field(tag, data):
    data = struct.pack("<Q", data) if isinstance(data, int) else data.encode() if isinstance(data, str) else data
    return struct.pack("<HHI", tag, 0, len(data)) + data


def fields_of(payload):
    found = {}
    while payload:
        tag, _, size = struct.unpack("<HHI", payload[:8])
        found[tag], payload = payload[8:8 + size], payload[8 + size:]
    return found


def directory_of(pid):
    """The run directory of its agent, in its own root and by its pid there."""
    start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    inside = Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].splitlines()[0].split()[-1]
    name = f"{os.stat(f'/proc/{pid}/ns/pid').st_ino}-{inside}-{start}"
    found = [Path(f"/proc/{pid}/root", root, f"probing-{os.stat(f'/proc/{pid}').st_uid}", name)
             for root in ("dev/shm", "tmp", "var/tmp")]
    return next(path for path in found if path.exists())


class Connection:
    """A connection to an agent that has sent HELLO."""

    def __init__(self, pid):
        directory = directory_of(pid)
        self.rest = b""
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(directory / "control"))
        self.socket.settimeout(20)
        self.socket.sendall(frame(HELLO, field(SECRET, (directory / "secret").read_bytes())))
        assert self.next()[0] == DONE

    def next(self):
        """The next frame: its type and fields; (None, {}) at the end."""
        while len(self.rest) < 16 or len(self.rest) < 16 + struct.unpack("<I", self.rest[12:16])[0]:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return None, {}
            self.rest += data
        size = 16 + struct.unpack("<I", self.rest[12:16])[0]
        whole, self.rest = self.rest[:size], self.rest[size:]
        return struct.unpack("<H", whole[4:6])[0], fields_of(whole[16:])

    def ask(self, kind, fields=b"", number=2):
        self.socket.sendall(frame(kind, fields, number))
        return self.next()

    def close(self):
        self.socket.close()


class Client(Connection):
    """A client with an open channel. credit: bytes that it may send."""

    def __init__(self, pid, code="", kind="code", timeout_ms=10000):
        super().__init__(pid)
        self.end = None
        self.credit = ROOM
        kind_of_answer, fields = self.ask(CHANNEL, field(NAME, kind) + field(DATA, code)
                                          + field(TIMEOUT_MS, timeout_ms))
        if kind_of_answer != DONE:
            raise OSError(fields[TEXT].decode())
        assert fields[VALUE] == struct.pack("<Q", ROOM)

    def send(self, data):
        """As far as there is room, else waits for it."""
        for at in range(0, len(data), 8192):
            piece = data[at:at + 8192]
            while self.credit < len(piece):
                kind, fields = self.next()
                assert kind == WINDOW
                self.credit += struct.unpack("<Q", fields[VALUE])[0]
            self.credit -= len(piece)
            self.socket.sendall(frame(STREAM, field(DATA, piece), 2))

    def receive(self, size=1):
        """At least that many bytes, or what came up to the end, which is then in self.end as (status, text)."""
        data = b""
        while len(data) < size and self.end is None:
            kind, fields = self.next()
            if kind == STREAM:
                data += fields[DATA]
                with suppress(BrokenPipeError):  # its last words, and it is gone
                    self.socket.sendall(frame(WINDOW, field(VALUE, len(fields[DATA])), 2))
            elif kind == WINDOW:
                self.credit += struct.unpack("<Q", fields[VALUE])[0]
            elif kind == END:
                self.end = struct.unpack("<Q", fields[STATUS])[0], fields[TEXT].decode()
            else:
                self.end = kind, fields.get(TEXT, b"").decode()
        return data

    def interrupt(self):
        self.socket.sendall(frame(INTERRUPT, b"", 2))

    def finish(self):
        self.socket.sendall(frame(END, b"", 2))


def listen(pid, code, address="127.0.0.1", port=0, mode=0, kind="code"):
    """The port."""
    connection = Connection(pid)
    answer, fields = connection.ask(LISTEN, field(NAME, kind) + field(DATA, code) + field(TEXT, address)
                                    + field(VALUE, port) + field(MODE, mode))
    connection.close()
    if answer != DONE:
        raise OSError(fields[TEXT].decode())
    return struct.unpack("<Q", fields[VALUE])[0]


def stop_listening(pid, kind="", channels=0):
    connection = Connection(pid)
    answer, fields = connection.ask(LISTEN_STOP, (field(NAME, kind) if kind else b"") + field(MODE, channels))
    connection.close()
    assert answer == DONE
    return struct.unpack("<Q", fields[VALUE])[0]


def tcp(port):
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    return client


def receive_all(client):
    data = b""
    while True:
        try:
            piece = client.recv(1 << 16)
        except ConnectionResetError:
            return data
        if not piece:
            return data
        data += piece


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
