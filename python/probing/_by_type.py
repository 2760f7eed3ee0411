"""What classes, exceptions and threads of the program say of themselves, read without running code of the program.

An attribute that is read by name (kind.__module__, error.__traceback__, isinstance, ==, `in`) may be one that a class or a metaclass of the program
defines. Here the descriptors of Python's own types are called, which read the object's memory; classes are compared by identity.
"""
import sys

KIND, ERROR = type.__dict__, BaseException.__dict__
PLAIN = frozenset(id(kind) for kind in (int, float, complex, bool, type(None), type(Ellipsis), str, bytes))  # builtin classes are never freed
GROUP = getattr(sys.modules["builtins"], "BaseExceptionGroup", None)


def mro(kind):
    return KIND["__mro__"].__get__(kind)


def own_names(kind):
    """The names that the class itself defines, as a mapping."""
    return KIND["__dict__"].__get__(kind)


def exact_text(value):
    """A str, also of one that belongs to a subclass; None: it is no text."""
    return str.__str__(value) if issubclass(type(value), str) else None


def name_of(kind):
    return exact_text(KIND["__qualname__"].__get__(kind))


def module_of(kind):
    return exact_text(KIND["__module__"].__get__(kind)) or ""


def full_name(kind, *short):
    """With its module, except for those of builtins and of the modules named."""
    module = module_of(kind)
    return name_of(kind) if module in ("", "builtins") + short else "%s.%s" % (module, name_of(kind))


def is_one_of(kind, *kinds):
    """Whether it is one of these classes or a subclass. For builtin classes: not isinstance, which asks the object for its __class__."""
    return any(issubclass(kind, each) for each in kinds)


# --- exceptions

def of_error(error, name):
    """A field of every exception: __traceback__, __cause__, __context__, __suppress_context__, args."""
    return ERROR[name].__get__(error)


def trace_of(error):
    return of_error(error, "__traceback__")


def message_of(error, describe):
    """What str(error) would return, where that is Python's own; of a class with a __str__ of its own the arguments. describe(value): a text."""
    kind = type(error)
    owner = next(each for each in mro(kind) if "__str__" in own_names(each))
    if owner is OSError:
        number, why, file, other = (OSError.__dict__[name].__get__(error) for name in ("errno", "strerror", "filename", "filename2"))
        if number is not None and why is not None:
            files = " -> ".join(describe(each) for each in (file, other) if each is not None)
            return "[Errno %s] %s%s" % (words(number, describe), words(why, describe), ": " + files if files else "")
    elif owner is SyntaxError:
        message, file, line = (SyntaxError.__dict__[name].__get__(error) for name in ("msg", "filename", "lineno"))
        place = ", ".join(([exact_text(file).rpartition("/")[2]] if exact_text(file) else []) + (["line %d" % line] if type(line) is int else []))
        return words(message, describe) + (" (%s)" % place if place else "")
    elif owner is GROUP:
        n = len(parts_of(error))
        return "%s (%d sub-exception%s)" % (words(GROUP.__dict__["message"].__get__(error), describe), n, "" if n == 1 else "s")
    given = of_error(error, "args")
    text = "" if not given else words(given[0], describe, owner is KeyError) if len(given) == 1 else describe(given)
    if module_of(owner) != "builtins":
        text += " (its arguments: the __str__ of %s is not called)" % full_name(owner)
    return text


def words(value, describe, quoted=False):
    text = exact_text(value)
    return describe(value) if text is None or quoted else text


def parts_of(error):
    """The exceptions of a group."""
    found = GROUP.__dict__["exceptions"].__get__(error) if GROUP is not None and issubclass(type(error), GROUP) else ()
    return found if type(found) is tuple else ()


def before(error):
    """(the exception that led to this one, the line that Python prints between the two); (None, None)."""
    cause, context = of_error(error, "__cause__"), of_error(error, "__context__")
    if cause is not None:
        return cause, "\nThe above exception was the direct cause of the following exception:\n\n"
    if context is not None and not of_error(error, "__suppress_context__"):
        return context, "\nDuring handling of the above exception, another exception occurred:\n\n"
    return None, None


# --- threads

def fields_of(thread):
    """The dict of a threading.Thread; None: it is none."""
    base = getattr(sys.modules.get("threading"), "Thread", None)
    if type(base) is not type or not issubclass(type(thread), base):
        return None
    fields = base.__dict__["__dict__"].__get__(thread)
    return fields if issubclass(type(fields), dict) else None


def thread_name(thread):
    fields = fields_of(thread)
    return exact_text(dict.get(fields, "_name")) if fields is not None else None


def known_threads():
    """threading._active: by the threads' idents."""
    found = getattr(sys.modules.get("threading"), "_active", None)
    return found if type(found) is dict else {}


def native_id(ident):
    """The kernel's number of a thread of threading; None: not known (before 3.8)."""
    thread = known_threads().get(ident)
    fields = fields_of(thread)
    found = dict.get(fields, "_native_id") if fields is not None else None
    return found if type(found) is int else None


def name_by_ident(ident, main_ident):
    return thread_name(known_threads().get(ident)) or ("MainThread" if ident == main_ident else "?")
