"""A service: a task has taken a lock of asyncio twice; all other tasks wait for it."""
TRUTH = {"kind": "future_unset", "cause": None, "function": ["store", "refresh"], "not": ["loop", "deadlock"]}
NAMES = {"store": ["store", "put", "remember"], "refresh": ["refresh", "reload", "renew"]}
RANKS = 1
import asyncio
import kit


async def store(lock):
    async with lock:  # <- here
        return 1


async def refresh(lock):
    async with lock:
        return await store(lock)


async def serve(job):
    lock = asyncio.Lock()
    job.begins()
    await asyncio.gather(*[refresh(lock) for _ in range(job.random.randrange(1, 9))])


def main():
    asyncio.run(serve(kit.start()))


main()
