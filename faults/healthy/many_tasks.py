"""An idle service with hundreds of tasks that wait for each other, behind a socket and a pool of threads."""
TRUTH = {"kind": None}
RANKS = 1
SETTLE = 7
import asyncio
import kit


async def work(inbox, done):
    while True:
        item = await inbox.get()
        await asyncio.get_running_loop().run_in_executor(None, str, item)
        done.set()


async def watch(done):
    while True:
        await done.wait()
        done.clear()


async def answer(reader, writer):
    writer.write(await reader.readline())


async def serve(job):
    tasks = []
    for _ in range(job.random.randrange(100, 400)):
        inbox, done = asyncio.Queue(), asyncio.Event()
        tasks += [asyncio.create_task(work(inbox, done)), asyncio.create_task(watch(done))]
        inbox.put_nowait(1)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    job.begins()
    async with server:
        await asyncio.gather(server.serve_forever(), *tasks)


def main():
    asyncio.run(serve(kit.start()))


main()
