"""Places of the running program at which a function of ours is called: what break, watch and the debugger stand on.

    codes, line = find("train.py", 12)             # Refused: a sentence for a person. The line is the next one that has code
    place = Place(codes, line, hit)                # hit(frame, line) is called in the program's thread, before the line runs
    said = add(place)                              # "" or a sentence for a person, such as that the main thread is in C code
    remove(place)
    place = Place([code], None, hit, left)         # every line of a function; left(frame, None) when it returns or yields

hit may wait, for as long as the thread is to be held, and may assign locals of its frame. What it raises does not reach the program, but for
what a signal handler of the program raised meanwhile (is_of_program). Code that it runs does not come to places, nor does any other in that thread.
Places end with the agent, in a forked child, and at place.until (of _probing.milliseconds(); 0: never). Before 3.12, where a trace function is needed,
they are reached in the main thread and in threads that begin later, and slow both down: give them an end. A thread that hit holds may be stepped: by
sys.settrace in hit, on every version; a function that is set so calls _hooks.beside(frame, event, argument) first, returns itself for frames of which that
is true, and in the end gives its place to _hooks.thread_function(): so places go on working beside steps.
"""
import sys

import _probing
from . import _helpers, _hooks
from ._hooks import Refused

FUNCTION = type(lambda: 0)
CODE = type((lambda: 0).__code__)
WALK_MAX = 200000
WRAPPERS = ("staticmethod", "classmethod", "property", "partial", "partialmethod", "cached_property", "method")


class Place:
    def __init__(self, codes, line, hit, left=None, until=0):
        self.codes, self.line, self.hit, self.left, self.until = list(codes), line, hit, left or (lambda frame, line: None), until


def all_places():
    return _probing.shared.setdefault("places", [])


def add(place):
    said = ""
    all_places().append(place)
    try:
        for code in place.codes:
            said = _hooks.hook(code, lambda hooked: set_places(hooked, hooked.places + (place,))) or said
    except BaseException:
        remove(place)
        raise
    _hooks.at_end(end_places)
    return said


def remove(place):
    for code in place.codes:
        _hooks.change_hook(code, lambda hooked: set_places(hooked, tuple(each for each in hooked.places if each is not place)))
    if place in all_places():
        all_places().remove(place)


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
    if sys.version_info >= (3, 11) and code.co_name != "<module>" and len(found) > 1:
        found.discard(code.co_firstlineno)  # it has an instruction there that is no line of its own
    return found


def find(path, line):
    """The code objects that have a line, and the line: the one that was asked for, or the next that has code in the same function."""
    codes = [code for code in of_file(path, line)]
    found = [code for code in codes if line in lines_of(code)]
    if not found:
        around = [code for code in codes if code.co_firstlineno <= line <= max(lines_of(code) or {0})]
        inner = max(around, key=lambda code: code.co_firstlineno) if around else None
        if inner is None:
            raise Refused("%s has no code at line %d, or none that was loaded" % (path, line))
        line = min(each for each in lines_of(inner) if each >= line)
        found = [code for code in codes if line in lines_of(code)]
    return found, line


def of_file(path, line):
    """The code objects of a file. A path may be the end of one; a name without a slash is that of any folder."""
    def matches(name):
        return type(name) is str and (name == path or name.endswith("/" + path))

    found = {}
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None) if type(module) is type(sys) else None
        if names is not None and matches(names.get("__file__")):
            walk(names, matches, found)
    for _, frame in _helpers.all_threads():
        while frame is not None:
            take(frame.f_code, matches, found)
            frame = frame.f_back
    if not any(line in lines_of(code) for code in found.values()):  # a function that nothing but an object of the program knows
        import gc

        for each in gc.get_objects():
            if type(each) is FUNCTION:
                take(each.__code__, matches, found)
    files = sorted({code.co_filename for code in found.values()})
    if not files:
        raise Refused("the process has loaded no file %s" % path)
    if len(files) > 1 and path not in files:
        raise Refused("there are %s: name one by more of its path" % " and ".join(files[:5]))
    return [code for code in found.values() if code.co_filename == (path if path in files else files[0])]


def take(code, matches, found):
    """A code object and those of the functions that it defines."""
    todo = [code]
    while todo:
        code = todo.pop()
        if id(code) not in found and matches(code.co_filename):
            found[id(code)] = code
            todo.extend(each for each in code.co_consts if type(each) is CODE)


def walk(names, matches, found):
    """Functions that can be reached from a module, also those inside of decorators. Calls nothing of the program."""
    seen, todo = set(), list(names.values())
    while todo and len(seen) < WALK_MAX:
        each = todo.pop()
        kind = type(each)
        if kind is not FUNCTION and not issubclass(kind, type) and kind.__name__ not in WRAPPERS or id(each) in seen:
            continue
        seen.add(id(each))
        if kind is FUNCTION:
            take(each.__code__, matches, found)
            todo.append(each.__dict__.get("__wrapped__"))
            todo.extend(cell_contents(each))
        elif issubclass(kind, type):
            if type.__getattribute__(each, "__module__") == names.get("__name__"):
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
