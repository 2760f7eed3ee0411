"""Signals of the program while its main thread runs code of ours: held at a prompt, or running what a client typed.

Python runs its handlers in the main thread, in whatever code is there. What a handler of the program raises (KeyboardInterrupt, an exit at SIGTERM) belongs
to the program, and must neither end in our code nor in what was typed. So for that time each handler is called by a function of ours, which keeps
what it raises; raise_later gives that to the program where it went on, without frames of ours. Code that was typed is interrupted.
"""
import _signal

from _thread import get_ident
from posix import getpid

import _probing
from ._by_type import ERROR, trace_of


class Guard:
    """For the length of a block. In other threads than the main one it does nothing: no handler runs there."""

    def __init__(self, raised=None):
        self.error, self.when_raised, self.pid = None, raised or (lambda: None), getpid()
        self.typed = False  # code of a client runs: it is interrupted
        self.replaced = []

    def __enter__(self):
        if get_ident() == _probing.main_ident():
            for number in range(1, _signal.NSIG):
                handler = _signal.getsignal(number)
                if handler is not None and type(handler) is not int:  # else Python has no function for it
                    self.replace(number, handler)
        return self

    def replace(self, number, handler):
        def call(number, frame):
            if self.pid != getpid():  # in a child that the typed code forked
                return handler(number, frame)
            try:
                return handler(number, frame)
            except BaseException as error:
                self.keep(error)
            if self.typed:
                raise _probing.shared["interrupt"]
            return None

        before = _probing.signal_action(number)
        try:
            _signal.signal(number, call)
        except BaseException as error:  # of a handler that was due: it is called first
            self.keep(error)
            _signal.signal(number, call)
        _probing.set_signal_action(number, before)
        self.replaced.append((number, handler, call, before))

    def keep(self, error):
        if self.error is None:
            self.error = error
        self.when_raised()

    def __exit__(self, *_):
        for number, handler, call, before in self.replaced:
            try:
                if _signal.getsignal(number) is call:  # else the typed code has set another one
                    _signal.signal(number, handler)
                    _probing.set_signal_action(number, before)
            except BaseException as error:
                self.keep(error)
                _signal.signal(number, handler)
        del self.replaced[:]


def raise_later(error):
    """The main thread of the program raises it between two bytecodes, soon."""
    trace = trace_of(error)
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith("<probing>"):
        trace = trace.tb_next
    ERROR["__traceback__"].__set__(error, trace)
    _probing.raise_later(error, trace)
