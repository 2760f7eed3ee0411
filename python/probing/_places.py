"""Places of the running program at which a function of ours is called: what break, watch and the debugger stand on.

    place = FilePlace("train.py", 12, hit)         # Refused: a sentence for a person. place.line is the next one that has code; 0: it is not loaded yet
    warning = add(place)                           # "" or a sentence for a person, such as that the main thread is in C code
    remove(place)
    place = Place([code], None, hit, left)         # every line of a function; left(frame, yields) when it returns or yields

hit(frame, line) is called in the program's thread, before the line runs. It may wait, for as long as the thread is to be held, and may assign locals of
its frame. What it raises does not reach the program, but for what a signal handler of the program raised meanwhile (is_of_program). Code that it runs does
not come to places, nor does any other in that thread. Places end with the agent, in a forked child, and at place.until (of _probing.milliseconds(); 0:
never). Before 3.12, where a trace function is needed, they are reached in the main thread and in threads that begin later, and slow both down: give them an
end. A thread that hit holds may be stepped: by sys.settrace in hit, on every version; a function that is set so calls
_hooks.beside(frame, event, argument) first, returns itself for frames of which that is true, and in the end gives its place to
_hooks.thread_function(): so places go on working beside steps.
"""
import sys

import _probing
from . import _by_type, _helpers, _hooks, _values
from ._hooks import FREE_THREADED, Refused

FUNCTION = type(lambda: 0)
CODE = type((lambda: 0).__code__)
WALK_MAX, NAMES_MAX = 200000, 10000
WRAPPERS = frozenset(["builtins.staticmethod", "builtins.classmethod", "builtins.property", "builtins.method", "functools.partial",
                      "functools.partialmethod", "functools.cached_property"])
COMPREHENSIONS = frozenset(["<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"])


class Place:
    path = None  # that of a place whose code may come later

    def __init__(self, codes, line, hit, left=None, until=0):
        self.codes, self.line, self.hit, self.left, self.until = list(codes), line, hit, left or (lambda frame, yields: None), until


class FilePlace(Place):
    """A line of a file, also one that is loaded later: then moved(place) is called. follows: also code of that line that is loaded even later (a
    module that is reloaded, a function that only an object of the program references); else the search ends with the first."""

    def __init__(self, path, wanted, hit, until=0, follows=False, moved=None):
        Place.__init__(self, (), 0, hit, None, until)
        self.path, self.wanted, self.follows, self.moved = path, wanted, follows or FREE_THREADED, moved
        codes = of_file(path)
        if codes and not self.take(codes) and not self.follows and not self.take(of_file(path, True)):
            raise Refused("%s has no code at line %d, or none that was loaded" % (path, wanted))

    def take(self, codes):
        """Adds those of the codes that have the line. Returns new ones."""
        if self.line == 0:
            line = nearest_line(codes, self.wanted)
            if line is None:
                return []
            self.line, self.path = line, self.path if self.path.startswith("/") else codes[0].co_filename
        found = [code for code in codes if self.line in lines_of(code) and not any(code is each for each in self.codes)]
        self.codes += found
        return found


class Search(_hooks.Listener):
    """Finds code that is loaded later."""

    def wanted(self):
        return ("finds",)

    def finds(self, code):
        """In a thread of the program, once for each code."""
        for place in list(searched()):
            if is_of_file(place.path, code.co_filename):
                was = place.line
                for each in place.take(with_inner(code)):
                    _hooks.hook(each, lambda hooked: put_place(hooked, place), begins=False)
                if was == 0 and place.line and place.moved is not None:
                    place.moved(place)
                if place.line and not place.follows:
                    search(place, False)
        return False

    def main_refuses(self):
        pass  # a place that is added reports it itself


def all_places():
    return _probing.shared.setdefault("places", [])


def searched():
    return _probing.shared.setdefault("searched places", [])


def search(place, wanted):
    """Begins or ends the search for code of a place."""
    if wanted == (place in searched()):
        return
    (searched().append if wanted else searched().remove)(place)
    if wanted:
        _hooks.listen(_probing.shared.setdefault("search", Search()))
    elif not searched() and "search" in _probing.shared:
        _hooks.unlisten(_probing.shared.pop("search"))


def add(place, waits=True):
    """waits false: before 3.12 the main thread is not waited for, and running functions are not reached (_hooks.update)."""
    warning = ""
    all_places().append(place)
    try:
        for code in list(place.codes):
            warning = _hooks.hook(code, lambda hooked: put_place(hooked, place), begins=waits) or warning
        if place.path is not None and (place.follows or not place.line):
            search(place, True)
            warning = (_hooks.begin_and_wait() if waits else "") or warning
    except BaseException:
        remove(place)
        raise
    if place.until:
        _hooks.at_end(end_places)
    return warning


def extend(place, code):
    """Replaces the function of a place of every line."""
    if not any(code is each for each in place.codes):
        place.codes.append(code)
        _hooks.hook(code, lambda hooked: put_place(hooked, place), begins=False)


