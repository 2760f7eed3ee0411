"""Finds the operation that a line of the program applies to a variable, from its source: for `watch`, when a value changes in place.

torch counts changes of a tensor (_version), but does not say which operation made them; a subclass or a mode that intercepts operations would
change what the program computes. So the name is taken from the text of the line: a method (add_), an operator (+=, []=), or else the calls in the
line (step()), one of which did it. Read once, in a thread of ours, when a watch begins: nothing of this runs in the program's threads.
"""
from . import _places
from ._program import lines_of_file

LINES_MAX, MORE_MAX, NAMES_MAX = 2000, 20, 3
SIGNS = {"Add": "+=", "Sub": "-=", "Mult": "*=", "Div": "/=", "FloorDiv": "//=", "Mod": "%=", "Pow": "**=", "MatMult": "@=", "BitAnd": "&=", "BitOr": "|=",
         "BitXor": "^=", "LShift": "<<=", "RShift": ">>="}


def operations_of(code, expression):
    """{line: text} of the lines of the function that call something or assign to a part; {}: no source."""
    tree, before = parse(code)
    found, todo = {}, [tree] if tree is not None else []
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo.extend(node)
        elif hasattr(node, "_fields"):
            for on, text in operations(node):
                for line in range(node.lineno, (getattr(node, "end_lineno", None) or node.lineno) + 1):
                    found.setdefault(line + before, set()).add((on == expression, text))
            todo.extend(getattr(node, field, None) for field in node._fields)
    return {line: describe(each, code) for line, each in found.items()}


def parse(code):
    """The tree of the function's source, and the number of lines before it in the file."""
    first, last = code.co_firstlineno, max(_places.lines_of(code) or [0])
    lines = lines_of_file(code.co_filename)[first - 1:min(last, first + LINES_MAX) + MORE_MAX]
    if not lines:
        return None, 0
    inside = lines[0][:1] in " \t"
    for end in range(last - first + 1, len(lines) + 1):  # the last line with code need not be the last of its statement
        try:
            return compile(("if 1:\n" if inside else "") + "".join(lines[:end]), "<watch>", "exec", 0x400, True), first - 1 - inside  # PyCF_ONLY_AST
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            pass
    return None, 0


def operations(node):
    """[(its object, its name)] of one node."""
    kind = type(node).__name__
    if kind == "AugAssign":
        on = node.target.value if type(node.target).__name__ == "Subscript" else node.target
        return [(spelled(on), SIGNS.get(type(node.op).__name__, "?="))]
    if kind == "Assign":
        return [(spelled(each.value), "[]=") for each in node.targets if type(each).__name__ == "Subscript"]
    if kind == "Call":
        function = type(node.func).__name__
        name = node.func.attr if function == "Attribute" else node.func.id if function == "Name" else None
        if name is None:
            return []
        own = name.endswith("_") and not name.endswith("__")
        found = [(spelled(node.func.value) if function == "Attribute" else None, name if own else name + "()")]
        return found + [(spelled(each.value), name + "(out=)") for each in node.keywords if each.arg == "out"]
    return []


def spelled(node):
    """A path as a person writes it; None: something else."""
    kind = type(node).__name__
    if kind == "Name":
        return node.id
    inner = spelled(node.value) if kind == "Attribute" else None
    return "%s.%s" % (inner, node.attr) if inner is not None else None


def describe(found, code):
    """The operations on the variable itself; else all, since it may have another name there."""
    names = [text for on, text in found if on] or [text for _, text in found]
    names = sorted(name for name in set(names) if is_in(name, code))
    return ", ".join(names[:NAMES_MAX] + (["..."] if len(names) > NAMES_MAX else [])) or None


def is_in(name, code):
    """A file may have changed since it was loaded: names that the code does not have are dropped."""
    word = name.partition("(")[0]
    return not word.isidentifier() or word in code.co_names or word in code.co_varnames or word in code.co_freevars
