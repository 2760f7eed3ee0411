"""The Python programs of the harm suite: bodies.py NAME [WORD...]. Each is a loop of rounds, see kit.py."""
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import called
import kit

BODIES = {each.__name__: each for each in (called.gives_rows, called.traced_by_others, called.odd_arguments,
                                           called.fails)}


def body(function):
    BODIES[function.__name__] = function
    return function


@body
def prints():
    """Says something all the time, as a training loop does."""
    while kit.going():
        for _ in range(20):
            kit.say()
        kit.work()


@body
def quiet():
    """Computes in one thread."""
    while kit.going():
        kit.work()


@body
def waits():
    """Python's own timeouts, one after the other, in the main thread and in one more."""
    def one_of_each():
        left, right = socket.socketpair()
        left.settimeout(0.02)
        epoll, poll = select.epoll(), select.poll()
        with kit.timed("time.sleep", 0.02):
            time.sleep(0.02)
        with kit.timed("select", 0.02):
            select.select([right], [], [], 0.02)
        with kit.timed("epoll", 0.02):
            epoll.poll(0.02)
        with kit.timed("poll", 0.02):
            poll.poll(20)
        with kit.timed("recv", 0.02):
            try:
                left.recv(1)
                kit.complain("recv got something")
            except socket.timeout:
                pass
        with kit.timed("sigtimedwait", 0.02):
            if signal.sigtimedwait([signal.SIGRTMAX], 0.02) is not None:
                kit.complain("sigtimedwait got a signal")
        with kit.timed("Event.wait", 0.02):
            threading.Event().wait(0.02)
        for thing in (left, right, epoll):
            thing.close()

    while kit.going():
        thread = threading.Thread(target=one_of_each)
        thread.start()
        one_of_each()
        thread.join()
        kit.last = None  # the waits are judged by themselves


