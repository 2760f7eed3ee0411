"""A kernel of a notebook: it waits for the next cell, with an idle queue and an idle pool."""
TRUTH = {"kind": None}
RANKS = 1
import concurrent.futures
import socket
import threading
import queue
import kit


def main():
    job = kit.start()
    cells = socket.create_server(("127.0.0.1", 0))
    pool = concurrent.futures.ThreadPoolExecutor(2)
    pool.submit(int, "3").result()
    threading.Thread(target=queue.Queue().get, name="output", daemon=True).start()
    job.begins()
    cells.accept()


main()
