"""The subset of JSON that the Debug Adapter Protocol needs: the json module would load a C library into the program."""

DEPTH_MAX = 100
ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", 0x2028: "\\u2028", 0x2029: "\\u2029"}
for _code in list(range(0x20)) + list(range(0xd800, 0xe000)):  # half of a surrogate pair is not valid UTF-8
    ESCAPES.setdefault(_code, "\\u%04x" % _code)
UNESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
WORDS = {"true": True, "false": False, "null": None}


def encode(value):
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    kind = type(value)
    if issubclass(kind, str):
        return '"%s"' % str.translate(value, ESCAPES)
    if issubclass(kind, int):
        return int.__repr__(value)
    if kind is dict:
        return "{%s}" % ",".join([encode(str(key)) + ":" + encode(item) for key, item in value.items()])
    if kind in (list, tuple):
        return "[%s]" % ",".join(map(encode, value))
    raise TypeError("%s is nothing for a client" % kind.__name__)


def decode(text):
    """Raises ValueError for invalid JSON."""
    try:
        value, at = parse_value(text, skip_space(text, 0), 0)
    except IndexError:
        raise ValueError("the text ends too early") from None
    if skip_space(text, at) != len(text):
        raise ValueError("there is more than one value")
    return value


def skip_space(text, at):
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def parse_value(text, at, depth):
    char = text[at]
    if depth > DEPTH_MAX:
        raise ValueError("it is too deep")
    if char == '"':
        return parse_text(text, at + 1)
    if char == "{" or char == "[":
        return parse_parts(text, at + 1, depth + 1, char == "{")
    for word, value in WORDS.items():
        if text.startswith(word, at):
            return value, at + len(word)
    end = at
    while end < len(text) and text[end] in "+-.0123456789eE":
        end += 1
    number = text[at:end]
    if len(number) > 100:
        raise ValueError("a number is too long")
    return (int(number) if number.lstrip("-").isdigit() else float(number)), end


def parse_parts(text, at, depth, named):
    found, end = {} if named else [], "}" if named else "]"
    at = skip_space(text, at)
    if text[at] == end:
        return found, at + 1
    while True:
        if named:
            if text[at] != '"':
                raise ValueError("a name is missing")
            name, at = parse_text(text, at + 1)
            at = skip_space(text, at)
            if text[at] != ":":
                raise ValueError("a colon is missing")
            at = skip_space(text, at + 1)
        value, at = parse_value(text, at, depth)
        if named:
            found[name] = value
        else:
            found.append(value)
        at = skip_space(text, at)
        if text[at] == end:
            return found, at + 1
        if text[at] != ",":
            raise ValueError("a comma is missing")
        at = skip_space(text, at + 1)


def parse_text(text, at):
    parts = []
    while True:
        end = text.index('"', at)
        escape = text.find("\\", at, end)
        if escape < 0:
            parts.append(text[at:end])
            return "".join(parts), end + 1
        parts.append(text[at:escape])
        letter = text[escape + 1]
        at = escape + 2
        if letter == "u":
            code = int(text[at:at + 4], 16)
            at += 4
            if 0xd800 <= code < 0xdc00 and text[at:at + 2] == "\\u":
                low = int(text[at + 2:at + 6], 16)
                if 0xdc00 <= low < 0xe000:
                    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00)
                    at += 6
            parts.append(chr(code))
        elif letter in UNESCAPES:
            parts.append(UNESCAPES[letter])
        else:
            raise ValueError("an escape is unknown")
