"""An asyncio server without a request, whose batcher waits on a queue."""
TRUTH = {"kind": None}
RANKS = 1
import asyncio
import kit


async def batcher(requests):
    while True:
        await requests.get()


async def answer(reader, writer):
    writer.write(await reader.readline())


async def serve(job):
    requests = asyncio.Queue()
    task = asyncio.create_task(batcher(requests))
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    job.begins()
    async with server:
        await asyncio.gather(task, server.serve_forever())


def main():
    asyncio.run(serve(kit.start()))


main()
