"""The programs of tables.py as cases of tests: which interpreters each gets, and where one cannot run."""
import os
import sys
import zlib

import interpreters
import pytest
import runner
import tables

FOUND = {os.environ["HARM_PYTHON"]: interpreters.version_of(os.environ["HARM_PYTHON"])} if os.environ.get(
    "HARM_PYTHON") else \
    {path: interpreters.version_of(path) for path in interpreters.INTERPRETERS}


def cases():
    """(target, interpreter): in the short form one interpreter for each target, another for each."""
    for position, target in enumerate(tables.TARGETS):
        if target.soak and not runner.SOAK:
            continue
        paths = list(tables.interpreters_for(target, FOUND).items()) or [(sys.executable, sys.version_info[:3])]
        if not runner.SOAK:
            paths = [paths[(zlib.crc32(target.name.encode()) + runner.SEED) % len(paths)]]
        for path, version in paths:
            label = f"{target.name}-{'.'.join(map(str, version))}" if target.python else target.name
            yield pytest.param(target, position, path, version, id=label,
                               marks=[pytest.mark.alone] if target.alone else [])


def skip_where_impossible(case, version):
    why = tables.why_not(case.target, version)
    if not why and case.target.preload and not case.find_preload():
        why = f"none of {', '.join(map(case.fill, case.target.preload))} is installed"
    if not why and case.target.cgroup_mb:
        try:
            runner.make_cgroup(case.target.cgroup_mb).rmdir()
        except OSError as e:
            why = f"no memory cgroup: {e}"
    if why:
        pytest.skip(why)
