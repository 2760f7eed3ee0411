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

    def __init__(self, raised=None, runner=None):
        """runner: the function of ours that runs the typed code, and handles what that raises."""
        self.error, self.when_raised, self.pid = None, raised or (lambda: None), getpid()
        self.typed = False  # code of a client runs: it is interrupted
        self.ours = [each.__code__.co_filename for each in (Guard.keep, runner) if each is not None]
        self.replaced = []

    def __enter__(self):
        if get_ident() == _probing.main_ident():
            for number in range(1, _signal.NSIG):
                try:
                    handler = _signal.getsignal(number)
                    if handler is not None and type(handler) is not int:  # else Python has no function for it
                        self.replace(number, handler)
                except BaseException as error:  # of a handler that was due, which is called first
                    self.keep(error)
        return self

    def replace(self, number, handler):
        def call(number, frame):
            if self.pid != getpid():  # in a child that the typed code forked
                return handler(number, frame)
            try:
                return handler(number, frame)
            except BaseException as error:
                self.keep(error)
            if self.typed and frame.f_code.co_filename not in self.ours:
                raise _probing.shared["interrupt"]
            return None

        before = _probing.signal_action(number)
        self.replaced.append((number, handler, call, before))
        try:
            _signal.signal(number, call)
        except BaseException as error:
            self.keep(error)
            _signal.signal(number, call)
        _probing.set_signal_action(number, before)

    def keep(self, error):
        if self.error is None:
            self.error = error
        self.when_raised()

    def __exit__(self, *_):
        self.typed = False
        try:
            self.give_all_back()
        except BaseException as error:  # of a handler that is given back already
            self.keep(error)
            self.give_all_back()

    def give_all_back(self):
        while self.replaced:
            self.give_back(*self.replaced[-1])
            self.replaced.pop()

    def give_back(self, number, handler, call, before):
        if _signal.getsignal(number) is call:  # else the typed code has set another one
            _signal.signal(number, handler)
        if _signal.getsignal(number) is handler:
            _probing.set_signal_action(number, before)


def raise_later(error):
    """The main thread of the program raises it between two bytecodes, soon."""
    trace = trace_of(error)
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith("<probing>"):
        trace = trace.tb_next
    ERROR["__traceback__"].__set__(error, trace)
    _probing.raise_later(error, trace)
