"""Includes go downwards only: cli > serve > cluster > ask > engine, inject, profile > remote, print > base, control,
table.

The agent stands apart: it runs in the target and sees table/ and control/ only.
"""
import re
from pathlib import Path

import pytest
from source import TOP, files, text

LEVEL = {"base": 0, "control": 0, "table": 0, "remote": 1, "print": 1, "engine": 2, "inject": 2, "profile": 2, "ask": 3,
         "diagnose": 4, "cluster": 4, "serve": 5, "cli": 6}
AGENT_SEES = {"agent", "table", "control"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def may_include(folder, other):
    if folder == other:
        return True
    if folder == "agent":
        return other in AGENT_SEES
    return other != "agent" and LEVEL[other] < LEVEL[folder]


def wrong_includes(path, content):
    """The includes of one file of src/ that point sideways, upwards or to a folder that is none of ours."""
    folder = path.parts[1]
    for name in INCLUDE.findall(content):
        other = name.split("/")[0] if "/" in name else folder
        # A folder within a folder (inject/arch) is written from its parent or from src/.
        if other in LEVEL or other == "agent":
            if not may_include(folder, other):
                yield name
        elif ".." in name or not any((TOP / parent / name).exists()
                                     for parent in (f"src/{folder}", path.parent, "include")):
            yield name


def test_every_include_points_downwards():
    sources = files("src/*.c", "src/*.h")
    assert sources
    wrong = [f"{path}: {name}" for path in sources for name in wrong_includes(path, text(path))]
    assert not wrong, "\n".join(wrong)


def test_every_folder_has_a_level():
    assert {path.parts[1] for path in files("src/*.c", "src/*.h")} <= set(LEVEL) | {"agent"}


# The engine's folders are processes with different rights: what runs in the sandbox must be readable from the path.
ENGINE_SEES = {"shared": {"shared"}, "worker": {"worker", "shared"}, "writer": {"writer", "worker", "shared"},
               "caller": {"caller", "archive", "shared"}, "archive": {"archive", "caller", "shared"},
               "main.c": {"worker", "writer", "shared"}}


def engine_trespasses(path, content):
    for name in INCLUDE.findall(content):
        if name.startswith("engine/") and name.split("/")[1] not in ENGINE_SEES[path.parts[2]]:
            yield name


def test_a_process_of_the_engine_uses_only_what_it_may():
    sources = files("src/engine/*.c", "src/engine/*.h")
    assert sources
    wrong = [f"{path}: {name}" for path in sources for name in engine_trespasses(path, text(path))]
    assert not wrong, "\n".join(wrong)
    assert list(engine_trespasses(Path("src/engine/worker/scan.c"), '#include "engine/caller/broker.h"\n'))


@pytest.mark.parametrize("path, include", [
    ("src/base/err.c", "remote/maps.h"), ("src/agent/main.c", "base/err.h"), ("src/remote/maps.c", "inject/inject.h"),
    ("src/table/reader.c", "control/frame.h"), ("src/cli/main.c", "agent/core/agent.h"),
    ("src/base/err.c", "../cli/main.h"),
])
def test_an_include_upwards_is_noticed(path, include):
    assert list(wrong_includes(Path(path), f'#include "{include}"\n')) == [include]


# The agent's rooms (src/agent/README.md). python/ makes functions of module/'s; about.c writes down the version.
AGENT_ROOMS = {"core": {"core"}, "python": {"core", "python", "module"}, "module": {"core", "python", "module"},
               "channel": {"core", "python", "module", "channel"}, "crash": {"core", "python", "module", "crash"},
               "probes": {"core", "python", "module", "crash", "probes"}}
AGENT_EXCEPTIONS = {("src/agent/core/about.c", "agent/python/python.h")}


def agent_trespasses(path, content):
    for name in INCLUDE.findall(content):
        if name.startswith("agent/") and name.split("/")[1] not in AGENT_ROOMS[path.parts[2]]:
            yield name


def test_a_room_of_the_agent_includes_the_rooms_below_it():
    sources = [path for path in files("src/agent/*.c", "src/agent/*.h") if str(path) != "src/agent/parts.c"]
    assert sources
    wrong = {(str(path), name) for path in sources for name in agent_trespasses(path, text(path))}
    assert wrong == AGENT_EXCEPTIONS
    assert list(agent_trespasses(Path("src/agent/core/server.c"), '#include "agent/python/job.h"\n'))


def test_a_room_of_the_agent_fits_on_a_page():
    rooms = {path.parent for path in files("src/agent/*.c", "src/agent/*.h")}
    full = {str(room): len(list((TOP / room).glob("*.[ch]"))) for room in rooms}
    assert {room: count for room, count in full.items() if count > 40} == {}
    # a probe's folder is described by its parent's page
    assert {str(room) for room in rooms if not (TOP / room / "README.md").exists()} == {
        "src/agent/probes/allocations", "src/agent/probes/gpu", "src/agent/probes/torch"}


# What cuts bytes of another process into messages, and the folders that use it.
FRAMINGS = {"control/frame.h": {"control", "agent"},
            "control/packet.h": {"control", "cli", "cluster", "engine", "profile"}}
# The sources that cut or make packets, by the header that says what is in them.
PACKETS = {"control/relay.h": {"control/relay.c"},
           "cluster/link/node_wire.h": {"cluster/link/node_wire.c", "cluster/link/node_wire_reader.c"},
           "engine/shared/wire.h": {"engine/shared/wire.c"}, "engine/shared/sent.h": {"engine/shared/sent.c"},
           "profile/stream.h": {"profile/stream.c", "profile/stream_read.c"},
           "cli/talk/dialog.h": {"cli/talk/dialog.c"}}


@pytest.mark.parametrize("header", FRAMINGS)
def test_messages_are_cut_in_known_places(header):
    users = {path.parts[1] for path in files("src/*.c", "src/*.h") if header in INCLUDE.findall(text(path))}
    assert users == FRAMINGS[header]


def test_packets_are_cut_where_their_header_is():
    users = {str(path)[4:] for path in files("src/*.c") if re.search(r"\bpb_packet_(?:head|parse)\(", text(path))}
    assert users - {"control/packet.c"} == set().union(*PACKETS.values())


def test_the_list_of_framings_is_that_of_the_page():
    page = text(Path("docs/architecture.md")).partition("## What travels between our processes")[2]
    assert set(re.findall(r"^\| `([\w/.]+)`", page.partition("\n## ")[0], re.M)) == set(FRAMINGS) | set(PACKETS)


def doubled_types(sources):
    """The types of ours that are defined in two places."""
    found = {}
    for path, content in sources:
        for name in re.findall(r"^(?:struct|enum|union) (pb_\w+) \{", content, re.M):
            found.setdefault(name, []).append(str(path))
    return [f"{name}: {', '.join(paths)}" for name, paths in found.items() if len(paths) > 1]


def test_one_name_is_one_type():
    assert not doubled_types((path, text(path)) for path in files("src/*.c", "src/*.h"))
    assert doubled_types([("a.h", "struct pb_a {\n"), ("b.h", "enum pb_a {\n")]) == ["pb_a: a.h, b.h"]


def test_one_place_asks_for_the_gil():
    """A thread of the agent that takes the GIL by itself crashes a program that ends at that moment: see
    src/agent/python/enter.h."""
    asking = [str(path.relative_to(TOP)) for path in sorted((TOP / "src").rglob("*.c"))
              if re.search(r"[.>]gil_ensure\(|PyGILState_Ensure\(", path.read_text())]
    assert asking == ["src/agent/python/enter.c"]


def test_loaded_objects_are_looked_at_inside_the_gate_of_fork():
    """A child of fork waits for ever for glibc's lock of that list (fork_gate.h). musl has no such lock, and no other
    way (thread.c)."""
    outside = [str(path) for path in files("src/agent/*.c", "src/agent/**/*.c")
               if re.search(r"\bdl_iterate_phdr\(", text(path))]
    assert outside == ["src/agent/core/fork_gate.c", "src/agent/core/thread_start.c"]
