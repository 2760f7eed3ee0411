"""A site directory with probing.pth, as pip would install it."""
import subprocess
import sys
import sysconfig

import jobs

PTH = (jobs.TOP / "python/probing-start.pth").read_text()


def site(tmp_path, python):
    """A virtual environment as the wheel leaves it: the package and the .pth file."""
    folder = tmp_path / "env"
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, stdout=subprocess.DEVNULL)
    packages = next((folder / "lib").glob("python3*/site-packages"))
    (packages / "probing-start.pth").write_text(PTH)
    (packages / "probing").symlink_to(jobs.TOP / "python/probing")
    return folder / "bin/python"


def site_of_tests(tmp_path):
    """The same with the packages that the tests have: pytest, torch."""
    program = site(tmp_path, sys.executable)
    packages = next((program.parent.parent / "lib").glob("python3*/site-packages"))
    (packages / "tests.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return program
