"""Code that a debugger's client runs in the program: in a stopped frame, or in __main__. Its output goes to the client."""
from _thread import get_ident

from . import _helpers, _pause, _prompt, _streams


class Console(_prompt.Session):
    """Code of the client: its names are those of a stopped frame, or of __main__."""

    def __init__(self, session, frame, ended):
        self.session, self.frame, self.ended = session, frame, ended
        _prompt.Session.__init__(self, session.channel)

    def make_names(self):
        return FrameNames(_helpers.make(self), self.frame, self.ended) if self.frame is not None else _prompt.Names(_helpers.make(self))

    def send(self, stream, text):
        self.session.output("stdout" if stream == _streams.OUT else "stderr", text)

    def flush_queue(self):
        pass

    def run_code(self, source, show):
        """show is called with the value of the last expression, None if there is none, while output still goes to the client."""
        given = _prompt.Input(self, source)
        _streams.sinks[get_ident()] = given
        value = None
        try:
            given.prepare(self.names)
            for code, shown in given.steps:
                value = self.evaluate(given, code)
                value = value if shown else None
            if value is not None and self.frame is None:
                self.names.keep("_", value)
            if value is not None:
                given.replace_streams()
            return self.call(show, value)
        finally:
            given.finish()

    def look(self, function):
        """Calls a function that runs __repr__ and the like."""
        given = _prompt.Input(self, "")
        _streams.sinks[get_ident()] = given
        try:
            given.replace_streams()
            return self.call(function)
        finally:
            given.finish()


class FrameNames(_pause.FrameNames):
    def fresh_locals(self):
        self.seen = _helpers.frame_locals(self.frame, self.ended)
        return self.seen
