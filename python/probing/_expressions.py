"""Conditions and messages of breakpoints and log points (break, debug), and the names that a frame sees."""
from . import _helpers
from ._hooks import Refused

MESSAGE_MAX = 2000


def compile_expression(text):
    try:
        return compile(text.strip(), "<break>", "eval", 0, True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        raise Refused("%r is no expression: %s" % (text.strip(), getattr(error, "msg", None) or error)) from None


def parse_message(text):
    """"loss={loss:.3f}" as [str or (code, conversion, format)]."""
    parts, at = [], 0
    while at < len(text):
        if text[at] in "{}" and text[at:at + 2] in ("{{", "}}"):
            parts.append(text[at])
            at += 2
        elif text[at] == "{":
            end = closing(text, at + 1)
            parts.append(parse_field(text[at + 1:end]))
            at = end + 1
        else:
            following = min([text.find(sign, at + 1) for sign in "{}" if text.find(sign, at + 1) > 0] or [len(text)])
            parts.append(text[at:following])
            at = following
    return parts


def outside(text, signs, at=0):
    """The index of the first of these characters outside of brackets and strings; -1."""
    depth, quote = 0, ""
    while at < len(text):
        char = text[at]
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif depth == 0 and char in signs and text[at:at + 2] not in ("!=", "=="):
            return at
        else:
            depth += (char in "([{") - (char in ")]}")
        at += 1
    return -1


def closing(text, at):
    found = outside(text, "}", at)
    if found < 0:
        raise Refused("a { of the message is not closed: {{ is the sign itself")
    return found


def parse_field(text):
    at = outside(text, "!:")
    expression, rest = (text, "") if at < 0 else (text[:at], text[at:])
    conversion = rest[1:2] if rest.startswith("!") else ""
    if conversion not in ("", "r", "s", "a"):
        raise Refused("a conversion is !r, !s or !a, not !%s" % conversion)
    rest = rest[2:] if conversion else rest
    return compile_expression(expression), {"r": repr, "s": str, "a": ascii}.get(conversion), rest[1:]


def render(parts, names):
    found = []
    for part in parts:
        if type(part) is tuple:
            value = eval(part[0], names)
            part = format(part[1](value) if part[1] else value, part[2])
        found.append(part)
    return "".join(found)[:MESSAGE_MAX]


class Names(dict):
    """The names visible in a frame, for an expression: a copy of the locals, globals on demand."""

    def __init__(self, frame):
        dict.__init__(self, _helpers.frame_locals(frame, True))
        self.others = frame.f_globals
        self["__builtins__"] = frame.f_globals.get("__builtins__") or frame.f_builtins

    def __missing__(self, name):
        return self.others[name]
