"""One rank reads from a pipe of multiprocessing whose other process has ended; it keeps the other end open itself."""
TRUTH = {"kind": ["blocked_call", "queue_empty", "worker_gone"], "cause": ["pipe", "socket", "mp_queue", "killed", "exit", None],
         "function": ["receive"], "not": ["loop", "deadlock", "mismatch"]}
NAMES = {"receive": ["receive", "read_reply", "next_part"]}
import multiprocessing
import kit


def reply(connection, count):
    for n in range(count):
        connection.send(n)


def receive(connection):
    return connection.recv()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    ours, theirs = multiprocessing.Pipe()
    if job.mine():
        multiprocessing.Process(target=reply, args=(theirs, job.at), daemon=True).start()
    for step in job.steps():
        if job.now(step):
            receive(ours)
        elif job.mine():
            ours.recv()
        kit.train_step(net, optimizer)


main()
