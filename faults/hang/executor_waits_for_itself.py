"""A task of an executor waits for another task of the same executor, which has no thread left for it."""
TRUTH = {"kind": ["future_unset", "deadlock"], "cause": ["future", "concurrent", "executor", None],
         "function": ["load_parts", "load_all"], "not": ["loop"]}
NAMES = {"load_parts": ["load_parts", "read_shards"], "load_all": ["load_all", "fetch_epoch"]}
import concurrent.futures
import kit


def load_one(n):
    return n


def load_parts(pool):
    return [task.result() for task in [pool.submit(load_one, n) for n in range(4)]]  # <- here


def load_all(pool):
    return pool.submit(load_parts, pool).result()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=job.name("io", "loader"))
    for step in job.steps():
        if job.now(step):
            load_all(pool)
        kit.train_step(net, optimizer)


main()
