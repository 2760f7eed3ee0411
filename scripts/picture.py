"""Draws what a terminal shows as an SVG: scripts/picture.py OUT.svg 'command line' ... runs each command in a shell and
draws the prompt, the command and what it printed. For the README: the text is what the program really says."""
import html
import re
import subprocess
import sys

WIDTH, SIZE, LINE = 108, 13, 18  # characters; font size and line height in pixels


def lines_of(command):
    """The prompt line and the output, cut to the width."""
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    shown = re.sub(r"\S*/bin/probing", "probing", command.split(" | ")[0])  # a filter after it only makes it fit
    yield "prompt", f"$ {shown}"
    for line in done.stdout.splitlines():
        line = re.sub(r"\033\[\d*m", "", line)
        yield "output", line if len(line) <= WIDTH else line[:WIDTH - 1] + "…"
    yield "output", ""


def draw(commands):
    lines = [line for command in commands for line in lines_of(command)][:-1]
    width, height = WIDTH * SIZE * 0.602 + 32, len(lines) * LINE + 28
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}" '
           'role="img" aria-label="a terminal with real output of probing">')
    yield ("<style>rect{fill:#f6f8fa;stroke:#d0d7de}text{font:%dpx ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:#24292f}"
           ".prompt{fill:#0550ae;font-weight:600}@media(prefers-color-scheme:dark){rect{fill:#161b22;stroke:#30363d}text{fill:#e6edf3}"
           ".prompt{fill:#79c0ff}}</style>" % SIZE)
    yield f'<rect x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1}" rx="8"/>'
    for number, (kind, text) in enumerate(lines):
        yield f'<text class="{kind}" x="16" y="{26 + number * LINE}" xml:space="preserve">{html.escape(text)}</text>'
    yield "</svg>"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: scripts/picture.py OUT.svg 'command line' ...")
    with open(sys.argv[1], "w") as out:
        out.write("\n".join(draw(sys.argv[2:])) + "\n")