@body
def forks(library=None):
    """Children that look at what they got: the program's descriptors and nothing else, and locks that work."""
    if library:
        import ctypes
    lock = threading.Lock()
    own = [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
    usual = None
    while kit.going():
        child = os.fork()
        if child == 0:
            with lock:
                found = kit.descriptors()
            if library:
                ctypes.CDLL(library)
            missing = [fd for fd in own if found.get(fd) != "/dev/null"]
            extra = [link for fd, link in found.items() if usual is not None and fd not in usual and "/fd" not in link
                     and not kit.is_import(link)]
            if extra:
                with open(kit.REPORT + ".extra", "w") as file:
                    file.write(" ".join(extra))
            os._exit(1 if missing else 2 if extra else 3 if kit.work() != kit.sum_of_work[1] else 0)
        kit.work()
        status = os.waitpid(child, 0)[1]
        if status:
            said = {256: "lost descriptors of the program", 512: "has descriptors that are not the program's",
                    768: "computed another result"}
            kit.complain("a child of fork %s" % said.get(status, "ended with %d" % status))
            if status == 512:
                with open(kit.REPORT + ".extra") as file:
                    kit.complain("they are " + file.read())
        if usual is None:
            usual = set(kit.descriptors())


@body
def threads():
    """Threads that come and go."""
    while kit.going():
        started = [threading.Thread(target=kit.work) for _ in range(8)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        kit.say()


@body
def records():
    """Records rows all the time, from two threads, with or without an agent."""
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../python"))
    import probing

    table = probing.table("harm", {"i": int, "text": str, "x": float})

    def tell():
        for i in range(100):
            with probing.span("round", i=i):
                table.append(i, "text", x=0.5)
            probing.event("told")
        probing.log(loss=0.5)

    while kit.going():
        other = threading.Thread(target=tell)
        other.start()
        tell()
        other.join()
        kit.work()


@body
def traces_memory():
    """tracemalloc comes and goes: the raw allocator is the program's."""
    import tracemalloc
    while kit.going():
        tracemalloc.start(5)
        kept = [object() for _ in range(2000)]
        kit.work()
        tracemalloc.stop()
        del kept
        kit.work()


@body
def span_chains():
    """Spans around generators that stand in spans of their own, and around callbacks that schedule the next."""
    import asyncio
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../python"))
    import probing

    @probing.span("numbers")
    def numbers():
        for i in range(5):
            with probing.span("inner", i=i):
                yield i

    def tick(loop, left):
        with probing.span("tick"):
            if left:
                loop.call_soon(tick, loop, left - 1)
            else:
                loop.stop()

    while kit.going():
        half = numbers()
        next(half)
        if [a + b for a, b in zip(numbers(), numbers())] != [0, 2, 4, 6, 8]:
            kit.complain("a generator gave other numbers")
        loop = asyncio.new_event_loop()
        loop.call_soon(tick, loop, 500)
        loop.run_forever()
        loop.close()
        kit.work()


@body
def many_threads(count="500"):
    """Threads that all wait."""
    threading.stack_size(256 * 1024)
    end = threading.Event()
    started = [threading.Thread(target=end.wait) for _ in range(int(count))]
    for thread in started:
        thread.start()
    while kit.going():
        kit.work()
        time.sleep(0.001)
    end.set()


def run_loop(run):
    import asyncio

    async def timer(seconds):
        with kit.timed("asyncio.sleep", seconds):
            await asyncio.sleep(seconds)

    async def ask(reader, writer):
        writer.write(b"x" * 100)
        assert await reader.readexactly(100) == b"y" * 100

    async def main():
        async def answer(reader, writer):
            while True:
                try:
                    await reader.readexactly(100)
                except (asyncio.IncompleteReadError, ConnectionError):
                    break
                writer.write(b"y" * 100)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        while kit.going():
            await asyncio.gather(timer(0.003), timer(0.02), timer(0.08), ask(reader, writer))
            kit.work()
        writer.close()
        await asyncio.sleep(0.05)  # until the server's side has noticed
        server.close()

    run(main())


@body
def asyncio_loop():
    """An event loop with timers and a connection."""
    import asyncio
    if hasattr(asyncio, "run"):
        run_loop(asyncio.run)
    else:
        run_loop(asyncio.get_event_loop().run_until_complete)


@body
def uvloop_loop():
    """The same in uvloop."""
    import uvloop
    # uvloop.run is newer than some distributions'
    run_loop(lambda main: uvloop.new_event_loop().run_until_complete(main))


@body
def greenlets():
    """Stacks that are switched in one thread."""
    import greenlet
    main = greenlet.getcurrent()

    def deep(n):
        if n:
            return deep(n - 1)
        while True:
            kit.work()
            main.switch()

    switched = [greenlet.greenlet(deep) for _ in range(10)]
    while kit.going():
        for i, one in enumerate(switched):
            one.switch(*([i * 5] if not one else []))
        kit.say()


@body
def gevent_loop():
    """gevent with everything patched."""
    from gevent import monkey
    monkey.patch_all()
    import gevent

    def worker():
        with kit.timed("gevent.sleep", 0.005):
            gevent.sleep(0.005)
        kit.work()

    while kit.going():
        gevent.joinall([gevent.spawn(worker) for _ in range(3)])
        kit.say()


@body
def subinterpreters():
    """A sub-interpreter that works in a thread of its own."""
    try:
        import _interpreters as interpreters
        run = interpreters.exec
    except ImportError:
        import _xxsubinterpreters as interpreters
        run = interpreters.run_string
    other = interpreters.create()
    code = "import time\nfor i in range(10):\n    sum(range(3000)); time.sleep(0.001)\n"
    while kit.going():
        thread = threading.Thread(target=run, args=(other, code))
        thread.start()
        kit.work()
        thread.join()
        kit.last = None
        kit.say()


@body
def signals():
    """A handler that runs ten thousand times a second."""
    count = [0]

    def handler(*_):
        count[0] += 1

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    while kit.going():
        old = count[0]
        for _ in range(5):
            kit.work()
            kit.beat()  # where work() is watched, line by line before 3.12, five of them take 50 ms
        if count[0] == old:
            kit.complain("no signal came for a round")
    signal.setitimer(signal.ITIMER_REAL, 0)


@body
def storm():
    """Starts programs all the time, which say what descriptors they have."""
    shell = ["/bin/sh", "-c", "echo /proc/self/fd/*"]
    usual = None
    while kit.going():
        children = [subprocess.Popen(shell, stdout=subprocess.PIPE, close_fds=False) for _ in range(3)]
        for child in children:
            out = child.communicate()[0]
            if child.returncode:
                kit.complain("a program ended with %d" % child.returncode)
        # The last one started has the pipe of no other one behind it.
        usual = usual or len(out.split())
        if len(out.split()) > usual + 2:
            kit.complain("a program got descriptors: %s" % out.decode().strip())
        kit.last = None
        kit.say()


@body
def daemon():
    """Leaves its parent and its session, closes every descriptor and opens its own. The runner is told its pid."""
    if os.fork():
        os.wait()
        kit.wait_for(kit.REPORT + ".pid")
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 256)
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY):
        os.open("/dev/null", flags)
    with open(kit.REPORT + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(kit.REPORT + ".new", kit.REPORT + ".pid")
    while kit.going():
        kit.work()


@body
def closes():
    """Closes every descriptor above stdio in the middle of the run, opens its own in their place, and forks."""
    spins = 0
    while kit.going():
        kit.work()
        if kit.ready_at is None or time.monotonic() - kit.ready_at < 0.6:
            continue
        os.closerange(3, 64)
        own = [os.open("/dev/null", os.O_RDWR) for _ in range(20)]
        used = time.process_time()
        time.sleep(0.3)
        spins = spins + 1 if time.process_time() - used > 0.15 else 0
        if spins == 3 * kit.SLOW:  # code of an eval ends before
            kit.complain("something spins after the program closed its descriptors")
        child = os.fork()
        if child == 0:
            found = kit.descriptors()
            os._exit(any(found.get(fd) != "/dev/null" for fd in own))
        if os.waitpid(child, 0)[1]:
            kit.complain("a child of fork lost descriptors of the program")
        if any(kit.descriptors().get(fd) != "/dev/null" for fd in own):
            kit.complain("the program lost descriptors")
        for fd in own:
            os.close(fd)
        kit.last = None


@body
def closed_stdio():
    """Has closed descriptors 0, 1 and 2: the agent must not use them."""
    sys.stdout.flush()
    for fd in (0, 1, 2):
        os.close(fd)
    sys.stdin = sys.stdout = sys.stderr = None
    while kit.going():
        for fd in (0, 1, 2):
            try:
                link = os.readlink("/proc/self/fd/%d" % fd)
            except OSError:
                continue
            if not kit.is_import(link):
                kit.complain("descriptor %d is %s" % (fd, link))
        kit.work()


@body
def few_descriptors(free):
    """Has so many descriptors left, and takes a dozen of them each round (or all but four of fewer)."""
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for _ in range(int(free)):
        os.close(held.pop())
    wanted = min(12, int(free) - 4)
    while kit.going():
        got = []
        try:
            for _ in range(wanted):
                got.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            kit.complain("of %s free descriptors only %d could be opened" % (free, len(got)))
        for fd in got:
            os.close(fd)
        kit.work()


CALLS = {"x86_64": {"socket": 41, "memfd_create": 319, "clone3": 435, "flock": 73, "sendmsg": 46, "fallocate": 285,
                    "epoll_create1": 291, "eventfd2": 290, "prctl": 157, "pidfd_open": 434},
         "aarch64": {"socket": 198, "memfd_create": 279, "clone3": 435, "flock": 32, "sendmsg": 211, "fallocate": 47,
                     "epoll_create1": 20, "eventfd2": 19, "prctl": 167, "pidfd_open": 434}}


def set_filter(program):
    """A seccomp filter of this process and all that it starts."""
    import ctypes
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filters, 0, 0):
        raise OSError(ctypes.get_errno(), "no filter could be set")


