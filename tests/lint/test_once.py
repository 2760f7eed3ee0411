"""What base/ does once is done nowhere else: hashes, the path of this program, cleaning of text, /dev/null, HOST:PORT,
starting processes, JSON. By the words that such code has."""
import re

import pytest
from source import files, text

# A comparison with the control characters. These write a format's escapes, read keys, or refuse such text.
CONTROLS = r"[<>]=? ' '|< 0x20\b|isprint\(|iscntrl\("
ESCAPES = {"src/cli/line/line_edit.c", "src/cli/line/line_keys.c", "src/cluster/cluster.c",
           "src/control/settings.c", "src/engine/shared/cell_text.c", "src/engine/worker/plan_split.c",
           "src/print/outlet.c", "src/remote/python/value.c", "src/serve/answer.c"}
ONCE = {
    "hash": (r"0x0*100000001b3|1099511628211|16777619u?\b", "src/base/hash.h", set()),
    "program": (r"/proc/self/exe", "src/base/program.h", set()),
    "controls": (CONTROLS, "src/base/text.c", ESCAPES),
    # The input of a command, which is not put over one of ours.
    "null": (r'open\("/dev/null"', "src/base/null.c", {"src/serve/jobs_child.c"}),
    "loopback": (r">> 24\)? == 127|IN6_IS_ADDR_LOOPBACK", "src/base/host_port.c", set()),
    # The children of questions share memory with their parent; system calls are tried out in a child.
    "process": (r"(?<![\w.\"])(?:v?fork\(\)|clone\(|posix_spawnp?\()", "src/base/process.c",
                {"src/ask/task.c", "src/inject/seccomp.c"}),
    # Times "5m ago"; the rest is typed in the tables of options.
    "values": (r"pb_parse_duration\((?!const)|strto(?:ul|ull|l|d)\((?:given|count|interval|rate|size|days)\b",
               "src/cli/values.c", {"src/cli/commands/cmd_export.c", "src/cli/parse.c",
                                    "src/cli/profile/profile_from.c"}),
    # vector.h. These count in 32 bits, hold text or hash slots, or are the agent's, too.
    "vector": (r"\? (?:2 \* .*|[^?:]* \* 2) : \d+", None,
               {"src/base/json.c", "src/base/procfs.c", "src/ask/stacks_source.c", "src/remote/python/code.c",
                "src/table/reader.c"}),
    "intern": (r"mix_bits|strcmp\(.*slots\[", "src/base/intern.c", set()),
    # bytes.h; control/ is the agent's, too.
    "u32": (r"(?:>>|<<) \(?8 \* [ik]", None, {"src/control/frame.c", "src/control/packet.c"}),
    # DuckDB's syntax trees are templates; `debug` shows settings of VS Code.
    "json": (r'\\"[\w$]+\\" ?:|putc(?:har)?\(\'[{}]\'|fputs?\("[{}]+\\?"', None,
             {"src/cli/commands/cmd_debug.c", "src/engine/worker/plan_split.c", "src/engine/worker/plan_tree.c",
              "src/engine/worker/prepare.c", "src/engine/worker/statement.c"}),
    "system calls": (r"#ifndef SYS_", "src/table/system_calls.h", set()),
    # host_port.c looks for the first colon. These read http://HOST:PORT/PID?token=, and the port of a header Host.
    "port": (r"(?:str|mem)rchr\([^;]*':'", None, {"src/cli/remote.c", "src/serve/gate.c"}),
}


def places(pattern):
    found = {str(path) for path in files("src/*.c", "src/*.h") if path.parts[1] != "agent"
             and re.search(pattern, text(path))}
    assert found
    return found


@pytest.mark.parametrize("name", ONCE)
def test_it_is_done_in_one_place(name):
    pattern, place, others = ONCE[name]
    found = places(pattern)
    assert place is None or place in found
    assert found - {place} == others, f"{name}: use {place or 'src/base/host_port.h'}"


def test_cmocka_is_included_in_one_place():
    """With the headers that it wants before it: tests/unit/test.h."""
    wrong = [str(path) for path in files("tests/unit/*.[ch]") if "<cmocka.h>" in text(path)]
    assert wrong == ["tests/unit/test.h"]


def test_no_test_imports_from_another():
    """What several files share is in a kit."""
    wrong = [str(path) for path in files("tests/integration/*.py", "tests/harm/*.py", "bench/*.py")
             if re.search(r"^\s*(from|import) test_", text(path), re.M)]
    assert not wrong, "move it into a kit: " + " ".join(wrong)
