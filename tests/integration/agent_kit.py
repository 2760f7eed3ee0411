"""The agent's socket, spoken to byte by byte."""
import os
import socket
import struct
from pathlib import Path


def run_dir(pid):
    start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    name = f"{os.stat(f'/proc/{pid}/ns/pid').st_ino}-{pid}-{start}"
    found = [Path(root, f"probing-{os.stat(f'/proc/{pid}').st_uid}", name) for root in ("/dev/shm", "/tmp", "/var/tmp")]
    return next((path for path in found if path.exists()), None)


def frame(kind, fields=b"", number=1, magic=b"PBC1"):
    return magic + struct.pack("<HHII", kind, 0, number, len(fields)) + fields


def field(tag, data):
    return struct.pack("<HHI", tag, 0, len(data)) + data


def connect(directory):
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(directory / "control"))
    client.settimeout(8)
    return client