@body
def seccomp(action, *names):
    """A filter that kills at some system calls, or lets them fail. None of them is one that the program makes."""
    verdict = {"kill": 0x80000000, "errno": 0x00050001, "enosys": 0x00050026}[action]
    numbers = [CALLS[os.uname().machine][name] for name in names]
    program = [(0x20, 0, 0, 0)]  # load the number of the call
    for i, number in enumerate(numbers):
        program.append((0x15, len(numbers) - i, 0, number))
    set_filter(program + [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, verdict)])
    while kit.going():
        kit.work()
        time.sleep(0.001)


@body
def has_a_tracer():
    """Has named the one process that may trace it (PR_SET_PTRACER, as programs with a crash reporter do). That cannot
    be read back, so a filter ends the program where anything in it names another one. A kernel without Yama ignores the
    call; the filter sees it too."""
    import ctypes
    named, kill, pass_on = 0x59616D61, 0x80000000, 0x7FFF0000
    ctypes.CDLL(None).prctl(named, ctypes.c_ulong(os.getppid()), 0, 0, 0)
    set_filter([(0x20, 0, 0, 0), (0x15, 0, 3, CALLS[os.uname().machine]["prctl"]), (0x20, 0, 0, 16),
                (0x15, 0, 1, named), (0x06, 0, 0, kill), (0x06, 0, 0, pass_on)])
    while kit.going():
        kit.work()
        time.sleep(0.001)


