"""The agent's copy of CPython's offsets (src/agent/python/pylayout.c) equals the tables made from the headers."""
import re
import sys

from source import TOP

sys.path.insert(0, str(TOP / "scripts"))
import layouts  # noqa: E402

# Field of the agent -> field of the table.
FIELDS = {"interp_gil": "interp.gil", "thread_id": "tstate.thread_id", "native_id": "tstate.native_id",
          "top": "tstate.frame",
          "cframe_top": "cframe_frame", "back": "frame.back", "code": "frame.code", "slots": "frame.locals",
          "flags": "code.flags",
          "file": "code.file", "names": "code.varnames", "cells": "code.cellvars", "free": "code.freevars",
          "kinds": "code.kinds",
          "owner": "frame.owner", "instr": "frame.instr", "name": "code.name", "qualname": "code.qualname",
          "adaptive": "code.adaptive"}


def test_the_agent_s_offsets_are_those_of_the_tables(top):
    rows = re.findall(r"\{(\.minor = [^{}]*)\}", (top / "src/agent/python/pylayout.c").read_text())
    assert len(rows) == 10
    table = layouts.read_table(layouts.TABLE.read_text())
    for row in rows:
        ours = {name: int(value) for name, value in re.findall(r"\.(\w+) = (\d+)", row)}
        theirs = table[f"3.{ours['minor']}"][1]
        for name, value in ours.items():
            if name in FIELDS:
                assert value == int(theirs[FIELDS[name]]), f"3.{ours['minor']}: {name}"
