"""A service: the task that handles a request awaits a future that nobody sets."""
TRUTH = {"kind": "future_unset", "cause": ["asyncio", "future", None], "function": ["answer", "handle"],
         "not": ["loop", "deadlock"]}
NAMES = {"answer": ["answer", "infer", "complete"], "handle": ["handle", "serve_one"]}
RANKS = 1
import asyncio
import kit


async def answer(text, batches):
    reply = asyncio.get_running_loop().create_future()
    batches.append((text, reply))
    return await reply  # <- here


async def handle(batches, count):
    return [await answer(str(n), batches) for n in range(count)]  # <- here


def main():
    job = kit.start()
    job.begins()
    asyncio.run(handle([], job.random.randrange(1, 9)))


main()
