"""Settings of this process from its own code: probing.config.get("probing.sample_rate"), set(key, value), keys(). The same as `probing -t PID config`.

A value is text. What is set holds until the process ends; the names are those of docs/settings.md.
"""
import os

from ._agent import recording


def _ask(*words):
    from . import _query

    recording(True)
    status, output, errors = _query._run([_query._program(), "-t", str(os.getpid()), "config"] + list(words), b"")
    with output:
        text = output.read().decode(errors="replace")
    if status != 0:
        raise KeyError(errors.strip().replace("probing: config: ", "", 1))
    return text


def _all():
    from . import _query

    recording(True)
    return {row["name"]: row["value"] for row in _query.query("SELECT name, value FROM probing.config")}


def get(key):
    """The value of a setting as text; None: there is no such setting."""
    return _all().get(key)


get_str = get


def set(key, value):
    """Raises KeyError, with the reason, for an unknown setting or a value that is not allowed."""
    _ask("%s=%s" % (key, str(value).lower() if isinstance(value, bool) else value))


def contains_key(key):
    return key in _all()


def keys():
    return list(_all())


def len():
    found = _all()
    return found.__len__()


def is_empty():
    return not _all()
