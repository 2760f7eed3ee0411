"""The traceback of code that was run from outside, as a text for its client, and its source lines."""
import sys

from ._program import import_for_us, with_own_files


def format_error(request, kind, error, trace):
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    if request.only_looks and "traceback" not in sys.modules and error.__cause__ is error.__context__ is None:
        return _format_plainly(request, kind, error, trace)
    import_for_us("linecache", "tokenize", "traceback", *(["ast"] if sys.version_info >= (3, 11) else []))  # as traceback will
    import traceback

    remember_lines(request)
    with_own_files(lambda: _read_lines(error, trace, set()))
    summary = traceback.TracebackException(kind, error, trace)
    summary.stack[:] = [frame for frame in summary.stack if not _is_ours(frame.filename)]  # our print, which called a __str__
    return "".join(summary.format())


def _read_lines(error, trace, seen):
    """Makes linecache read the lines that the traceback will show."""
    from linecache import checkcache, getlines  # as traceback does it

    while error is not None and id(error) not in seen:
        seen.add(id(error))
        while trace is not None:
            checkcache(trace.tb_frame.f_code.co_filename)
            getlines(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
        error = error.__cause__ or error.__context__
        trace = getattr(error, "__traceback__", None)


def _is_ours(filename):
    return filename.startswith("<probing>/")


def _format_plainly(request, kind, error, trace):
    """Like the traceback module, without importing it. Source lines of the request's own code only."""
    lines, source = ["Traceback (most recent call last):\n"], request.source.splitlines()
    while trace is not None:
        code, number = trace.tb_frame.f_code, trace.tb_lineno
        lines.append('  File "%s", line %d, in %s\n' % (code.co_filename, number, code.co_name))
        if code.co_filename == request.filename and 0 < number <= len(source):
            lines.append("    %s\n" % source[number - 1].strip())
        trace = trace.tb_next
    module, text = kind.__module__, str(error)
    name = kind.__qualname__ if module in ("builtins", "__main__") else module + "." + kind.__qualname__
    return "".join(lines) + (name + ": " + text if text else name) + "\n"


def remember_lines(request):
    """For tracebacks, also those that the code prints itself."""
    if request.lines is None:
        import_for_us("linecache")
        import linecache

        request.lines = (request.source.rstrip("\n") + "\n").splitlines(True)  # traceback counts on the line's end to place its marks
        linecache.cache[request.filename] = (len(request.source), None, request.lines, request.filename)


def forget_lines(request):
    cache = sys.modules["linecache"].cache if request.lines is not None and "linecache" in sys.modules else {}
    entry = cache.get(request.filename)
    if entry is not None and entry[2] is request.lines:
        cache.pop(request.filename, None)
