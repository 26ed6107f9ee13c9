"""Park many calls on Temporal and answer them all: `python -m bench.parked_temporal [calls]`.

Each call waits for an event. The front end and the worker are processes of their own, so that their memory is their
own. Prints the memory of both before, while a fifth of the calls and all of them wait, and afterwards, and how long
each phase took.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2
from tests.engines.processes import Worker, config
from tests.mcp.clients import connected
from tests.ports import free_port
from tests.serve.serving import TOKEN, Served
from tests.temporal import Place, own_server

from keephold import Call, tool

CALLS = 5000
AT_ONCE = 32


@tool(on_crash="replay", actions=("spawn", "fetch", "abort"), on_turn_end="keep")
async def waits(call: Call, number: int) -> str:
    """Wait for an event."""
    fx = call.durable()
    key = await fx.external_event_key("go")
    with (Path.cwd() / "keys").open("ab", buffering=0) as keys:
        keys.write(f"{number} {key} {call.attempt}\n".encode())
    return f"{number}: {await fx.await_event_json(key)}"


async def main(calls: int) -> list[int]:
    """Return the bytes of the worker's memory at each point."""
    with tempfile.TemporaryDirectory() as directory, own_server() as server:
        place = Path(directory)
        settings = config(Place(server.address), waits="bench.parked_temporal:waits")
        (place / "front").mkdir()
        front = Served(place / "front", settings)
        port = free_port()
        worker = Worker(place / "worker", settings, "--metrics", f"127.0.0.1:{port}", "--max-running", "1000")
        try:
            return await _measure(calls, place, server, front, worker, port)
        finally:
            front.close()
            worker.stop()


async def _measure(calls: int, place: Path, server: Any, front: Served, worker: Worker, port: int) -> list[int]:
    began, sizes = time.monotonic(), list[int]()

    def say(what: str) -> None:
        sizes.append(worker.memory())
        each = {"front end": front.memory(), "worker": sizes[-1], "Temporal": server.memory}
        memory = ", ".join(f"{name} {size >> 20} MiB" for name, size in each.items())
        print(f"{time.monotonic() - began:7.1f} s  {memory}: {what}", flush=True)

    async with front.client() as http, connected(front.mcp, token=TOKEN) as client:
        await asyncio.sleep(5)
        say("idle")

        async def spawn(number: int) -> None:
            await client.call_tool("waits", {"action": "spawn", "id": f"w{number}", "number": number})

        keys: dict[int, str] = {}
        for first, last in ((0, calls // 5), (calls // 5, calls)):
            await _all(spawn, range(first, last))
            while len(keys) < last:
                await asyncio.sleep(1)
                keys = {int(number): key for number, key, _ in _lines(place / "worker" / "keys")}
            while await _running(port):  # noqa: ASYNC110 (another process)
                await asyncio.sleep(1)
            say(f"{last} calls are suspended: the worker runs none")
        before = len(_lines(place / "worker" / "keys"))

        async def resolve(number: int) -> None:
            answer = await http.post(f"/complete/{keys[number]}", json={"status": "ok", "payload": number})
            assert answer.json()["status"] == "accepted", answer.text

        await _all(resolve, range(calls))
        say("every key is resolved")
        while (await http.get("/api/handles?limit=1&state=live")).json()["handles"]:  # noqa: ASYNC110
            await asyncio.sleep(1)
        say(f"every call has ended, after {len(_lines(place / 'worker' / 'keys')) - before} more attempts")
        done = (await http.get("/api/handles?limit=1&totals=1&state=done")).json()["totals"]
        print(done)
        return sizes


async def _running(port: int) -> int:
    """Return how many attempts the worker runs, by its metrics."""
    async with httpx2.AsyncClient() as http:
        text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    return int(float(text.split("\nkeephold_worker_attempts_running ")[1].split()[0]))


def _lines(file: Path) -> list[list[str]]:
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [line.split() for line in whole.splitlines()]


async def _all(work: Any, numbers: Any) -> None:
    waiting = list(numbers)

    async def some() -> None:
        while waiting:
            await work(waiting.pop())

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else CALLS))
