"""Code that nothing calls: a function or variable with a name for other files has a user in one; what a header defines
has one too.

By the symbols of the objects in build/release. What only its own file uses is static; what only tests use is gone, but
for the parsers and the interface listed here.
"""
import re
from collections import defaultdict

from source import RELEASE, TOP, files, output, text
from test_binaries import EXPORTS

# Parts that a fuzzer or a unit test calls by themselves, which the product calls within their file.
PARTS = {
    "pb_archive_unescape", "pb_cluster_format", "pb_cluster_parse", "pb_core_open_fd", "pb_field_next",
    "pb_limits_of_groups", "pb_member_read",
    "pb_merge_choose", "pb_native_aarch64", "pb_native_x86_64", "pb_parquet_footer_rows", "pb_perf_map_parse",
    "pb_profiling_join", "pb_py_published_column", "pb_seccomp_judge", "pb_seccomp_run",
}
# What tests and benchmarks alone ask of the arena and its reader, and of the table of explanations; a reader of stacks
# with the fuzzer's own layout.
LOOKS = {"pb_arena_bound", "pb_arena_used", "pb_clock_is_counter", "pb_diag_kinds", "pb_diag_nkinds", "pb_diag_ntable",
         "pb_diag_table", "pb_py_open_at", "pb_reader_open_memory", "pb_table_find", "pb_view_still_valid"}
OURS_FOR_LIBRARIES = {"main", "__xstat", "open64"}  # what the C library or DuckDB calls
DEFINITION = re.compile(r"^static inline [^;{(]*?\b(\w+)\(", re.M)


SYMBOL = re.compile(r"^.*?\.dir/(\S+)\.o:[0-9a-f ]* ([A-Za-z]) (\S+)$", re.M)


def uses(listing):
    """Of `nm -gA`: {name: the source that defines it}, {name: the sources that ask for it}."""
    defined, asked = {}, defaultdict(set)
    for path, kind, name in SYMBOL.findall(listing):
        if kind in "Uw":
            asked[name].add(path)
        elif (TOP / path).exists():
            defined[name] = path
    return defined, asked


def unused(defined, asked):
    return {name for name, path in defined.items() if not asked[name] - {path}}


def listing_of_symbols():
    objects = [path for path in RELEASE.glob("CMakeFiles/*.dir/src/**/*.c.o")
               if (TOP / str(path).split(".dir/")[1][:-2]).exists()]
    assert len(objects) > 300, "nothing was built"
    return output("nm", "-gA", *objects)


def symbols():
    return uses(listing_of_symbols())


def definitions():
    """{(extern, the source that defines it)}."""
    return {(name, path) for path, kind, name in SYMBOL.findall(listing_of_symbols()) if kind not in "Uw"}


def called_where_defined(names, defined):
    """Those that the product calls in the file that defines them."""
    return {name for name in names if len(re.findall(rf"\b{name}\b", text(defined[name]))) > 1}


def test_every_extern_has_a_user_in_another_file():
    wrong = unused(*symbols())
    unknown = sorted(wrong - EXPORTS - PARTS - LOOKS - OURS_FOR_LIBRARIES)
    assert not unknown, "make it static where its file uses it, else remove it"
    assert PARTS | LOOKS <= wrong, f"used by other files now: {PARTS | LOOKS - wrong}"


def test_what_tests_call_by_itself_is_called_by_the_product():
    defined, _ = symbols()
    assert PARTS - called_where_defined(PARTS, defined) == set()
    samples = {"pb_fail": "src/base/err.c", "pb_seccomp_run": "src/inject/seccomp.c"}
    assert called_where_defined(set(samples), samples) == {"pb_seccomp_run"}


def test_what_tests_alone_use_is_used_by_tests():
    content = "".join(text(path) for path in files("tests/*.c", "bench/*.c"))
    idle = {name for name in PARTS | LOOKS if not re.search(rf"\b{name}\b", content)}
    assert not idle


def test_what_a_header_defines_has_a_user():
    content = {path: text(path) for path in files("src/*.c", "src/*.h", "include/*.h", "tests/*.c", "tests/*.h",
                                                  "bench/*.c")}
    words = defaultdict(int)
    for part in content.values():
        for word in re.findall(r"\w+", re.sub(r"/\*.*?\*/", "", part, flags=re.S)):
            words[word] += 1
    idle = {f"{path}: {name}" for path, part in content.items() if path.suffix == ".h" and path.parts[0] == "src"
            # one for each type
            for name in DEFINITION.findall(part) if words[name] == 1 and not name.startswith("pb_fill_")}
    assert not idle


def test_an_extern_without_a_user_is_noticed():
    listing = ("x/a.dir/src/base/err.c.o:0000000000000010 T pb_one\n"
               "x/a.dir/src/base/err.c.o:                 U pb_two\n"
               "x/a.dir/src/base/err.c.o:0000000000000020 T pb_two\n"
               "x/a.dir/src/base/json.c.o:                 U pb_one\n")
    assert unused(*uses(listing)) == {"pb_two"}
