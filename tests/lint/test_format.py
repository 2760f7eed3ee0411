"""C is formatted by clang-format with the file .clang-format, in the one version that is pinned."""
import subprocess

from source import TOP, files


def test_formatted():
    sources = files("*.c", "*.h")
    assert sources
    done = subprocess.run([TOP / "build/venv/bin/clang-format", "--dry-run", "-Werror", *sources], cwd=TOP,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0, done.stdout[:4000]
