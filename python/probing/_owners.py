"""Who has an object: the path from a variable of a running function, or of a module, that leads to it.

What an object refers to comes from the garbage collector; only on the way to what was found are its fields read, from dicts and lists, and no code of the
program's classes runs. Objects on the way are held for some milliseconds. For _inspect.py.
"""
import sys

from . import _helpers, _values
from ._program import gc_module, is_library

LEVELS, NODES_MAX, ITEMS_MAX, FRAMES_MAX = 4, 30000, 5000, 60
NO_PARTS = frozenset(id(kind) for kind in (int, float, complex, bool, type(None), str, bytes, type(sys), type(_values.own_field)))


class Search:
    """wanted: addresses. found: the paths to them."""

    def __init__(self, wanted):
        self.left, self.nodes, self.found, self.parts_of = set(wanted), 0, {}, gc_module().get_referents

    def leads(self, value, levels):
        """Whether one of them is this or within so many levels of it."""
        self.nodes += 1
        kind = type(value)
        if id(value) in self.left:
            return True
        if levels == 0 or self.nodes > NODES_MAX or id(kind) in NO_PARTS or issubclass(kind, type):
            return False
        holds = _values.is_one(kind, (dict, list, tuple))
        if holds and len(value) > ITEMS_MAX:
            return False
        return any(self.leads(part, levels if type(part) is dict and not holds else levels - 1) for part in self.parts_of(value))

    def walk(self, value, path, levels):
        """Names the values that leads() found."""
        kind = type(value)
        if id(value) in self.left:
            self.left.discard(id(value))
            self.found[id(value)] = path
        if levels == 0 or not self.left:
            return
        if kind is dict:
            self.walk_names(value, lambda key: "%s[%s]" % (path, _values.text_of(_values.plain(key))), levels)
        elif kind is list or kind is tuple:
            for at, part in enumerate(kind(value)):
                if self.leads(part, levels - 1):
                    self.walk(part, "%s[%d]" % (path, at), levels - 1)
        else:
            try:
                fields = object.__getattribute__(value, "__dict__")
            except Exception:
                return
            if type(fields) is dict:
                if id(fields) in self.left:
                    self.left.discard(id(fields))
                    self.found[id(fields)] = path
                self.walk_names(fields, lambda key: "%s.%s" % (path, key), levels)

    def walk_names(self, names, path, levels):
        for key, part in list(names.items()):
            if type(key) is str and self.leads(part, levels - 1):
                self.walk(part, path(key), levels - 1)


def roots():
    """(the name of a variable, whose it is, value)"""
    for ident, _ in _helpers.live_threads():
        for frame in _helpers.frames_of(ident)[:FRAMES_MAX]:
            code = frame.f_code
            if code.co_name != "<module>" and not is_library(code.co_filename):
                for name, value in _helpers.frame_locals(frame).items():
                    yield name, " of %s" % code.co_name, value
    for module_name, module in list(sys.modules.items()):
        names = object.__getattribute__(module, "__dict__") if type(module) is type(sys) else {}
        file = names.get("__file__")
        if module_name == "__main__" or type(file) is str and not is_library(file):
            for name, value in list(names.items()):
                if type(name) is str and not name.startswith("__"):
                    yield name, " of the module %s" % module_name, value


def find(wanted):
    """{address: "cache of train"}, the shortest paths."""
    search, paths = Search(wanted), {}
    for levels in range(LEVELS):
        search.nodes = 0
        for name, whose, value in roots():
            if search.left and search.leads(value, levels):
                search.walk(value, name, levels)
                paths.update((address, path + whose) for address, path in search.found.items())
                search.found = {}
    return paths
