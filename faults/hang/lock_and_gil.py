"""A thread waits for the GIL with a mutex of C in its hand; another keeps the GIL and waits for the mutex."""
TRUTH = {"kind": ["deadlock", "gil_held"], "cause": ["gil", "native", "lock", None],
         "function": ["call_with_gil", "call_without_gil"], "not": ["loop"]}
NAMES = {"call_with_gil": ["call_with_gil", "render", "lookup"], "call_without_gil": ["call_without_gil", "refresh",
         "reload"]}
import ctypes
import threading
import time
import kit

mutex = ctypes.create_string_buffer(64)
free, kept = ctypes.CDLL(None), ctypes.PyDLL(None)


def call_without_gil(pause):
    free.pthread_mutex_lock(mutex)
    time.sleep(pause)  # <- here
    free.pthread_mutex_unlock(mutex)


def call_with_gil():
    kept.pthread_mutex_lock(mutex)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            threading.Thread(target=call_without_gil, args=(0.4,),
                             name=job.name("loader", "plugin"), daemon=True).start()
            time.sleep(0.2)
            call_with_gil()
        kit.train_step(net, optimizer)


main()
