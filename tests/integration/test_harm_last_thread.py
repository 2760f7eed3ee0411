"""A process ends with its last thread, also where the main thread has ended before: our threads do not keep it alive,
and it ends as it does without us (its status, what is left in its buffers, its handlers of exit)."""
import os
import subprocess
import time

import jobs
import pytest
from interpreters import INTERPRETERS, interpreter_id, version_of
from jobs import probe

EVERY = pytest.mark.parametrize("interpreter", INTERPRETERS, ids=interpreter_id)
CLEAN = {name: value for name, value in os.environ.items() if name not in ("PROBING", "PROBE", "PYTHONPATH")}

# A thread forks; the child's only thread is the one that returns. What the child's status is, the parent says.
CHILD = """
import os, sys, threading
def work():
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        sys.stdin.readline()
        os.write(go[1], b"x")
        print("ended", os.waitpid(pid, 0)[1], flush=True)
        os._exit(0)
    os.read(go[0], 1)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
WAYS = {"inject": [["inject"]], "eval": [["eval", "1+1"]], "memory": [["config", "probing.memory.sampling=on"]]}


class Child:
    def __init__(self, interpreter, prefix=()):
        self.process = subprocess.Popen([*prefix, interpreter, "-W", "ignore", "-c", CHILD], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, universal_newlines=True, env=CLEAN)
        self.pid = int(self.process.stdout.readline())

    def end(self):
        """Lets its last thread return. What the parent says of its end, and how long that took."""
        begun = time.monotonic()
        try:
            said = self.process.communicate("go\n", timeout=10 * jobs.SLOW)[0]
        except subprocess.TimeoutExpired:
            os.kill(self.pid, 9)
            said = "it did not end: " + self.process.communicate()[0]
        return said.strip(), time.monotonic() - begun


@EVERY
@pytest.mark.parametrize("way", WAYS)
def test_child_of_a_thread_ends_with_its_thread(interpreter, way):
    child = Child(interpreter)
    for command in WAYS[way]:
        done = probe(child.pid, *command)
        assert done.returncode == 0, done.stderr
    assert child.end()[0] == "ended 0"


@pytest.mark.parametrize("interpreter", [path for path in INTERPRETERS if version_of(path) >= (3, 7)],
                         ids=interpreter_id)
def test_launched_child_of_a_thread_ends_with_its_thread(interpreter):
    child = Child(interpreter, [jobs.PROGRAM, "launch", "--children", "--"])
    jobs.wait_until(
        lambda: "probing" in open(
            f"/proc/{child.pid}/task/{sorted(os.listdir(f'/proc/{child.pid}/task'), key=int)[-1]}/comm").read(),
                    10, "the child's agent")
    assert child.end()[0] == "ended 0"


def test_code_of_a_user_that_runs_does_not_keep_it_alive():
    child = Child(INTERPRETERS[-1])
    asking = subprocess.Popen([jobs.PROGRAM, "-t", str(child.pid), "eval", "--timeout", "60",
                               "import time; time.sleep(50)"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    prompt = subprocess.Popen([jobs.PROGRAM, "-t", str(child.pid), "repl"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    names = ["ps", "-L", "-o", "comm=", "-p", str(child.pid)]  # one that ends meanwhile is left out
    jobs.wait_until(lambda: {"probing-eval",
                             "probing-channel"} <= set(subprocess.check_output(names, text=True).split()), 10, "both")
    said, seconds = child.end()
    assert said == "ended 0" and seconds < 5 * jobs.SLOW
    assert asking.wait(10) != 0
    prompt.communicate(timeout=10)


# A child whose last thread of Python's ends, while one of the C library's goes on.
WITHOUT_PYTHON = """
import ctypes, os, sys, threading
def work():
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        sys.stdin.readline()
        os.write(go[1], b"x")
        sys.stdin.readline()
        os.kill(pid, 9)
        print("ended", os.waitpid(pid, 0)[1], flush=True)
        os._exit(0)
    os.read(go[0], 1)
    libc = ctypes.CDLL(None)
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, ctypes.cast(libc.sleep, ctypes.c_void_p), ctypes.c_void_p(1000))
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@EVERY
def test_python_without_a_thread_is_not_entered_to_its_end(interpreter):
    """3.11 and 3.12 end such a process when a thread state is made there."""
    parent = subprocess.Popen([interpreter, "-W", "ignore", "-c", WITHOUT_PYTHON], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, universal_newlines=True, env=CLEAN)
    pid = int(parent.stdout.readline())
    assert probe(pid, "inject").returncode == 0
    parent.stdin.write("end Python's thread\n")
    parent.stdin.flush()
    jobs.wait_until(lambda: "State:\tZ" in open(f"/proc/{pid}/task/{pid}/status").read(), 10,
                    "the end of Python's thread")
    for _ in range(2):
        done = probe(pid, "eval", "1+1")
        assert done.stdout == "2\n" if done.returncode == 0 else "its Python is shutting down" in done.stderr
    assert probe(pid, "config", "probing.memory.sampling=on").returncode == 0
    assert parent.communicate("kill the child\n", timeout=10)[0] == "ended 9\n"


# argv: how the main thread ends, how the other one ends. What is printed lies in a buffer until the process ends.
IN_C = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static const char *how;
static void at_exit(void) { printf("exit\n"); }
static void *work(void *unused)
{
    char c;
    if (read(0, &c, 1) < 0)
        abort();
    printf("worked\n");
    if (strcmp(how, "pthread_exit") == 0)
        pthread_exit(NULL);
    return unused;
}
int main(int argc, char **argv)
{
    pthread_t thread;
    how = argv[argc - 1];
    atexit(at_exit);
    pthread_create(&thread, NULL, work, NULL);
    usleep(300000);
    if (strcmp(argv[1], "raw") == 0)
        syscall(SYS_exit, 7);
    pthread_exit(NULL);
}
"""


@pytest.fixture(scope="module", params=["gcc", "musl-gcc"])
def compiled(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("last") / "ends"
    path.with_suffix(".c").write_text(IN_C)
    done = subprocess.run([request.param, "-pthread", "-o", path, path.with_suffix(".c")], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0, done.stdout
    return path


@pytest.mark.parametrize("main", ["pthread_exit", "raw"])
@pytest.mark.parametrize("other", ["return", "pthread_exit"])
def test_program_ends_as_without_us(compiled, main, other):
    def run(probed):
        process = subprocess.Popen([compiled, main, other], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   universal_newlines=True)
        if probed:
            done = probe(process.pid, "inject")
            assert done.returncode == 0, done.stderr
        time.sleep(0.4)
        jobs.wait_until(lambda: "State:\tZ" in open(f"/proc/{process.pid}/task/{process.pid}/status").read(), 10,
                        "the end of the main thread")
        time.sleep(0.6 if probed else 0)  # the other one still runs: nothing ends
        assert process.poll() is None
        try:
            return process.communicate("x", timeout=10 * jobs.SLOW)[0], process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            return "it did not end", process.communicate()

    assert run(probed=True) == run(probed=False)
