"""What `probing launch` puts in front of PYTHONPATH: starts the agent, then makes itself unseen.

The folder goes out of sys.path and, unless children are to be probed too, out of PYTHONPATH; then the sitecustomize of the environment
runs, if it has one. The Python part is put at the end of sys.path, so that `import probing` works: an installed one comes first.
"""
import os
import sys


def _begin():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    sys.path.append(os.path.dirname(here))
    if not os.environ.get("PROBING", "").startswith("2"):
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.abspath(path) != here]
        if any(paths):
            os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        else:
            os.environ.pop("PYTHONPATH", None)
    from probing import _start

    _start.begin()


def _continue():
    """The sitecustomize that this one hides. What it raises is for site to tell, as without us."""
    from importlib.machinery import PathFinder

    found = PathFinder.find_spec("sitecustomize")
    if found is None or found.loader is None:
        return
    from importlib.util import module_from_spec

    module = sys.modules["sitecustomize"] = module_from_spec(found)
    found.loader.exec_module(module)


try:
    _begin()
except Exception:  # never the end of the program, nor a line of its output
    pass
_continue()
