"""What the lint tests look at: the files of the project and what was built from them."""
import subprocess
from functools import lru_cache
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
RELEASE = TOP / "build/release"


@lru_cache(None)
def files(*patterns):
    """The project's files, those not committed yet too, as paths relative to the top."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns], cwd=TOP,
                            check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
    return [Path(line) for line in sorted(set(listed.splitlines())) if (TOP / line).is_file()]


def text(path):
    return (TOP / path).read_text(encoding="utf-8")


def output(*command):
    """What a command prints; it must succeed."""
    done = subprocess.run([str(word) for word in command], cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout
