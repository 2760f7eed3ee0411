"""What an editor does, as a command of tables.py: debug_session.py PROBING -t PID. It attaches, has the debugger look
at every function that begins, asks for threads and a value, and leaves. No thread is stopped: what stands cannot tell
whether it was harmed."""
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration"))
from dap_kit import Client, Failed  # noqa: E402


def main(words):
    done = subprocess.run([*words, "debug"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          universal_newlines=True)
    if done.returncode:
        sys.stderr.write(done.stderr)
        return done.returncode
    host, _, port = done.stdout.strip().rpartition(":")
    try:
        with Client((host, int(port))) as client:
            client.stop_at("/no/such/file.py", 1)
            client.ask("setFunctionBreakpoints", breakpoints=[{"name": "no_such_function"}])
            client.ask("setExceptionBreakpoints", filters=["uncaught"])
            client.ask("threads")
            value = client.value("1 + 1")
            time.sleep(0.15)
            client.ask("disconnect")
        print(value)
        status = 0
    except (OSError, EOFError, Failed) as error:
        print("probing: debug: %s" % error, file=sys.stderr)
        status = 1
    subprocess.run([*words, "debug", "--stop"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   stdin=subprocess.DEVNULL)
    return status


sys.exit(main(sys.argv[1:]))
