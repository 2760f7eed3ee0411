"""Writes src/remote/python/layouts.inc from the headers of the CPythons on this machine: a row a field, a column a version.

scripts/layouts.py [--check] [INTERPRETER | FOLDER...]    default: every interpreter that tests/integration/interpreters.py finds

A folder is one that holds Python.h, for versions that do not run here. Each field is an expression over the headers of
one version; a small program compiled against them prints the column, and from 3.13 on where _Py_DebugOffsets has each
field, once more for the free-threaded build (3.13t), which the same headers describe. The columns of 3.4 and 3.5 are that
of 3.6 with what their public headers have elsewhere. Columns of versions that are not here stay as they are. --check writes
nothing and fails where the file differs. 64-bit Linux only.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/integration"))
import interpreters  # noqa: E402

TABLE = TOP / "src/remote/python/layouts.inc"

HEADERS = """
#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>
#include <stddef.h>
#include <stdio.h>
#if PY_VERSION_HEX >= 0x030B0000
#include <internal/pycore_frame.h>
#endif
#if PY_VERSION_HEX >= 0x03090000
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#include <internal/pycore_gil.h>
#elif PY_VERSION_HEX >= 0x03080000
#include <internal/pycore_pystate.h>
#elif PY_VERSION_HEX >= 0x03070000
#include <internal/pystate.h>
#endif
#if PY_VERSION_HEX >= 0x030B0000
typedef _PyInterpreterFrame Frame;
#else
typedef PyFrameObject Frame;
#endif
#if PY_VERSION_HEX >= 0x030C0000
#include <internal/pycore_obmalloc.h>
#endif
#if PY_VERSION_HEX >= 0x030D0000
#include <internal/pycore_code.h>
#include <internal/pycore_genobject.h>
#endif
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe.h>
#include <internal/pycore_debug_offsets.h>
#endif
#if PY_VERSION_HEX >= 0x030D0000
#include <internal/pycore_object.h>
#endif

