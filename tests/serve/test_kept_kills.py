"""R7: a `keephold serve` that is killed at random moments while its tools are kept. `make soak` kills a hundred times.

`POST …/apply` has no id by which it could be repeated. A client whose request got no answer asks the program whether it
got the input, which is typed in order, and sends it again only if it did not.
"""

import asyncio
import itertools
import json
import random
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.crash.kept import nothing_left, processes_of
from tests.crash.kept_programs import CONFIG, TARGETS, ask, numbers, write_programs
from tests.mcp.clients import connected
from tests.patience import until
from tests.serve.serving import TOKEN, Served, environment, serve, served
from tests.soak import tries

KILLS = tries(3, soak=100)
PAUSE = 0.02
SETTINGS = CONFIG.replace("spawn.stateful = true", 'spawn.stateful = true\nspawn.lifecycle.on_turn_end = "keep"', 1)


class Client:
    """Reads and types over HTTP, also while the server is killed and started again."""

    def __init__(self, server: Served, http: httpx2.AsyncClient, uids: dict[str, str]) -> None:
        self._server, self._http, self._uids = server, http, uids
        self.over = asyncio.Event()
        self.unanswered = 0
        """Number of inputs whose requests got no answer."""

    async def _once(self, method: str, path: str, **given: Any) -> httpx2.Response | None:
        """Return the answer; None if there is none."""
        try:
            return await self._http.request(method, path, **given)
        except httpx2.HTTPError:
            await asyncio.sleep(PAUSE)
            return None

    async def piece(self, id: str, **query: str | int) -> dict[str, Any]:
        """Return a piece of the output of a handle, sooner or later."""
        while True:
            answer = await self._once("GET", f"/api/handles/{self._uids[id]}/output", params=query)
            if answer is not None and answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                return found
            await asyncio.sleep(PAUSE)

    async def _printed(self, id: str, line: str) -> bool:
        """Return whether a handle has printed this line."""
        await asyncio.sleep(PAUSE)
        at, total = 0, 1
        while at < total:
            found = await self.piece(id, offset=at, pattern=line)
            if any(match["line"].rstrip() == line for match in found["matches"]):
                return True
            at, total = found["next"], found["total"]
        return False

    async def types(self, id: str, **body: Any) -> bool:
        """Send input; return whether that was answered. A refused input is sent again: nothing of it was typed."""
        while True:
            answer = await self._once("POST", f"/api/handles/{self._uids[id]}/apply", json=body)
            if answer is None:
                return False
            if answer.status_code == 200:
                return True
            assert answer.status_code in (409, 503, 504), answer.text
            await asyncio.sleep(PAUSE)

    async def follow(self, id: str) -> tuple[str, int]:
        """Return the output, which is read piece by piece while it is printed, and where it continues."""
        text, at = "", 0
        while not self.over.is_set():
            more, at = await self.text(id, at)
            text += more
            await asyncio.sleep(PAUSE)
        return text, at

    async def text(self, id: str, at: int = 0) -> tuple[str, int]:
        """Return the output from an offset on, and where it ends."""
        text, total = "", at + 1
        while at < total:
            found = await self.piece(id, offset=at)
            assert not found["missing"] and found["offset"] == at
            text, at, total = text + found["text"], found["next"], found["total"]
        return text, at

    async def type_numbers(
        self, id: str, given: Callable[[int], dict[str, Any]], got: Callable[[int, int], Awaitable[bool]]
    ) -> int:
        """Type 0, 1, 2 …, each once, and return how many. `got` asks the program whether it got a number."""
        questions = itertools.count()
        for number in itertools.count():
            if self.over.is_set():
                return number
            while not await self.types(id, **given(number)):
                self.unanswered += 1
                if await got(number, next(questions)):
                    break
        raise AssertionError

    async def repl_got(self, number: int, question: int) -> bool:
        while not await self.types("r", input=f"print('asked', {question})\n"):
            pass
        while not await self._printed("r", f"asked {question}"):
            pass
        return await self._printed("r", f"in {number}")

    async def vim_got(self, number: int, question: int) -> bool:
        written = self._server.directory / f"asked-{question}"
        while not await self.types("v", input=f":w! {written.name}\r"):
            pass
        await until(lambda: written.exists() and written.read_text().endswith("\n"))
        return f"in {number}" in written.read_text().splitlines()


