"""The table of CPython's layouts (remote/python/layouts.inc) against real interpreters: each looks at objects of its
own by the offsets of its column, and must find what Python itself says of them. No headers are needed."""
import json
import subprocess
import sys
from pathlib import Path

import interpreters
import pytest

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "scripts"))
import layouts  # noqa: E402

LOOK = r'''
import ctypes, json, sys
at = {name: int(value, 0) for name, value in json.load(sys.stdin).items() if value[:1].isdigit()}
seen = {}

def word(address, kind=ctypes.c_uint64):
    return kind.from_address(address).value

def found(field, thing, expected, kind=ctypes.c_uint64):
    if field in at:
        seen[field] = [word(id(thing) + at[field], kind), expected]

def outer(first, second=1, *, only):
    inside = first
    def inner():
        return inside
    return inner

code, cell = outer.__code__, outer(4711, only=0).__closure__[0]
new, newer = sys.version_info >= (3, 11), sys.version_info >= (3, 12)
found("code.file", code, id(code.co_filename))
found("code.name", code, id(code.co_name))
found("code.first_line", code, code.co_firstlineno, ctypes.c_int)
found("code.flags", code, code.co_flags, ctypes.c_int)
found("code.argcount", code, code.co_argcount, ctypes.c_int)
found("code.kwonly", code, code.co_kwonlyargcount, ctypes.c_int)
found("code.nlocals", code, code.co_nlocals, ctypes.c_int)
found("code.stacksize", code, code.co_stacksize, ctypes.c_int)
found("code.lines", code, id(code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab))
if new:
    found("code.qualname", code, id(code.co_qualname))
    names = word(id(code) + at["code.varnames"])
    seen["code.varnames"] = [word(names + at["tuple.data"]), id(sys.intern("first"))]
    kinds = word(id(code) + at["code.kinds"])
    seen["code.kinds"] = [word(kinds + at["bytes.size"]), word(names + at["tuple.size"])]
    plain = code._co_code_adaptive
    seen["code.adaptive"] = [ctypes.string_at(id(code) + at["code.adaptive"], len(plain)).hex(), plain.hex()]
else:
    found("code.varnames", code, id(code.co_varnames))
    found("code.cellvars", code, id(code.co_cellvars))
    found("code.freevars", code, id(code.co_freevars))
    found("code.bytes", code, id(code.co_code))

class Named(list):
    pass

found("object.type", Named(), id(Named))
seen["object.size"] = [at["object.size"], object.__basicsize__]
seen["type.name"] = [ctypes.string_at(word(id(Named) + at["type.name"])).decode(), "Named"]
found("type.flags", Named, Named.__flags__)
found("type.basicsize", Named, Named.__basicsize__)
found("type.itemsize", tuple, tuple.__itemsize__)
found("type.dictoffset", Named, Named.__dictoffset__, ctypes.c_int64)
found("type.base", Named, id(list))
text, latin = "abcdefg", "\xe9\xe8\xea"
found("unicode.length", text, 7)
seen["unicode.state"] = [word(id(text) + at["unicode.state"], ctypes.c_uint32) >> at["kind_shift"] & 7, 1]
seen["unicode.ascii_size"] = [ctypes.string_at(id(text) + at["unicode.ascii_size"], 8).decode(), text + "\0"]
seen["unicode.compact_size"] = [ctypes.string_at(id(latin) + at["unicode.compact_size"], 3).decode("latin-1"), latin]
raw, pair, items = b"twelve bytes", (text, latin), [latin, text, code]
found("bytes.size", raw, 12)
seen["bytes.data"] = [ctypes.string_at(id(raw) + at["bytes.data"], 12).decode(), raw.decode()]
found("tuple.size", pair, 2)
seen["tuple.data"] = [[word(id(pair) + at["tuple.data"] + 8 * i) for i in range(2)], [id(text), id(latin)]]
found("list.size", items, 3)
seen["list.data"] = [word(word(id(items) + at["list.data"]) + 8), id(text)]
found("dict.used", {1: 2, 3: 4, 5: 6}, 3)
some = {text, raw}
found("set.used", some, 2)
found("set.mask", some, 7)
table = word(id(some) + at["set.table"])
seen["set.table"] = [sorted(word(table + 16 * i) for i in range(8))[-2:], sorted([id(text), id(raw)])]
found("integer.tag", 123456, 1 << 3 if newer else 1)
found("integer.digits", 123456, 123456, ctypes.c_uint32)
seen["float_value"] = [word(id(2.5) + at["float_value"], ctypes.c_double), 2.5]
found("cell_value", cell, id(cell.cell_contents))

def counting():
    yield 1

generator = counting()
found("gen.name", generator, id(generator.__name__))
found("gen.qualname", generator, id(generator.__qualname__))
if not newer:
    found("gen.code", generator, id(generator.gi_code))
if not new:
    found("gen.frame", generator, id(generator.gi_frame))
    frame = sys._getframe()
    found("frame.code", frame, id(frame.f_code))
    found("frame.globals", frame, id(globals()))
json.dump(seen, sys.stdout)
'''


@pytest.mark.parametrize("interpreter", interpreters.INTERPRETERS, ids=interpreters.interpreter_id)
def test_an_interpreter_finds_its_objects_by_its_column(interpreter):
    column = "{}.{}".format(*interpreters.version_of(interpreter))
    fields = layouts.read_table(layouts.TABLE.read_text())[column][1]
    there = {name: value for name, value in fields.items() if value != "0"}
    done = subprocess.run([interpreter, "-c", LOOK], input=json.dumps(there), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert len(seen) > 40
    wrong = {field: values for field, values in seen.items() if values[0] != values[1]}
    assert not wrong


def test_each_version_has_a_value_in_each_row():
    rows = [line for line in layouts.TABLE.read_text().splitlines() if line.startswith("    ")]
    assert len(rows) > 150
    fields = {True: len(layouts.PUBLISHED), False: len(layouts.COLUMNS)}
    wrong = [row for row in rows if row.count(",") != fields["PUBLISHED(" in row]]
    assert not wrong
