"""Spans by the module path that other tools of this name use: probing.tracing.span and so on. Ours are the same functions of `probing`.

SPANS_SQL gives the spans that have ended, a row each with their times.
"""
from .original import attach_training_phases, owns_training_phases, phase
from .spans import event, record_span, span, step

FORWARD, BACKWARD, OPTIMIZER, IDLE = "forward", "backward", "optimizer", "idle"
SPANS_SQL = ("SELECT span_id, trace_id, parent_id, name, phase, thread_id, location, attributes, timestamp, ended, duration_ms,"
             " (epoch_ns(ended) - epoch_ns(timestamp)) AS duration_ns, step AS local_step, step AS global_step"
             " FROM python.trace_event WHERE record_type = 'span' AND ended IS NOT NULL")

__all__ = ["BACKWARD", "FORWARD", "IDLE", "OPTIMIZER", "SPANS_SQL", "attach_training_phases", "event", "owns_training_phases", "phase", "record_span", "span",
           "step"]
