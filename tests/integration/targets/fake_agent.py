"""A program that is its own agent, and not a good one: fake_agent.py MODE. It makes a run directory in /dev/shm as an
agent does, and answers on the socket in it by the mode:

  silent    takes the connection and says nothing          slow     a byte of the answer to HELLO every half second
  dribble   the same of every answer after HELLO           huge     an answer that is to have 4 GB
  half      a part of an answer, then no more               wrong    answers to other requests, without end
  flood     output without end                              closes   takes the connection and closes it
  garbage   bytes that are no frames                        error    an error with control characters in it
"""
import fcntl
import os
import socket
import struct
import sys
import threading
import time

MODE = sys.argv[1]
OUTPUT, DONE, ERROR = 64, 65, 66


def frame(kind, number, payload=b"", size=None):
    return struct.pack("<4sHHII", b"PBC1", kind, 0, number, len(payload) if size is None else size) + payload


def field(tag, data):
    return struct.pack("<HHI", tag, 0, len(data)) + data


def make_directory():
    start = open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]
    name = f"{os.stat('/proc/self/ns/pid').st_ino}-{os.getpid()}-{start}"
    path = f"/dev/shm/probing-{os.geteuid()}/{name}"
    os.makedirs(path, mode=0o700)
    for file, text in (("about", "program=fake\npython=3.11.7\n"), ("secret", "0" * 32)):
        with open(f"{path}/{file}", "w") as out:
            out.write(text)
    lock = open(f"{path}/about", "r+")
    fcntl.lockf(lock, fcntl.LOCK_EX)
    here = os.open(path, os.O_RDONLY)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(f"/proc/self/fd/{here}/control")
    server.listen(16)
    return server, lock


def receive(client, n):
    data = b""
    while len(data) < n:
        more = client.recv(n - len(data))
        if not more:
            raise ConnectionError
        data += more
    return data


def request(client):
    _, kind, _, number, size = struct.unpack("<4sHHII", receive(client, 16))
    receive(client, size)
    return kind, number


def dribble(client, data):
    for byte in data:
        client.sendall(bytes([byte]))
        time.sleep(0.5)


def answer(client, number):
    if MODE == "dribble":
        dribble(client, frame(DONE, number, field(14, bytes(1000))))
    elif MODE == "huge":
        client.sendall(frame(DONE, number, size=0xFFFFFFFF))
        client.sendall(bytes(1 << 16))
    elif MODE == "half":
        client.sendall(frame(DONE, number, b"x" * 10, size=1000))
        client.shutdown(socket.SHUT_WR)
    elif MODE == "wrong":
        while True:
            client.sendall(frame(DONE, number + 7, field(8, b"wrong")) * 100)
    elif MODE == "flood":
        while True:
            client.sendall(frame(OUTPUT, number, field(11, b"probing.sample_rate") + field(12, b"1")
                                 + field(8, b"command")))
            time.sleep(0.001)
    elif MODE == "garbage":
        client.sendall(bytes(range(256)) * 64)
    elif MODE == "error":
        client.sendall(frame(ERROR, number, field(10, struct.pack("<Q", 2**40)) + field(8, b"\x1b[31mred\x07\x9b\xff")))


def serve(client):
    try:
        if MODE == "closes":
            client.close()
            return
        kind, number = request(client)
        hello = frame(DONE, number, field(2, struct.pack("<Q", 1)) + field(8, b"1.0"))
        if MODE == "slow":
            dribble(client, hello)
        elif MODE != "silent":
            client.sendall(hello)
            while True:
                kind, number = request(client)
                answer(client, number)
        time.sleep(1000)
    except OSError:
        client.close()


server, lock = make_directory()
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
