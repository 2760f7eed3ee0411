"""`-t HOST:PORT`: what a service sends reaches the terminal as what our commands draw with and nothing else, whoever
answers there; and files that it sends take their names as those of this machine's commands do."""
import os
import re
import socket
import stat
import struct
import subprocess
import threading
from contextlib import contextmanager

import jobs
import pytest
from jobs import PROGRAM
from serve_kit import NEEDS_SERVE, service
from terminal_kit import EVIL, OBEYED, OWN, at_terminal

DRAWN = ["\x1b[1mbold\x1b[0m", "\x1b[1;31mred\x1b[m", "\x1b[?1049h\x1b[?25l", "\x1b[2A\x1b[J", "\x1b[H\x1b[2J",
         "\x1b[12G\x1b[K", "\x1b[?25h\x1b[?1049l", "\x1b[?2004h\x1b[?2004l"]
# A title, the clipboard, questions that the terminal answers as if they were typed, keys, resets, other sets of
# characters, mouse, status line, strings.
OBEYS = ["\x1b]0;T\x07", "\x1b]52;c;ZXZpbA==\x1b\\", "\x1b[6n", "\x1b[c", "\x1b[>c", "\x1b[21t", "\x1bP$qm\x1b\\",
         "\x1bc", "\x1b(0", "\x1b[?1000h", "\x1b[?1047h", "\x1b[4h", "\x1b[?25;1000h",
         "\x1b[>4;2m", "\x1b[!p", "\x1b_x\x1b\\", "\x1b[20;1r", "\x1b#8", "\x1bZ", "\x9b6n", "\x1b[" + "1" * 100 + "A",
         "\x1b[1", EVIL]


@contextmanager
def answering(*frames):
    """Whoever has that port: each who connects gets these frames, byte by byte where they are short."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        def serve():
            with listening.accept()[0] as client:
                asked = b""
                while b"\r\n\r\n" not in asked:
                    asked += client.recv(65536)
                client.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: probing-command\r\n\r\n")
                for kind, data in frames:
                    for piece in [data] if len(data) > 4000 else [data[i:i + 1] for i in range(len(data))]:
                        client.sendall(kind + struct.pack("<I", len(piece)) + piece)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(20)


@pytest.mark.parametrize("kind", [b"O", b"E"], ids=["output", "errors"])
def test_who_answers_there_cannot_make_the_terminal_obey(kind):
    text = "".join(f"<{words}>\r\n" for words in OBEYS).encode()
    with answering((kind, text), (b"X", b"\0")) as address:
        seen = at_terminal([str(PROGRAM), "-t", address, "now"]).decode()
    assert not OBEYED.search(re.sub(r"\x1b\[[0-9;]*m|[\r\b\a]", "", OWN.sub("", seen))), repr(seen)
    assert all(repr(words)[1:10].replace("'", "") in seen
               for words in ("\x1b]0;T", "\x1b[6n", "\x1b[?1000h")), repr(seen)


def test_what_our_commands_draw_with_passes():
    with answering((b"O", "\r\n".join([*DRAWN, "\a\b\u4e16\t|"]).encode()), (b"X", b"\0")) as address:
        seen = at_terminal([str(PROGRAM), "-t", address, "now"]).decode()
    assert all(words in seen for words in [*DRAWN, "\a\b\u4e16\t|"]), repr(seen)


@NEEDS_SERVE
def test_colours_of_a_real_service_pass(tmp_path):
    with jobs.python() as job, service(tmp_path / "r") as s:
        seen = at_terminal(["/usr/bin/env", f"XDG_RUNTIME_DIR={s.folder}", str(PROGRAM), "-t", f"{s.address}/{job.pid}",
                            "backtrace"]).decode()
    assert "\x1b[1mprocess" in seen and "train" in seen and "\\x1b" not in seen, repr(seen)


@NEEDS_SERVE
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a device")
def test_a_file_that_is_sent_back_is_no_way_to_other_files(tmp_path):
    device, victim, folder = tmp_path / "null", tmp_path / "victim", tmp_path / "shared"
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    victim.write_text("precious")
    folder.mkdir()
    out = folder / "out.csv"
    with service(tmp_path / "r") as s:
        done = s.run("query", "-o", device, "SELECT 1 AS a")
        assert done.returncode == 0 and stat.S_ISCHR(device.stat().st_mode), (done, device.stat())
        # Whoever guesses the name of its part keeps nobody from writing.
        script = f'ln -s {victim} {out}.$$.part; exec "$@"'
        done = subprocess.run(["sh", "-c", script, "sh", PROGRAM, "-t", s.address, "query", "-o", out, "SELECT 1 AS a"],
                              env=s.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and out.read_text() == "a\n1\n" and victim.read_text() == "precious", done