static unsigned kind_shift(void)
{
    PyASCIIObject o = {0};
    unsigned bits;
    o.state.kind = 7;
    memcpy(&bits, &o.state, sizeof(bits));
    return (unsigned)__builtin_ctz(bits);
}
"""

ALWAYS = (3, 0)
TSTATE = "offsetof(PyThreadState, %s)"
INTERP = "offsetof(PyInterpreterState, %s)"
CODE = "offsetof(PyCodeObject, %s)"
FRAME = "offsetof(Frame, %s)"
TYPE = "offsetof(PyTypeObject, %s)"
GEN = "offsetof(PyGenObject, %s)"


def field(form, *cases):
    """The expression for a version: the last case whose first version is not above it; None: no such field."""
    return [(since, form % name if name and form else name) for since, name in cases]


def plain(expression):
    return [(ALWAYS, expression)]


def free_threaded(expression, since):
    """A field that only the free-threaded build has."""
    return [(ALWAYS, None), (since, Only(expression))]


class Only(str):
    pass


FIELDS = {
    "frames": [(ALWAYS, '"HEAP"'), ((3, 11), '"CFRAME"'), ((3, 13), '"TSTATE"')],
    "lines": [(ALWAYS, '"LNOTAB"'), ((3, 10), '"LINETABLE"'), ((3, 11), '"LOCATIONS"')],
    "tagged": [(ALWAYS, None), ((3, 14), "1")],
    "kind_shift": plain("kind_shift()"),
    "lasti_units": [(ALWAYS, None), ((3, 10), "1"), ((3, 11), None)],
    "runtime.interp_head": field("offsetof(_PyRuntimeState, %s)", (ALWAYS, None), ((3, 7), "interpreters.head")),
    "runtime.current": field("offsetof(_PyRuntimeState, %s)", (ALWAYS, None), ((3, 7), "gilstate.tstate_current"),
                             ((3, 12), None)),
    "runtime.gil": field("offsetof(_PyRuntimeState, %s)", (ALWAYS, None), ((3, 7), "ceval.gil"), ((3, 12), None)),
    "interp.next": field(INTERP, (ALWAYS, "next")),
    "interp.id": field(INTERP, (ALWAYS, None), ((3, 7), "id")),
    "interp.tstate_head": field(INTERP, (ALWAYS, "tstate_head"), ((3, 11), "threads.head")),
    "interp.modules": field(INTERP, (ALWAYS, "modules"), ((3, 12), "imports.modules")),
    "interp.sysdict": field(INTERP, (ALWAYS, "sysdict")),
    "interp.gil": field(INTERP, (ALWAYS, None), ((3, 12), "ceval.gil")),
    "gil.holder": field("offsetof(struct _gil_runtime_state, %s)", (ALWAYS, None), ((3, 12), "last_holder")),
    "gil.locked": field("offsetof(struct _gil_runtime_state, %s)", (ALWAYS, None), ((3, 12), "locked")),
    "gil.enabled": free_threaded("offsetof(struct _gil_runtime_state, enabled)", (3, 13)),
    "tstate.next": field(TSTATE, (ALWAYS, "next")),
    "tstate.interp": field(TSTATE, (ALWAYS, "interp")),
    "tstate.frame": field(TSTATE, (ALWAYS, "frame"), ((3, 11), "cframe"), ((3, 13), "current_frame")),
    "tstate.thread_id": field(TSTATE, (ALWAYS, "thread_id")),
    "tstate.native_id": field(TSTATE, (ALWAYS, None), ((3, 11), "native_thread_id")),
    "tstate.chunk": field(TSTATE, (ALWAYS, None), ((3, 11), "datastack_chunk")),
    "tstate.chunk_top": field(TSTATE, (ALWAYS, None), ((3, 11), "datastack_top")),
    "tstate.tasks": field("offsetof(_PyThreadStateImpl, %s)", (ALWAYS, None), ((3, 14), "asyncio_tasks_head")),
    "cframe_frame": field("offsetof(_PyCFrame, %s)", (ALWAYS, None), ((3, 11), "current_frame"), ((3, 13), None)),
    "chunk.previous": field("offsetof(_PyStackChunk, %s)", (ALWAYS, None), ((3, 11), "previous")),
    "chunk.size": field("offsetof(_PyStackChunk, %s)", (ALWAYS, None), ((3, 11), "size")),
    "chunk.top": field("offsetof(_PyStackChunk, %s)", (ALWAYS, None), ((3, 11), "top")),
    "chunk.data": field("offsetof(_PyStackChunk, %s)", (ALWAYS, None), ((3, 11), "data")),
    "frame.back": field(FRAME, (ALWAYS, "f_back"), ((3, 11), "previous")),
    "frame.code": field(FRAME, (ALWAYS, "f_code"), ((3, 13), "f_executable")),
    "frame.instr": field(FRAME, (ALWAYS, "f_lasti"), ((3, 11), "prev_instr"), ((3, 13), "instr_ptr")),
    "frame.locals": field(FRAME, (ALWAYS, "f_localsplus"), ((3, 11), "localsplus")),
    "frame.globals": field(FRAME, (ALWAYS, "f_globals")),
    "frame.valuestack": field(FRAME, (ALWAYS, "f_valuestack"), ((3, 11), None)),
    "frame.top": field(FRAME, (ALWAYS, "f_stacktop"), ((3, 10), "f_stackdepth"), ((3, 11), None), ((3, 14), "stackpointer")),
    "frame.iblock": field(FRAME, (ALWAYS, "f_iblock"), ((3, 11), None)),
    "frame.blocks": field(FRAME, (ALWAYS, "f_blockstack"), ((3, 11), None)),
    "frame.is_entry": field(FRAME, (ALWAYS, None), ((3, 11), "is_entry"), ((3, 12), None)),
    "frame.owner": field(FRAME, (ALWAYS, None), ((3, 11), "owner")),
    "frame.stacktop": field(FRAME, (ALWAYS, None), ((3, 11), "stacktop"), ((3, 14), None)),
    "frame.tlbc": free_threaded("offsetof(Frame, tlbc_index)", (3, 14)),
    "code.file": field(CODE, (ALWAYS, "co_filename")),
    "code.name": field(CODE, (ALWAYS, "co_name")),
    "code.qualname": field(CODE, (ALWAYS, None), ((3, 11), "co_qualname")),
    "code.lines": field(CODE, (ALWAYS, "co_lnotab"), ((3, 10), "co_linetable")),
    "code.first_line": field(CODE, (ALWAYS, "co_firstlineno")),
    "code.flags": field(CODE, (ALWAYS, "co_flags")),
    "code.argcount": field(CODE, (ALWAYS, "co_argcount")),
    "code.kwonly": field(CODE, (ALWAYS, "co_kwonlyargcount")),
    "code.nlocals": field(CODE, (ALWAYS, "co_nlocals")),
    "code.stacksize": field(CODE, (ALWAYS, "co_stacksize")),
    "code.varnames": field(CODE, (ALWAYS, "co_varnames"), ((3, 11), "co_localsplusnames")),
    "code.kinds": field(CODE, (ALWAYS, None), ((3, 11), "co_localspluskinds")),
    "code.cellvars": field(CODE, (ALWAYS, "co_cellvars"), ((3, 11), None)),
    "code.freevars": field(CODE, (ALWAYS, "co_freevars"), ((3, 11), None)),
    "code.bytes": field(CODE, (ALWAYS, "co_code"), ((3, 11), None)),
    "code.adaptive": field(CODE, (ALWAYS, None), ((3, 11), "co_code_adaptive")),
    "code.first_traceable": field(CODE, (ALWAYS, None), ((3, 11), "_co_firsttraceable")),
    "code.tlbc": free_threaded("offsetof(PyCodeObject, co_tlbc)", (3, 14)),
    "object.type": plain("offsetof(PyObject, ob_type)"),
    "object.size": plain("sizeof(PyObject)"),
    "type.name": field(TYPE, (ALWAYS, "tp_name")),
    "type.flags": field(TYPE, (ALWAYS, "tp_flags")),
    "type.basicsize": field(TYPE, (ALWAYS, "tp_basicsize")),
    "type.itemsize": field(TYPE, (ALWAYS, "tp_itemsize")),
    "type.dictoffset": field(TYPE, (ALWAYS, "tp_dictoffset")),
    "type.base": field(TYPE, (ALWAYS, "tp_base")),
    "type.cached_keys": plain("offsetof(PyHeapTypeObject, ht_cached_keys)"),
    "type.managed_dict": [(ALWAYS, None), ((3, 11), "24"), ((3, 13), "-(MANAGED_DICT_OFFSET)")],
    "unicode.length": plain("offsetof(PyASCIIObject, length)"),
    "unicode.state": plain("offsetof(PyASCIIObject, state)"),
    "unicode.ascii_size": plain("sizeof(PyASCIIObject)"),
    "unicode.compact_size": plain("sizeof(PyCompactUnicodeObject)"),
    "bytes.size": plain("offsetof(PyVarObject, ob_size)"),
    "bytes.data": plain("offsetof(PyBytesObject, ob_sval)"),
    "tuple.size": plain("offsetof(PyVarObject, ob_size)"),
    "tuple.data": plain("offsetof(PyTupleObject, ob_item)"),
    "list.size": plain("offsetof(PyVarObject, ob_size)"),
    "list.data": plain("offsetof(PyListObject, ob_item)"),
    "dict.used": plain("offsetof(PyDictObject, ma_used)"),
    "dict.keys": plain("offsetof(PyDictObject, ma_keys)"),
    "dict.values": plain("offsetof(PyDictObject, ma_values)"),
    "set.used": plain("offsetof(PySetObject, used)"),
    "set.mask": plain("offsetof(PySetObject, mask)"),
    "set.table": plain("offsetof(PySetObject, table)"),
    "integer.tag": [(ALWAYS, "offsetof(PyVarObject, ob_size)"), ((3, 12), "offsetof(PyLongObject, long_value.lv_tag)")],
    "integer.digits": [(ALWAYS, "sizeof(PyVarObject)"), ((3, 12), "offsetof(PyLongObject, long_value.ob_digit)")],
    "float_value": plain("offsetof(PyFloatObject, ob_fval)"),
    "cell_value": plain("offsetof(PyCellObject, ob_ref)"),
    "gen.frame": field(GEN, (ALWAYS, "gi_frame"), ((3, 11), "gi_iframe")),
    "gen.state": field(GEN, (ALWAYS, None), ((3, 11), "gi_frame_state")),
    "gen.code": field(GEN, (ALWAYS, "gi_code"), ((3, 12), None)),
    "gen.name": field(GEN, (ALWAYS, "gi_name")),
    "gen.qualname": field(GEN, (ALWAYS, "gi_qualname")),
    "gc.runtime": field("offsetof(_PyRuntimeState, %s)", (ALWAYS, None), ((3, 7), "gc.generations"), ((3, 9), None)),
    "gc.interp": field(INTERP, (ALWAYS, None), ((3, 9), "gc.generations")),
    "gc.size": field(None, (ALWAYS, None), ((3, 7), "sizeof(struct gc_generation)")),
    "gc.count": field("offsetof(struct gc_generation, %s)", (ALWAYS, None), ((3, 7), "count")),
    "heap.state": field(INTERP, (ALWAYS, None), ((3, 12), "obmalloc")),
    "heap.indirect": [(ALWAYS, None), ((3, 13), "1")],
    "heap.arenas": field("offsetof(struct _obmalloc_state, %s)", (ALWAYS, None), ((3, 12), "mgmt.arenas")),
    "heap.maxarenas": field("offsetof(struct _obmalloc_state, %s)", (ALWAYS, None), ((3, 12), "mgmt.maxarenas")),
}


# Our field, and the one of _Py_DebugOffsets that says the same, with the version that brought it.
DEBUG = {
    "runtime.interp_head": "runtime_state.interpreters_head",
    "interp.next": "interpreter_state.next",
    "interp.id": "interpreter_state.id",
    "interp.tstate_head": "interpreter_state.threads_head",
    "interp.modules": "interpreter_state.imports_modules",
    "interp.sysdict": "interpreter_state.sysdict",
    "interp.gil": "interpreter_state.ceval_gil",
    "tstate.next": "thread_state.next",
    "tstate.interp": "thread_state.interp",
    "tstate.frame": "thread_state.current_frame",
    "tstate.thread_id": "thread_state.thread_id",
    "tstate.native_id": "thread_state.native_thread_id",
    "tstate.chunk": "thread_state.datastack_chunk",
    "frame.back": "interpreter_frame.previous",
    "frame.code": "interpreter_frame.executable",
    "frame.instr": "interpreter_frame.instr_ptr",
    "frame.locals": "interpreter_frame.localsplus",
    "frame.owner": "interpreter_frame.owner",
    "code.file": "code_object.filename",
    "code.name": "code_object.name",
    "code.qualname": "code_object.qualname",
    "code.lines": "code_object.linetable",
    "code.first_line": "code_object.firstlineno",
    "code.argcount": "code_object.argcount",
    "code.varnames": "code_object.localsplusnames",
    "code.kinds": "code_object.localspluskinds",
    "code.adaptive": "code_object.co_code_adaptive",
    "object.type": "pyobject.ob_type",
    "object.size": "pyobject.size",
    "type.name": "type_object.tp_name",
    "type.flags": "type_object.tp_flags",
    "unicode.length": "unicode_object.length",
    "unicode.state": "unicode_object.state",
    "unicode.ascii_size": "unicode_object.asciiobject_size",
    "bytes.size": "bytes_object.ob_size",
    "bytes.data": "bytes_object.ob_sval",
    "tuple.size": "tuple_object.ob_size",
    "tuple.data": "tuple_object.ob_item",
    "list.size": "list_object.ob_size",
    "list.data": "list_object.ob_item",
    "dict.keys": "dict_object.ma_keys",
    "dict.values": "dict_object.ma_values",
    "integer.tag": "long_object.lv_tag",
    "integer.digits": "long_object.ob_digit",
    "float_value": "float_object.ob_fval",
}


# What 3.4 and 3.5 have elsewhere than 3.6, by their public headers: co_firstlineno stood before co_lnotab, a dict had no version
# tag and its entries lay in the hash table itself, lines only counted upwards.
OLDER = {"lines": "UNSIGNED", "code.first_line": "112", "code.lines": "120", "dict.keys": "24", "dict.values": "32"}


def chosen(cases, version):
    return [expression for since, expression in cases if since <= version][-1]


def program(version, free):
    """A program that prints a column, "NAME VALUE" a line, and then "told NAME OFFSET"."""
    lines = []
    for name, cases in FIELDS.items():
        expression = chosen(cases, version)
        if free and name.startswith(("gc.", "heap.")):  # another collector, another allocator
            continue
        if expression is not None and (free or not isinstance(expression, Only)):
            form, cast = ("%s", "") if expression.startswith('"') else ("%u", "(unsigned)")
            lines.append(f'    printf("{name} {form}\\n", {cast}{expression});')
    if version >= (3, 13) and not free:  # the free-threaded build has the same
        lines += [f'    printf("told {ours} %u\\n", (unsigned)offsetof(_Py_DebugOffsets, {its}));' for ours, its in DEBUG.items()]
    body = "\n".join(lines)
    return f"{HEADERS}\nint main(void)\n{{\n{body}\n    return 0;\n}}\n"


def include_dir(where):
    if Path(where).is_dir():
        return Path(where)
    code = "import sysconfig; print(sysconfig.get_paths()['include'])"
    return Path(subprocess.run([where, "-c", code], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout.strip())


def version_of(include):
    return re.search(r'#define PY_VERSION\s+"([\d.]+)', (include / "patchlevel.h").read_text()).group(1)


def offsets(include, version, free):
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "layout.c"), Path(folder, "layout")
        source.write_text(program(version, free))
        build = ["-DPy_GIL_DISABLED=1"] if free else []
        subprocess.run(["cc", "-w", *build, f"-I{include}", f"-I{include}/internal", f"-I{include.parent}", source, "-o", binary],
                       check=True)
        printed = subprocess.run([binary], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
    return dict(line.rsplit(" ", 1) for line in printed.splitlines())


def on_aarch64(include, version, fields):
    """The fields that aarch64 has elsewhere (its pthread_mutex_t is longer): its program cannot run here, so they are read from
    the assembly of an array."""
    names = [name for name, value in fields.items() if value.isdigit() and name != "kind_shift"]
    values = ", ".join(str(chosen(FIELDS[name], version)) for name in names)
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "layout.c"), Path(folder, "layout.s")
        source.write_text(f"{HEADERS}\nconst unsigned offsets_here[] = {{{values}, 0x7fff1234}};\n")
        Path(folder, "crypt.h").touch()  # Python.h includes it up to 3.10, and no layout needs it
        # Debian keeps pyconfig.h in a folder of each machine. What this one's says of sizes is true of aarch64 too.
        for pyconfig in include.parent.glob(f"x86_64-linux-gnu/{include.name}/pyconfig.h"):
            Path(folder, "aarch64-linux-gnu", include.name).mkdir(parents=True)
            Path(folder, "aarch64-linux-gnu", include.name, "pyconfig.h").symlink_to(pyconfig)
        subprocess.run([sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu.2.36", "-w", "-S", "-O1",
                        f"-I{include}", f"-I{include}/internal", f"-I{folder}", source, "-o", out], check=True)
        words = re.search(r"offsets_here:\n((?:\s+\.word\s.*\n)+)", out.read_text()).group(1)
    there = [int(word, 0) for word in re.findall(r"\.word\s+(\w+)", words)]
    assert len(there) == len(names) + 1 and there[-1] == 0x7fff1234, words
    return {name: str(value) for name, value in zip(names, there) if str(value) != fields[name]}


def columns_of(include):
    """(name, the release whose headers it is of, its fields, those that aarch64 has elsewhere)"""
    release = version_of(include)
    version = tuple(map(int, release.split(".")[:2]))
    name = f"{version[0]}.{version[1]}"
    head = {"version": f"0x{version[0]:02x}{version[1]:02x}", "verified": "1"}
    found = offsets(include, version, False)
    fields = {**head, **found}
    # Later ones tell their own, or have none of these fields.
    yield name, release, fields, on_aarch64(include, version, found) if (3, 7) <= version <= (3, 11) else {}
    if version >= (3, 13):
        yield f"{name}t", release, {**head, "free_threaded": "1", **offsets(include, version, True)}, {}
    if version == (3, 6):
        for minor in (4, 5):
            yield f"3.{minor}", f"{release}, and what it has elsewhere", {**fields, "version": f"0x030{minor}", "verified": "0", **OLDER}, {}


COLUMNS = [*(f"3.{minor}" for minor in range(4, 16)), "3.13t", "3.14t", "3.15t"]
PUBLISHED = ["3.13", "3.14", "3.15"]
ROWS = ["version", "verified", "free_threaded", *FIELDS]


def read_table(text):
    """{column: (release, fields, on aarch64)} of the file as it is."""
    table = {name: [release, {}, {}] for name, release in re.findall(r"^ \*   (3\.\d+t?) +CPython (.*?)(?: \*/)?$", text, re.M)}
    aarch64 = False
    for line in text.splitlines():
        row = re.match(r" +(FIELD|PUBLISHED)\(([\w.]+), (.*)\)", line)
        aarch64 = line.startswith("#ifdef") or aarch64 and not line.startswith("#else")
        if row:
            told = row[1] == "PUBLISHED"
            for column, value in zip(PUBLISHED if told else COLUMNS, map(str.strip, row[3].split(","))):
                table[column][2 if aarch64 else 1][("told " if told else "") + row[2]] = value
    return table


def row_of(kind, name, cells, width):
    return f"    {kind}({name}, ".ljust(34) + ", ".join(cell.rjust(width) for cell in cells) + ")"


def rows(kind, names, columns, prefix="", width=4):
    return [row_of(kind, name, [column.get(prefix + name, "0") for column in columns], width) for name in names]


def text_of(table):
    columns = [table[name][1] for name in COLUMNS]
    machine = [name for name in ROWS if any(name in table[column][2] for column in COLUMNS)]
    there = [{**fields, **elsewhere} for _, fields, elsewhere in (table[name] for name in COLUMNS)]
    both = [name for name in ROWS if name not in machine]
    releases = "\n".join(f" *   {name:<6} CPython {table[name][0]}" for name in COLUMNS)

    def macro(name, word, lines):
        return " \\\n".join([f"#define {name}({word})", *lines])

    return f"""/* layouts: the offsets of fields in CPython's structures, a row a field, a column a version; see struct_offsets.h.
 * Written by scripts/layouts.py from the headers of these releases, in the order of the columns:
{releases} */
{macro("PB_PY_FIELDS", "FIELD", rows("FIELD", both, columns))}

