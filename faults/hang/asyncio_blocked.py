"""A service: a coroutine calls something that blocks, so the event loop serves nobody."""
TRUTH = {"kind": "blocked_call", "cause": ["socket", "asyncio", "event_loop"], "function": "look_up",
         "not": ["deadlock", "loop", "future_unset"]}
NAMES = {"look_up": ["look_up", "check_quota", "read_user"]}
RANKS = 1
import asyncio
import socket
import kit


def look_up(address):
    with socket.create_connection(address) as peer:
        return peer.recv(100)  # <- here


async def beat():
    while True:
        await asyncio.sleep(0.05)


async def serve(job):
    task = asyncio.create_task(beat())
    await asyncio.sleep(0.5)
    job.begins()
    look_up(job.silent_server())
    await task


def main():
    asyncio.run(serve(kit.start()))


main()
