"""`probing debug --debugpy`: debugpy itself in the process, if it can be imported. Its effects on the program are debugpy's."""
import sys

from ._program import import_threading


def serve(arguments, channel):
    """The arguments: HOST PORT FOLDER. Answers "ok HOST:PORT"."""
    host, port, folder = arguments.decode("utf-8", "surrogateescape").split(" ", 2)
    import_threading()
    if folder:
        sys.path.insert(0, folder)
    try:
        try:
            import debugpy
        except ImportError as error:
            where = "in %s" % folder if folder else "in this process's Python (%s)" % sys.executable
            channel.close("debugpy cannot be imported %s: %s; install it there, name its folder with --debugpy-path, or leave "
                          "--debugpy out" % (where, error), 1)
            return
    finally:
        if folder and folder in sys.path:
            sys.path.remove(folder)
    try:
        host, port = debugpy.listen((host, int(port)))
    except Exception as error:  # it listens already, the port is in use
        channel.close("debugpy: %s: %s" % (type(error).__name__, error), 1)
        return
    channel.write(("ok %s:%d\n" % (host, port)).encode())
