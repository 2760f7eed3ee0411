"""The requests of the Debug Adapter Protocol that `probing debug` answers, one method each (_dap.py has the base)."""
import _probing
from . import _dap, _dap_engine, _helpers, _places
from ._dap import CAPABILITIES, FRAMES_MAX, LOOK_MS
from ._dap_engine import Breakpoint, Debugger, Refused
from ._program import lines_of_file
from ._by_type import full_name, message_of, name_of
from ._dap_values import PAGE_MAX, Holder, Scope, class_name, part_counts, render


BEGIN_TURNS = 50


class Frame:
    """The frame of a frameId."""

    def __init__(self, frame):
        self.frame = frame


class Requests(_dap.Session):
    # --- the session

    def do_initialize(self, request, arguments):
        self.first_line = 0 if arguments.get("linesStartAt1") is False else 1
        return CAPABILITIES

    def do_attach(self, request, arguments):
        from _operator import _compare_digest

        if not self.admitted:
            token = arguments.get("token")
            if not isinstance(token, str) or not _compare_digest(token.encode("utf-8", "replace"), self.token):
                self.over = True
                wait = _dap.allocate_lock()  # makes guessing slow
                wait.acquire()
                wait.acquire(True, 1)
                raise Refused('the token is missing or wrong: launch.json names it as "token"')
            self.admitted = True
        if self.debugger is not None:
            raise Refused("it is attached")
        for each in arguments.get("pathMappings") or ():
            if isinstance(each, dict) and isinstance(each.get("localRoot"), str) and isinstance(each.get("remoteRoot"), str):
                self.mappings.append((each["localRoot"], each["remoteRoot"]))
        debugger = Debugger(self)
        debugger.just_mine = arguments.get("justMyCode") is not False
        self.begin(debugger)
        self.debugger = debugger
        self.thread_number(_probing.main_ident())

    def begin(self, debugger):
        """A client that has just disconnected may still be in the list."""
        wait = _dap.allocate_lock()
        wait.acquire()
        for _ in range(BEGIN_TURNS):
            if _dap_engine.of_here() is None:
                break
            wait.acquire(True, 0.02)
        debugger.begin()

    def do_launch(self, request, arguments):
        raise Refused("the program runs already: attach")

    def do_configurationDone(self, request, arguments):
        self.debugger.ready = True

    def do_disconnect(self, request, arguments):
        """The program continues at full speed once the client has its answer (end of _dap.py). It is never terminated from here."""

    def do_cancel(self, request, arguments):
        wanted, running = arguments.get("requestId"), self.running
        if running is not None and running.request.get("seq") == wanted:
            self.interrupt(running)
        with self.lock:
            cancelled = [task for task in self.queue if task.request.get("seq") == wanted]
            self.queue = [task for task in self.queue if task.request.get("seq") != wanted]
        for task in cancelled:
            self.answer(task.request, None, "cancelled")

    # --- breakpoints

    def make_breakpoint(self, wanted, each):
        self.place_numbers += 1
        try:
            return Breakpoint(self.place_numbers, wanted, each.get("condition"), each.get("hitCondition"), each.get("logMessage")), None
        except Refused as refused:
            return Breakpoint(self.place_numbers, wanted), str(refused)

    def do_setBreakpoints(self, request, arguments):
        source = arguments.get("source") or {}
        path = source.get("path")
        if source.get("sourceReference"):
            path = next((name for name, number in self.sources.items() if number == source["sourceReference"]), path)
        if not isinstance(path, str):
            raise Refused("the source has no path")
        path = self.to_remote(path)
        made = []
        for each in arguments.get("breakpoints") or ():
            line = int(each.get("line", 0)) + 1 - self.first_line
            made.append(self.make_breakpoint(line, each))
        self.debugger.set_breakpoints(path, [breakpoint for breakpoint, why in made if why is None])
        bodies = []
        for breakpoint, why in made:
            bodies.append(self.breakpoint_body(breakpoint, _places.canonical(path)))
            if why is not None:
                bodies[-1].update(verified=False, message=why, reason="failed")
        return {"breakpoints": bodies}

    def do_setFunctionBreakpoints(self, request, arguments):
        functions, bodies = {}, []
        for each in arguments.get("breakpoints") or ():
            place, why = self.make_breakpoint(0, each)
            bodies.append({"id": place.number, "verified": why is None})
            if why is not None:
                bodies[-1]["message"] = why
            else:
                functions[str(each.get("name", "")).rpartition(":")[2].strip()] = place
        self.debugger.set_functions(functions)
        return {"breakpoints": bodies}

    def do_setExceptionBreakpoints(self, request, arguments):
        filters = set(arguments.get("filters") or ())
        filters.update(each.get("filterId") for each in arguments.get("filterOptions") or () if isinstance(each, dict))
        self.debugger.set_exceptions("raised" in filters, "uncaught" in filters)
        return {"breakpoints": [{"verified": True} for _ in filters]}

    def do_breakpointLocations(self, request, arguments):
        path = (arguments.get("source") or {}).get("path")
        first = int(arguments.get("line", 0)) + 1 - self.first_line
        last = int(arguments.get("endLine", arguments.get("line", 0))) + 1 - self.first_line
        lines = set()
        for code in _places.of_file(_places.canonical(self.to_remote(str(path)))):
            lines.update(line for line in _places.lines_of(code) if first <= line <= last)
        return {"breakpoints": [{"line": line - 1 + self.first_line} for line in sorted(lines)]}

    # --- going on

    def do_continue(self, request, arguments):
        self.go_on(arguments, None)
        return {"allThreadsContinued": False}

    def do_next(self, request, arguments):
        self.go_on(arguments, "over")

    def do_stepIn(self, request, arguments):
        self.go_on(arguments, "in")

    def do_stepOut(self, request, arguments):
        self.go_on(arguments, "out")

    def go_on(self, arguments, how):
        stop = self.stop_of(arguments)
        if how is not None and not stop.can_step and stop.error is None:
            raise Refused("the thread has a trace function of its own (a debugger, coverage): steps would take its place")
        if self.running is not None and self.running.stop is stop:
            self.interrupt(self.running)
        self.debugger.go_on(stop.ident, how)

    def do_pause(self, request, arguments):
        self.debugger.pause(self.ident_of(arguments))

    # --- looking

    def do_threads(self, request, arguments):
        threads = []
        for number, (ident, frame) in enumerate(_helpers.live_threads()):
            if ident in self.own or (frame is not None and frame.f_code.co_filename.startswith("<probing>") and ident not in self.debugger.stops):
                continue
            name = _helpers.Thread(number, ident, frame).name
            threads.append({"id": self.thread_number(ident), "name": name if name != "?" else "thread %d" % ident})
        for ident in list(self.debugger.stops):
            if all(each["id"] != self.thread_number(ident) for each in threads):
                threads.append({"id": self.thread_number(ident), "name": _helpers.Thread(0, ident, None).name})
        return {"threads": threads}

    def do_stackTrace(self, request, arguments):
        stop = self.stop_of(arguments)
        start = max(0, int(arguments.get("startFrame") or 0))
        levels = int(arguments.get("levels") or 0) or FRAMES_MAX
        stack, frames = list(stop.stack), []
        lines = trace_lines(stop)
        for frame in stack[start:start + levels]:
            code = frame.f_code
            body = {"id": self.number_for(stop, Frame(frame)), "name": getattr(code, "co_qualname", code.co_name), "source": self.source_of(code),
                    "line": (lines.get(id(frame)) or frame.f_lineno or 1) - 1 + self.first_line, "column": self.first_line}
            if not self.debugger.is_mine(code):
                body["presentationHint"] = "subtle"
                body["source"]["presentationHint"] = "deemphasize"
            frames.append(body)
        return {"stackFrames": frames, "totalFrames": len(stack)}

    def do_scopes(self, request, arguments):
        stop, found = self.thing_of(arguments.get("frameId"), Frame)
        console = self.console_of
        is_function = bool(found.frame.f_code.co_flags & _helpers.CO_OPTIMIZED)

        def make():
            names = console(stop, found.frame).names
            scopes = [("Locals", "locals", False)] if is_function else []
            return {"scopes": [{"name": name, "presentationHint": hint, "expensive": is_globals and is_function,
                                "variablesReference": self.number_for(stop, Holder(None, names=Scope(names, is_globals)))}
                               for name, hint, is_globals in scopes + [("Globals", "globals", True)]]}

        return self.later(request, make, stop, LOOK_MS)

    def value_body(self, stop, value, expression="", full=False):
        try:
            text = render(value, full=full)
        except Exception as error:
            text = "<%s whose repr raises %s>" % (type(value).__name__, type(error).__name__)
        named, indexed = part_counts(value)
        body = {"value": text, "type": class_name(type(value)), "variablesReference": 0}
        if named or indexed:
            body["variablesReference"] = self.number_for(stop, Holder(value, expression))
            body.update(namedVariables=named, indexedVariables=indexed)
        if expression:
            body["evaluateName"] = expression
        return body

    def do_variables(self, request, arguments):
        stop, holder = self.thing_of(arguments.get("variablesReference"), Holder)
        what, start = arguments.get("filter"), max(0, int(arguments.get("start") or 0))
        count = min(int(arguments.get("count") or 0) or PAGE_MAX, PAGE_MAX)

        def look():
            return {"variables": [dict(self.value_body(stop, value, expression), name=name)
                                  for name, value, expression in holder.parts(what, start, count)]}

        return self.later(request, lambda: self.any_console(stop).look(look), stop, LOOK_MS)

    def any_console(self, stop):
        return self.console_of(stop, stop.stack[0] if stop is not None else None)

    def place_of(self, arguments):
        """The stop and the frame of an expression; (None, None): none, it is evaluated in __main__."""
        if arguments.get("frameId") is None:
            return None, None
        stop, found = self.thing_of(arguments["frameId"], Frame)
        return stop, found.frame

    def do_evaluate(self, request, arguments):
        stop, frame = self.place_of(arguments)
        source, context = str(arguments.get("expression", "")), arguments.get("context")

        def show(value):
            body = self.value_body(stop, value, source if context in ("watch", "hover", "variables") else "", context == "clipboard")
            body["result"] = body.pop("value") if value is not None or context != "repl" else ""
            return body

        return self.later(request, lambda: self.console_of(stop, frame).run_code(source, show), stop,
                          LOOK_MS if context in ("watch", "hover", "variables") else None)

    def do_setVariable(self, request, arguments):
        stop, holder = self.thing_of(arguments.get("variablesReference"), Holder)
        name, source = str(arguments.get("name", "")), str(arguments.get("value", ""))
        names = holder.names.frame_names if holder.names is not None else None
        frame = names.frame if names is not None else stop.stack[0] if stop is not None else None

        def show(value):
            holder.assign(name, value)
            return self.value_body(stop, value)

        return self.later(request, lambda: self.console_of(stop, frame).run_code("(%s\n)" % source, show), stop)

    def do_setExpression(self, request, arguments):
        stop, frame = self.place_of(arguments)
        expression, source = str(arguments.get("expression", "")), str(arguments.get("value", ""))
        text = "%s = (%s\n)\n(%s)" % (expression, source, expression)
        return self.later(request, lambda: self.console_of(stop, frame).run_code(text, lambda value: self.value_body(stop, value, expression)), stop)

    def do_completions(self, request, arguments):
        stop, frame = self.place_of(arguments)
        lines = str(arguments.get("text", "")).split("\n")
        line, column = int(arguments.get("line") or self.first_line) - self.first_line, int(arguments.get("column") or 1) - self.first_line
        text = "\n".join(lines[:line] + [lines[line][:column]]) if 0 <= line < len(lines) else lines[-1]

        def complete():
            at, words = self.console_of(stop, frame).answer_completion(text)
            last = text.rfind("\n") + 1
            return {"targets": [{"label": word, "start": at - last, "length": len(text) - at} for word in words[:500]]}

        return self.later(request, complete, stop, LOOK_MS)

    def do_exceptionInfo(self, request, arguments):
        stop = self.stop_of(arguments)
        if stop.error is None:
            raise Refused("the thread did not stop at an exception")

        def describe():
            from ._catch import Sources, describe_value, format_error

            error, mode, _ = stop.error
            name, text = full_name(type(error), "__main__"), message_of(error, describe_value)
            return {"exceptionId": name, "description": text, "breakMode": mode,
                    "details": {"message": text, "typeName": name_of(type(error)), "fullTypeName": name,
                                "stackTrace": "".join(format_error(error, Sources(False), {}))}}

        return self.later(request, lambda: self.any_console(stop).look(describe), stop, LOOK_MS)

    def do_source(self, request, arguments):
        wanted = (arguments.get("source") or {}).get("sourceReference") or arguments.get("sourceReference")
        for name, number in list(self.sources.items()):
            if number == wanted:
                text = "".join(lines_of_file(name))
                if text:
                    return {"content": text, "mimeType": "text/x-python"}
        raise Refused("the program has no source of it")


def trace_lines(stop):
    """For an uncaught exception: the lines that it passed, by frame."""
    lines, trace = {}, stop.error[2] if stop.error is not None else None
    while trace is not None:
        lines[id(trace.tb_frame)] = trace.tb_lineno
        trace = trace.tb_next
    return lines