@body
def locked():
    """Locks all its memory, what it will map too (mlockall): memory that the agent maps is filled at once."""
    import ctypes
    page = os.sysconf("SC_PAGE_SIZE")
    ctypes.CDLL(None).mlockall(3)  # needs root: otherwise it has no effect

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * page >> 20

    usual = None
    while kit.going():
        kit.work()
        if kit.ready_at is None:
            usual = resident()
        elif resident() > usual + 30:
            kit.complain("more than 30 MB have become resident")


@body
def one_cpu():
    """Has one CPU. What it gets done in a tenth of a second must not fall to less than half of the usual."""
    usual, done, mark = [], 0, time.monotonic()
    while kit.going():
        kit.work()
        done += 1
        now = time.monotonic()
        if now - mark > 0.1:
            rate = done / (now - mark)
            if kit.ready_at is None:
                usual.append(rate)
            elif len(usual) and rate < 0.5 * sorted(usual)[len(usual) // 2]:
                kit.lines.append("slow\t%f\t%f" % (mark, rate / sorted(usual)[len(usual) // 2]))
            done, mark = 0, now
        if kit.last is None:
            done, mark = 0, now


@body
def real_time():
    """A real-time thread on one CPU, which it has whenever it wants to, unless another thread of the same priority has
    it."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except PermissionError:
        pass
    while kit.going():
        kit.work()
        time.sleep(0.002)


@body
def locals_seen():
    """What exec left in a running function and a dictionary that locals() gave are as before."""
    def outer():
        exec("hidden = 41")
        names = locals()
        kept = sorted(names)
        time.sleep(0.005)
        if sorted(names) != kept:
            kit.complain("a dictionary that locals() gave has changed: %s" % sorted(names))
        try:
            if eval("hidden") != 41:
                kit.complain("what exec left has changed")
        except NameError:
            if sys.version_info < (3, 13):  # where nothing keeps it
                kit.complain("what exec left is gone")

    while kit.going():
        outer()


@body
def allocates():
    """Threads inside malloc most of the time; what is written is still there when it is freed."""
    import ctypes
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]

    def allocate():
        for size in (24, 1000, 70000, 300000):
            address = libc.malloc(size)
            ctypes.memset(address, size & 255, size)
            if ctypes.string_at(address + size - 1, 1) != bytes([size & 255]):
                kit.complain("memory has changed")
            libc.free(address)

    while kit.going():
        started = [threading.Thread(target=allocate) for _ in range(2)]
        for thread in started:
            thread.start()
        allocate()
        for thread in started:
            thread.join()


@body
def loads(library):
    """A second thread is inside the loader most of the time; the first goes on meanwhile."""
    import _ctypes
    stop = []

    def load():
        while not stop:
            _ctypes.dlclose(_ctypes.dlopen(library, 2))
            time.sleep(0.02)

    while True:
        thread = threading.Thread(target=load)
        thread.start()
        for _ in range(10):
            kit.work()
            time.sleep(0.001)
            kit.beat()
        stop.append(1)
        thread.join()
        stop.clear()
        kit.last = None
        if not kit.going():
            break


@body
def short_life(seconds, last):
    """Ends, or becomes another program, in the middle of what is done to it. No kit: the runner looks at what it
    printed."""
    end = time.monotonic() + float(seconds)
    total = 0
    while time.monotonic() < end:
        total += kit.work()
    if last == "exec":
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(0.02); print('fine')"])
    print("fine")


if __name__ == "__main__":
    BODIES[sys.argv[1]](*sys.argv[2:])
