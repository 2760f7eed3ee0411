"""A program on a terminal: what it writes is drawn on a screen of ours, so that tests see what a person sees."""
import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
import unicodedata

import jobs

SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()=>].?")


class Screen:
    """As much of a terminal as our programs use; what they must not use is noted as unknown."""

    def __init__(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.cells = [[" "] * columns for _ in range(rows)]
        self.row = self.column = 0
        self.pending = self.scrolled = ""
        self.unknown = []
        self.modes = set()

    def lines(self):
        return ["".join(row).rstrip() for row in self.cells]

    def text(self):
        return "\n".join(self.lines()).rstrip()

    def down(self):
        if self.row + 1 < self.rows:
            self.row += 1
            return
        self.scrolled += "".join(self.cells.pop(0)).rstrip() + "\n"
        self.cells.append([" "] * self.columns)

    def put(self, char):
        if unicodedata.combining(char):
            return
        width = 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if self.column + width > self.columns:
            self.column = 0
            self.down()
        self.cells[self.row][self.column] = char
        for k in range(1, width):
            self.cells[self.row][self.column + k] = ""
        self.column += width

    def command(self, arguments, letter):
        number = int(arguments) if arguments.isdigit() else 1
        if letter in "hl" and arguments.startswith("?"):
            (self.modes.add if letter == "h" else self.modes.discard)(arguments[1:])
        elif letter == "A":
            self.row = max(0, self.row - number)
        elif letter == "B":
            self.row = min(self.rows - 1, self.row + number)
        elif letter == "G" and not arguments:
            self.column = 0
        elif letter == "C":
            self.column = min(self.columns - 1, self.column + number)
        elif letter == "H" and not arguments:
            self.row = self.column = 0
        elif letter == "K" and not arguments:
            self.cells[self.row][self.column:] = [" "] * (self.columns - self.column)
        elif letter == "J" and arguments in ("", "0", "2"):
            if arguments == "2":
                self.cells = [[" "] * self.columns for _ in range(self.rows)]
                return
            self.cells[self.row][self.column:] = [" "] * (self.columns - self.column)
            for row in range(self.row + 1, self.rows):
                self.cells[row] = [" "] * self.columns
        elif letter != "m":
            self.unknown.append(arguments + letter)

    def feed(self, text):
        text = self.pending + text
        at, self.pending = 0, ""
        while at < len(text):
            char = text[at]
            found = SEQUENCE.match(text, at)
            if found:
                if found.group(2):
                    self.command(found.group(1), found.group(2))
                at = found.end()
                continue
            if char == "\x1b" and len(text) - at < 12:
                self.pending = text[at:]
                return
            if char == "\r":
                self.column = 0
            elif char == "\n":
                self.down()
            elif char == "\b":
                self.column = max(0, self.column - 1)
            elif char >= " ":
                self.put(char)
            elif char != "\a":
                self.unknown.append(char)
            at += 1


class Terminal:
    """A program on a pseudo-terminal, ended with the block."""

    def __init__(self, *words, rows=24, columns=100, env=None):
        self.screen = Screen(rows, columns)
        self.raw = b""
        self.status = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            self.fd = 0
            self.resize(rows, columns, redraw=False)
            # Not what the process really has: readline has put another terminal's size there.
            environment = {**os.environ, "TERM": "xterm", **(env or {})}
            environment.pop("COLUMNS", None)
            os.execve(words[0], [str(word) for word in words], environment)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def resize(self, rows, columns, redraw=True):
        if redraw:
            self.screen = Screen(rows, columns)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds=0.05):
        """Draws what comes within the time; false at the end."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.raw += data
        self.screen.feed(self.decoder.decode(data))
        return bool(data)

    def settle(self):
        while select.select([self.fd], [], [], 0.1)[0] and self.read():
            pass

    def wait(self, what, seconds=15):
        """Until the screen shows it: a text, or what a function says of the screen."""
        shows = what if callable(what) else lambda screen: what in screen.text()
        deadline = time.monotonic() + seconds
        while not shows(self.screen):
            assert time.monotonic() < deadline, f"not seen: {what!r}\n{self.screen.text()}"
            self.read()
        return self.screen

    def send(self, keys):
        os.write(self.fd, keys if isinstance(keys, bytes) else keys.encode())

    def flags(self):
        """Whether the terminal edits lines and shows what is typed, as a shell leaves it."""
        mode = termios.tcgetattr(self.fd)[3]
        return bool(mode & termios.ICANON), bool(mode & termios.ECHO), bool(mode & termios.ISIG)

    def end(self, seconds=10):
        """The exit status, a signal as a negative number."""
        deadline = time.monotonic() + seconds
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
                self.settle()
                break
            assert time.monotonic() < deadline, f"it does not end:\n{self.screen.text()}"
            self.read()
        return self.status


def probing(*words, **options):
    return Terminal(str(jobs.PROGRAM), *words, **options)


# A title, a colour that the tool does not use, C1 controls as characters and as a byte, marks of direction, line ends.
EVIL = "a\x1b]0;T\x07\x1b[31;41mb\x9b2J\x85c\u202ed\u2066e\u2028f\rG\x08\x7f\nFORGED"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f]")
OWN = re.compile(r"\x1b\[(?:0|1|2|7|36|1;31)?m|\x1b\[[0-9]*[ABCGHJK]|\x1b\[\?(?:25|1049|2004)[hl]")


def at_terminal(words, seconds=30):
    """The bytes that reach a terminal."""
    pid, master = pty.fork()
    if pid == 0:
        os.execv(words[0], words)
    read, end = b"", time.monotonic() + seconds
    try:
        while time.monotonic() < end and select.select([master], [], [], max(0, end - time.monotonic()))[0]:
            read += os.read(master, 65536)
    except OSError:
        pass  # the other end is closed
    finally:
        os.close(master)
        os.waitpid(pid, 0)
    return read