#ifdef __aarch64__ /* its pthread_mutex_t is longer */
{macro("PB_PY_FIELDS_OF_MACHINE", "FIELD", rows("FIELD", machine, there))}
#else
{macro("PB_PY_FIELDS_OF_MACHINE", "FIELD", rows("FIELD", machine, columns))}
#endif

/* Where _Py_DebugOffsets of {", ".join(PUBLISHED)} has a field. */
{macro("PB_PY_PUBLISHED", "PUBLISHED", rows("PUBLISHED", DEBUG, [table[name][1] for name in PUBLISHED], "told "))}
"""


def main():
    check = "--check" in sys.argv[1:]
    wanted = [word for word in sys.argv[1:] if word != "--check"] or interpreters.INTERPRETERS
    before = TABLE.read_text()
    table = read_table(before)
    # Two releases of one minor version: the later one that has headers makes the column.
    includes = [include for include in map(include_dir, wanted) if (include / "Python.h").exists()]
    made = {name: column for include in includes for name, *column in columns_of(include)}
    differ = [name for name in made if text_of({**table, name: made[name]}) != before]
    text = text_of({**table, **made})
    if not check:
        TABLE.write_text(text)
    print(f"layouts: {len(made)} columns, {len(differ)} {'differ' if check else 'written anew'}: {' '.join(differ)}")
    return 1 if check and text != before else 0


if __name__ == "__main__":
    sys.exit(main())
