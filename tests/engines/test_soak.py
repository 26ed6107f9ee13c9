"""Calls on Temporal while workers, the front end and Temporal's server are killed at random: `KEEPHOLD_SOAK=1`.

Nothing that was acknowledged is lost: a step has one result in all attempts. An effect repeats only if its worker died
between the effect and its record. Every call ends, and the output of its last attempt is whole.
"""

import asyncio
import os
import random
import time
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from bench import parked_temporal
from tests.engines.processes import Worker, config
from tests.mcp.clients import connected
from tests.serve.serving import TOKEN, Served
from tests.soak import SOAK
from tests.temporal import Place, own_server

KILLS = {"worker": 300, "server": 30, "front": 30}
SCALE = float(os.environ.get("KEEPHOLD_SOAK_SCALE", "1"))
"""Of the kills: a smaller soak takes less time."""
WORKERS, CALLS = 4, 16
STUCK_SECS = 300.0
GROWTH = 64 << 20
"""Bytes by which the memory of a worker may grow between 1,000 and 5,000 calls that wait."""


class Soak:
    def __init__(self, place: Path, server: Any, front: Served, workers: list[Worker], settings: str) -> None:
        self.place, self.server, self.front, self.workers, self.settings = place, server, front, workers, settings
        self.http = front.client()
        self.kills: Counter[str] = Counter()
        self.done: dict[int, dict[str, Any]] = {}
        self.attempts: Counter[int] = Counter()
        self.over = False

    async def kill(self) -> None:
        """Kill in random order; each is started again at once."""
        order = [kind for kind, count in KILLS.items() for _ in range(round(count * SCALE))]
        random.shuffle(order)
        for kind in order:
            await asyncio.sleep(random.uniform(1, 5))
            if kind == "worker":
                at = random.randrange(len(self.workers))
                self.workers[at].kill()
                self.workers[at] = self.worker(at)
            elif kind == "server":
                self.server.kill()
                await asyncio.to_thread(self.server.start)
            else:
                self.front.kill()
                await asyncio.to_thread(self.front.restart)
            self.kills[kind] += 1
            print(f"{time.strftime('%X')} {dict(self.kills)} done {len(self.done)}", flush=True)
        self.over = True

    def worker(self, at: int) -> Worker:
        return Worker(self.place / f"worker-{at}", self.settings, KEEPHOLD_SOAK_PLACE=str(self.place))

    async def ask(self, method: str, path: str, **given: Any) -> httpx2.Response:
        """Ask the front end until it answers."""
        while True:
            with suppress(httpx2.HTTPError):
                answer = await self.http.request(method, path, **given)
                if answer.status_code < 500:
                    return answer
            await asyncio.sleep(0.2)

    async def calls(self, first: int) -> None:
        number = first
        while not self.over:
            self.done[number] = await asyncio.wait_for(self.call(number), STUCK_SECS)
            number += CALLS

    async def call(self, number: int) -> dict[str, Any]:
        await self.spawn(number)
        handles = (await self.ask("GET", "/api/handles", params={"search": f"w{number}"})).json()["handles"]
        (uid,) = (each["uid"] for each in handles if each["id"] == f"w{number}")
        while not (self.place / f"key-{number}").exists():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.2)
        key = (self.place / f"key-{number}").read_text()
        said = await self.ask("POST", f"/complete/{key}", json={"status": "ok", "payload": number})
        assert said.json()["status"] in ("accepted", "already_resolved"), said.text
        while True:
            found: dict[str, Any] = (await self.ask("GET", f"/api/handles/{uid}")).json()
            if found["state"] == "stopped":
                break
            if found["state"] == "waiting":
                await self.ask("POST", f"/api/handles/{uid}/answer", json={"answer": True})
            elif found.get("reading"):
                await self.ask("POST", f"/api/handles/{uid}/apply", json={"input": f"i{number}"})
            await asyncio.sleep(0.3)
        found["text"] = (await self.ask("GET", f"/api/handles/{uid}/output", params={"format": "raw"})).text
        return found

    async def spawn(self, number: int) -> None:
        while True:
            with suppress(Exception):
                async with connected(self.front.mcp, token=TOKEN) as client:
                    said = await client.call_tool("works", {"action": "spawn", "id": f"w{number}", "number": number})
                    text = str(said.content[0])
                    if not said.is_error or f"w{number}" in text:  # it had arrived before
                        return
            await asyncio.sleep(0.3)

    def check(self) -> str:
        """Check every promise, and return the counts."""
        for number, found in self.done.items():
            assert found["ok"], (number, found["code"], found["message"])
            result = found["outcome"]["value"] if "value" in found["outcome"] else found["outcome"]
            if isinstance(result, list):
                assert result[:4] == [number, number, True, f"i{number}"], result
            last = found["text"].rpartition("--- attempt ")[2]
            wanted = [f"begin {number}", "3", "4", "5", f"end {number}"]
            assert last.split("\n")[0 if "---" not in last.split("\n")[0] else 1 :][:5] == wanted, (number, last)
            assert [event["type"] for event in found["process_events"]] == ["got"], found["process_events"]
        acknowledged: dict[tuple[str, str], set[str]] = defaultdict(set)
        for of, name, _, token in self._lines("acknowledged"):
            acknowledged[of, name].add(token)
        assert all(len(tokens) == 1 for tokens in acknowledged.values()), "a step was recorded twice"
        ran: dict[tuple[str, str], list[str]] = defaultdict(list)
        for of, name, attempt, _ in self._lines("effects"):
            ran[of, name].append(attempt)
        assert all(len(set(attempts)) == len(attempts) for attempts in ran.values()), "twice in one attempt"
        repeated = sum(len(attempts) - 1 for attempts in ran.values())
        attempts = Counter(found["attempt"] for found in self.done.values())
        return (
            f"{dict(self.kills)}: {len(self.done)} calls, {len(acknowledged)} results acknowledged, {repeated} effects "
            f"repeated, attempts {dict(sorted(attempts.items()))}"
        )

    def _lines(self, file: str) -> list[list[str]]:
        return [line.split() for line in (self.place / file).read_text().splitlines()]


@pytest.mark.skipif(not SOAK, reason="set KEEPHOLD_SOAK=1: it takes half an hour")
@pytest.mark.timeout(7200)
async def test_calls_survive_whatever_is_killed(tmp_path: Path) -> None:
    with own_server() as server:
        settings = config(Place(server.address), works="tests.engines.soak_tools:works")
        (tmp_path / "front").mkdir()
        front = Served(tmp_path / "front", settings)
        soak = Soak(tmp_path, server, front, [], settings)
        try:
            soak.workers += [soak.worker(at) for at in range(WORKERS)]
            async with asyncio.TaskGroup() as group:
                group.create_task(soak.kill())
                for first in range(CALLS):
                    group.create_task(soak.calls(first))
            print(soak.check())
        finally:
            await soak.http.aclose()
            front.close()
            for worker in soak.workers:
                worker.kill()


@pytest.mark.skipif(not SOAK, reason="set KEEPHOLD_SOAK=1: it takes minutes")
@pytest.mark.timeout(7200)
async def test_calls_that_wait_take_no_slot_and_no_memory_of_a_worker() -> None:
    _, fifth, waiting, *_, after = await parked_temporal.main(round(5000 * SCALE))
    assert max(waiting, after) < fifth + GROWTH, "a worker caches a limited number of workflows"