async def request_pages(directory: Path, over: asyncio.Event) -> int:
    """Ask the dev server again and again; return how often."""
    for number in itertools.count():
        if over.is_set():
            return number
        await asyncio.to_thread(ask, directory, str(number))
        await asyncio.sleep(PAUSE)
    raise AssertionError


async def kill_and_restart(server: Served, draw: random.Random) -> None:
    """Kill it, sometimes once more while it starts, and start it again."""
    await asyncio.sleep(draw.uniform(0, 1.5))
    server.kill()
    await asyncio.sleep(draw.choice((0, 0, 0.3)))
    if draw.random() < 0.3:
        starting = subprocess.Popen(
            serve(server.store, "--port", str(server.port)),
            cwd=server.directory,
            env={**environment(server.directory), "KEEPHOLD_TOKEN": TOKEN},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        await asyncio.sleep(draw.uniform(0, 1.5))
        starting.kill()
        starting.wait()
    await asyncio.to_thread(server.restart)


async def spawned(server: Served, http: httpx2.AsyncClient, tools: dict[str, str]) -> dict[str, str]:
    """Spawn these tools, by id; return their uids."""
    async with connected(server.mcp, token=TOKEN) as model:
        for id, tool in tools.items():
            said: Any = (await model.call_tool(tool, {"action": "spawn", "id": id})).content[0]
            assert json.loads(said.text)["state"] == "running", said.text
    return {each["id"]: each["uid"] for each in (await http.get("/api/handles")).json()["handles"]}


@pytest.mark.timeout(tries(240, soak=3600))
async def test_R7_kept_processes_survive_kills_of_the_server_and_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """A build, a dev server, a REPL and an editor print numbered lines and get numbered input."""
    draw = random.Random(seed := random.SystemRandom().randrange(2**32))
    print("seed", seed)
    write_programs(tmp_path)
    tools = {"c": "count", "s": "server", "b": "build", "r": "repl"} | ({"v": "vim"} if shutil.which("vim") else {})
    try:
        with served(tmp_path, SETTINGS) as server:
            async with server.client() as http:
                uids = await spawned(server, http, tools)
                await until((tmp_path / "port").exists)
                client = Client(server, http, uids)
                async with asyncio.TaskGroup() as group:
                    followed = group.create_task(client.follow("c"))
                    pages = group.create_task(request_pages(tmp_path, client.over))
                    repl = group.create_task(
                        client.type_numbers("r", lambda n: {"input": f"print('in', {n})\n"}, client.repl_got)
                    )
                    vim = group.create_task(
                        client.type_numbers("v", lambda n: {"input": f"oin {n}", "keys": ["ESC"]}, client.vim_got)
                    ) if "v" in tools else None  # fmt: skip
                    for _ in range(KILLS):
                        await kill_and_restart(server, draw)
                    (tmp_path / "stop").touch()
                    client.over.set()
                await asyncio.to_thread(ask, tmp_path, "end")
                assert await client.types("r", input="exit(3)\n")
                if vim is not None:
                    assert await client.types("v", input=":wq\r")
                wanted = {"all": list(uids.values()), "timeout": tries(60, soak=600)}
                assert not (await http.post("/api/wait", json=wanted)).json()["pending"]
                facts = {id: (await http.get(f"/api/handles/{uid}")).json() for id, uid in uids.items()}
                texts = {id: (await client.text(id))[0] for id in ("s", "b", "r")}
                text, at = followed.result()
                texts["c"] = text + (await client.text("c", at))[0]
        nothing_left(tmp_path, server.store)
    finally:
        for process in processes_of(tmp_path, tmp_path / "store.db"):
            process.kill()
    print("kills", KILLS, "inputs", repl.result(), vim and vim.result(), "unanswered", client.unanswered)
    counted = numbers(texts["c"], "line")
    assert counted == [str(each) for each in range(len(counted))]
    assert sorted(numbers(texts["b"], "built"), key=int) == [str(each + 1) for each in range(TARGETS)]
    assert numbers(texts["s"], "request") == [*map(str, range(pages.result())), "end"]
    assert numbers(texts["r"], "in") == [str(each) for each in range(repl.result())]
    if vim is not None:
        assert (tmp_path / "text").read_text().splitlines() == ["", *(f"in {each}" for each in range(vim.result()))]
    codes = {"c": 7, "s": 0, "b": 0, "r": 3, "v": 0}
    assert {id: (fact["exit_code"], fact["attempt"]) for id, fact in facts.items()} == {
        id: (codes[id], 1) for id in tools
    }
