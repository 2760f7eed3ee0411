"""C is formatted by clang-format with the file .clang-format, in the one version that is pinned."""
import re
import subprocess

from source import TOP, files


def test_formatted():
    sources = files("*.c", "*.h")
    assert sources
    done = subprocess.run([TOP / "build/venv/bin/clang-format", "--dry-run", "-Werror", *sources], cwd=TOP,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    wrong = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", done.stdout, re.M)))
    assert done.returncode == 0, f"run build/venv/bin/clang-format -i {' '.join(wrong)}\n{done.stdout[:2000]}"