def remove(place):
    if place.path is not None:
        search(place, False)
    for code in place.codes:
        _hooks.change_hook(code, lambda hooked: set_places(hooked, tuple(each for each in hooked.places if each is not place)))
    if place in all_places():
        all_places().remove(place)


def put_place(hooked, place):
    """Places of single lines come first: a breakpoint is reported before a step that ends there too."""
    set_places(hooked, tuple(sorted(hooked.places + (place,), key=lambda each: each.line is None)))


def set_places(hooked, places):
    hooked.places = places


def end_places(now_ms):
    for place in list(all_places()):
        if place.until and now_ms >= place.until:
            remove(place)
    return _hooks.earliest(all_places())


# --- finding lines

def lines_of(code):
    """The lines at which the code can be stopped."""
    if hasattr(code, "co_lines"):
        found = {line for _, _, line in code.co_lines() if line}
    else:
        found, line = set(), code.co_firstlineno
        for size, step in zip(code.co_lnotab[0::2], code.co_lnotab[1::2]):
            if size:
                found.add(line)
            line += step - 256 if step >= 0x80 else step
        found.add(line)
    if code.co_flags & _helpers.CO_OPTIMIZED and len(found) > 1 or code.co_name in COMPREHENSIONS:
        found.discard(code.co_firstlineno)  # the line of `def` belongs to the enclosing code; that of a comprehension would stop once more for each item
    return found


def nearest_line(codes, wanted):
    """The requested line, or the next one with code in the same innermost function; None."""
    for code in sorted(codes, key=lambda code: -code.co_firstlineno):
        lines = lines_of(code)
        if lines and min(code.co_firstlineno, min(lines)) <= wanted <= max(lines):
            return min(line for line in lines if line >= wanted)
    return None


def canonical(name):
    names = _probing.shared.setdefault("canonical", {})
    known = names.get(name)
    if known is None:
        os = sys.modules.get("os")
        known = name if name.startswith("<") or os is None else os.path.realpath(name)
        if len(names) >= NAMES_MAX:
            names.clear()
        names[name] = known
    return known


def is_of_file(path, name):
    """Whether code with that file name is from the file. A path may be a suffix; a name without a slash matches in any folder."""
    if type(name) is not str:
        return False
    if not path.startswith("/"):
        return name == path or name.endswith("/" + path)
    if name == path:
        return True
    if name.rpartition("/")[2] != path.rpartition("/")[2]:  # checking the file system for every module would take long
        return False
    return canonical(name) == canonical(path) or not name.startswith(("/", "<")) and path.endswith("/" + name.lstrip("./"))  # as it was given on a command line, maybe in another folder


def of_file(path, deep=False):
    """The loaded code objects of a file: from modules of that file, from threads, and deep: from all functions that exist."""
    def matches(name):
        return is_of_file(path, name)

    found = {}
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None) if type(module) is type(sys) else None
        if names is not None and (name == "__main__" or matches(names.get("__file__"))):
            walk(names, matches, found)
    for ident, _ in [] if FREE_THREADED else _helpers.all_threads():
        for frame in _helpers.frames_of(ident):
            take(frame.f_code, matches, found)
    if deep:  # a function that only an object of the program references
        from . import _objects

        for code in _objects.references(FUNCTION, FUNCTION.__dict__["__code__"].__get__):
            take(code, matches, found)
    files = sorted({code.co_filename for code in found.values()})
    if len(files) > 1 and not path.startswith("/") and path not in files:
        raise Refused("there are %s: name one by more of its path" % " and ".join(files[:5]))
    return [code for code in found.values() if path.startswith("/") or path not in files or code.co_filename == path]


def with_inner(code):
    found = {}
    take(code, lambda name: True, found)
    return list(found.values())


def take(code, matches, found):
    """A code object and those of the functions that it defines."""
    todo = [code]
    while todo:
        code = todo.pop()
        if id(code) not in found and matches(code.co_filename):
            found[id(code)] = code
            todo.extend(each for each in code.co_consts if type(each) is CODE)


def walk(names, matches, found):
    """Functions that can be reached from a module, also inside of decorators. Calls nothing of the program."""
    seen, todo = set(), list(names.values())
    while todo and len(seen) < WALK_MAX:
        each = todo.pop()
        kind = type(each)
        if kind is not FUNCTION and not issubclass(kind, type) and _values.class_name(kind) not in WRAPPERS or id(each) in seen:
            continue
        seen.add(id(each))
        if kind is FUNCTION:
            take(each.__code__, matches, found)
            todo.append(each.__dict__.get("__wrapped__"))
            todo.extend(cell_contents(each))
        elif issubclass(kind, type):
            if _by_type.module_of(each) == _by_type.exact_text(names.get("__name__")):
                todo.extend(type.__dict__["__dict__"].__get__(each).values())
        else:
            todo.extend(object.__getattribute__(each, name) for name in ("__func__", "fget", "fset", "fdel", "func") if hasattr(kind, name))


def cell_contents(function):
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # it is empty
            pass
    return found
