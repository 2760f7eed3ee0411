"""The names for code run from outside: those of __main__, and additional ones."""
import builtins
import sys

import _probing
from ._program import gc_module, main_globals, stdlib

FRESH_MS = 20
OWN_NAMES = ("__name__", "__builtins__")


class Names(dict):
    """The globals of a request's code: the present names of __main__, then additional ones; assignments reach __main__ at once.

    Code reads a dict subclass by __getitem__, which returns the present value. Exceptions are class bodies, which read the dict itself on every
    version, and the functions in INSIDE: for those (copy) the dict holds a copy of all names from the beginning. Entries that differ from the
    beginning were put there by a `global` statement, which stores without __setitem__. An additional name (a local of running code) cannot be
    assigned: an assignment to it is kept here, and ends with the code."""

    def __init__(self, copy, own_print):
        self.own_print = own_print
        self.known, self.known_at, self.ended = (), None, False
        self.kept = set()
        self.first = {}
        if copy:
            self.first = {name: self.lend(name) for name in self.lent() if self.can_lend(name)}
            self.first.update(main_globals())
        self.first.update(__name__="__main__", __builtins__=builtins.__dict__)
        dict.__init__(self, self.first)

    def lent(self):
        """The additional names, refreshed after a moment: a loop in an eval sees the program move on. Only names: the values belong to the
        program, and are read one by one."""
        now = _probing.milliseconds()
        if not self.ended and (self.known_at is None or now - self.known_at > FRESH_MS):
            modules = [name for name in ("gc", "sys", "torch") if name != "torch" or name in sys.modules]
            self.known, self.known_at = frozenset(frame_local(None) + modules), now
        return self.known

    def lend(self, name):
        if name not in self.lent():
            raise KeyError(name)
        try:
            return frame_local(name)
        except KeyError:  # its function has returned, or it is a module
            pass
        return sys.modules["torch"] if name == "torch" else {"gc": gc_module, "sys": lambda: sys}[name]()

    def can_lend(self, name):
        try:
            self.lend(name)
        except KeyError:
            return False
        return True

    def is_own(self, name):
        return name in OWN_NAMES or name in self.kept or dict.get(self, name, self) is not self.first.get(name, self)

    def __getitem__(self, name):
        if self.is_own(name):
            return dict.__getitem__(self, name)
        main = main_globals()
        if name in main:
            return main[name]
        if name == "print" and self.own_print is not None and not self.ended:
            return self.own_print
        return self.lend(name)

    def __setitem__(self, name, value):
        lent = name not in main_globals() and self.can_lend(name)
        if not lent:
            main_globals()[name] = self.first[name] = value
        elif value is self.lend(name):  # import sys
            return
        else:
            self.kept.add(name)
        dict.__setitem__(self, name, value)

    def __delitem__(self, name):
        if not self.is_own(name):
            del main_globals()[name]
        self.kept.discard(name)
        self.first.pop(name, None)
        dict.pop(self, name, None)

    def __contains__(self, name):
        return self.is_own(name) or name in main_globals() or self.can_lend(name)

    def get(self, name, default=None):
        try:
            return self[name]
        except KeyError:
            return default

    def __iter__(self):
        own = [name for name in dict.keys(self) if self.is_own(name)]
        return iter(dict.fromkeys(own + list(main_globals()) + list(self.lent())))

    def keys(self):
        return list(self)

    def items(self):
        return [(name, self[name]) for name in self if name in self]

    def end(self):
        """Stores in __main__ what `global` statements did, and releases everything. Returns names that were kept here."""
        main, kept = main_globals(), sorted(self.kept)
        for name, value in list(dict.items(self)):
            if name not in self.kept and name not in OWN_NAMES and value is not self.first.get(name, self):
                main[name] = value
        for name in list(self.first):
            if not dict.__contains__(self, name):
                main.pop(name, None)
        self.first = {"__name__": "__main__", "__builtins__": builtins.__dict__}
        self.known, self.kept, self.ended = (), set(), True
        dict.clear(self)
        dict.update(self, self.first)
        return kept


def frame_local(name):
    """A local of the functions that the main thread executes; None: a list of their names. The agent checks its layout of frames against this
    function, whose first local is its argument."""
    return _probing.local(name, stdlib())
