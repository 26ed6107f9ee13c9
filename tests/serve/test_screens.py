"""Terminals in the browser: what they show, as it changes, and one person who drives."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from tests.durable.lives import stored_in
from tests.patience import PATIENCE, until
from tests.turn.calls import apply, reply, spawn

import keephold
from keephold import KeepholdError, Runtime, Tool, Turn
from keephold.serve.screens import Screens
from keephold.serve.watched_terminal import LocalTerminal, RemoteTerminal
from keephold.turn.attach_protocol import Size
from keephold.turn.attached import terminal_of

_SPAN = re.compile("<[^>]*>")


def shell(**options: Any) -> Tool:
    """A shell without a line editor: what is typed is what it gets."""
    command = ["bash", "--norc", "--noprofile", "--noediting"]
    return keephold.terminal(command, name="shell", env={"PS1": "$ "}, rows=10, cols=40, **options)


@asynccontextmanager
async def browsing(rt: Runtime) -> AsyncIterator[tuple[httpx2.AsyncClient, Screens]]:
    """A browser at the screens of a runtime."""
    screens = Screens(rt)
    config = uvicorn.Config(
        Starlette(routes=screens.routes()), port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    try:
        await until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
            yield client, screens
    finally:
        await screens.close()
        server.should_exit = True
        await serving


@asynccontextmanager
async def at_shell(
    place: Path, *, elsewhere: bool = False
) -> AsyncIterator[tuple[Runtime, Turn, httpx2.AsyncClient, Screens]]:
    """A shell that runs, and a browser at the screens of its runtime; `elsewhere`: of another one on the store."""
    async with (
        Runtime([shell()], store=stored_in(place)) as runs,
        Runtime([], store=stored_in(place)) if elsewhere else nullcontext(runs) as rt,
        runs.turn("main") as turn,
        browsing(rt) as (client, screens),
    ):
        await reply(turn, spawn("shell", "s"))
        yield runs, turn, client, screens


class Stream:
    """What is told of one terminal."""

    def __init__(self, response: httpx2.Response) -> None:
        self._lines = response.aiter_lines()
        self.id = ""
        self.seen: list[dict[str, Any]] = []

    async def event(self) -> tuple[str, dict[str, Any]]:
        name = ""
        async with asyncio.timeout(PATIENCE):
            async for line in self._lines:
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    return name, json.loads(line.removeprefix("data: "))
        raise AssertionError("the stream has ended")

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first screen that is so."""
        while True:
            name, data = await self.event()
            assert name == "screen", (name, data)
            self.seen.append(data)
            if wanted(data):
                return data

    async def shows(self, text: str) -> dict[str, Any]:
        return await self.until(lambda screen: text in _SPAN.sub("", screen["html"]))


@asynccontextmanager
async def looking(client: httpx2.AsyncClient, uid: str) -> AsyncIterator[Stream]:
    async with client.stream("GET", f"/screens/{uid}") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = Stream(response)
        name, hello = await stream.event()
        assert name == "hello"
        stream.id = hello["stream"]
        yield stream


async def post(client: httpx2.AsyncClient, path: str, **body: Any) -> Any:
    answer = await client.post(f"/screens/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refused(client: httpx2.AsyncClient, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    answer = await client.post(f"/screens/{path}", json=body)
    return answer.status_code, answer.json()["error"]


def uid_of(rt: Runtime) -> str:
    return rt.live()[0].uid


async def test_whoever_looks_sees_the_screen_and_each_change_with_its_colours(tmp_path: Path) -> None:
    async with at_shell(tmp_path) as (rt, turn, client, _):
        await reply(turn, apply("shell", "s", "printf '\\033[31mred\\033[0m <b>&\\n'\r"))
        async with looking(client, uid_of(rt)) as stream:
            screen = await stream.shows("red")
            assert '<span class="f1">red</span> &lt;b&gt;&amp;' in screen["html"]
            assert (screen["rows"], screen["cols"], screen["driver"]) == (10, 40, None)
            await reply(turn, apply("shell", "s", "printf '\\033]2;a title\\007'; echo $((6 * 7))\r"))
            assert (await stream.shows("42"))["title"] == "a title"


async def test_one_person_drives_and_types_in_order_and_nothing_twice(tmp_path: Path) -> None:
    async with at_shell(tmp_path) as (rt, turn, client, _):
        uid = uid_of(rt)
        async with looking(client, uid) as stream:
            driver = (await post(client, f"{uid}/drive", stream=stream.id, rows=12, cols=60))["driver"]
            await stream.until(lambda screen: screen["mine"] and screen["cols"] == 60)
            assert rt.live()[0].driver == "person"
            status, told = await refused(client, f"{uid}/drive", stream=stream.id)
            assert (status, told["code"]) == (409, "driven_by_person")
            assert "since 20" in told["message"]
            (response,) = await turn.run([apply("shell", "s", "echo me\r")])
            assert response.code == "driven_by_person"

            await post(client, f"{uid}/type", driver=driver, seq=1, data="echo $((40 + 2)) ä; stty size")
            await post(client, f"{uid}/type", driver=driver, seq=1, data="echo twice")
            status, told = await refused(client, f"{uid}/type", driver=driver, seq=3, key="ENTER")
            assert status == 400 and "does not follow" in told["message"]
            await post(client, f"{uid}/type", driver=driver, seq=2, key="ENTER")
            screen = await stream.shows("12 60")
            assert "42 ä" in screen["html"] and "twice" not in screen["html"]

            await post(client, f"{uid}/resize", driver=driver, rows=20, cols=70)
            await stream.until(lambda screen: screen["rows"] == 20)
            await post(client, f"{uid}/back", driver=driver)
            screen = await stream.until(lambda screen: screen["driver"] is None)
            assert (screen["rows"], screen["cols"], screen["mine"]) == (10, 40, False)
            status, told = await refused(client, f"{uid}/type", driver=driver, seq=3, data="late")
            assert (status, told["code"]) == (409, "driven_by_person")
        assert "5 free" in (await reply(turn, apply("shell", "s", "echo $((2 + 3)) free\r")))["content"]


async def test_a_closed_tab_hands_the_terminal_back(tmp_path: Path) -> None:
    async with at_shell(tmp_path) as (rt, turn, client, all):
        uid = uid_of(rt)
        async with looking(client, uid) as stream:
            await post(client, f"{uid}/drive", stream=stream.id, rows=5, cols=30)
            assert rt.live()[0].driver == "person"
        await until(lambda: rt.live()[0].driver is None)
        await until(lambda: not all._views)  # and nobody looks, so nothing is watched
        assert "10 40" in (await reply(turn, apply("shell", "s", "stty size\r")))["content"]


async def test_only_who_looks_drives_and_the_end_of_the_server_hands_back(tmp_path: Path) -> None:
    async with at_shell(tmp_path) as (rt, _, client, all):
        uid = uid_of(rt)
        status, told = await refused(client, f"{uid}/drive", stream="nobody's")
        assert status == 400 and "no such stream" in told["message"]
        assert (await refused(client, f"{uid}/drive"))[0] == 400
        await until(lambda: not all._views)
        async with looking(client, uid) as stream:
            await post(client, f"{uid}/drive", stream=stream.id)
            await all.close()  # the server ends
            assert rt.live()[0].driver is None


async def test_what_is_interrupted_is_interrupted_and_what_is_pasted_is_no_key(tmp_path: Path) -> None:
    async with at_shell(tmp_path) as (rt, _, client, _):
        uid = uid_of(rt)
        async with looking(client, uid) as stream:
            driver = (await post(client, f"{uid}/drive", stream=stream.id))["driver"]
            await post(client, f"{uid}/type", driver=driver, seq=1, data="echo be''gun; sleep 1000\r")
            await stream.shows("begun")
            await post(client, f"{uid}/type", driver=driver, seq=2, key="C-c")
            await post(client, f"{uid}/type", driver=driver, seq=3, paste="echo $((7 * 6))\x03 pasted\n")
            await stream.shows("42 pasted")
            status, _ = await refused(client, f"{uid}/type", driver=driver, seq=4, key="NOKEY")
            assert status == 400
            status, _ = await refused(client, f"{uid}/type", driver=driver, seq=4, key="ENTER", data="both")
            assert status == 400
            await post(client, f"{uid}/type", driver=driver, seq=4, data="exit\r")  # what was refused took no number
            while (await stream.event())[0] != "end":
                pass
        assert rt.live() == []


async def test_what_a_program_asks_its_terminal_is_answered_while_a_person_drives(tmp_path: Path) -> None:
    ask = r"""printf '\033[6n'; IFS= read -rsd R place; echo "at ${place#*[}" """
    async with at_shell(tmp_path) as (rt, _, client, _):
        uid = uid_of(rt)
        async with looking(client, uid) as stream:
            driver = (await post(client, f"{uid}/drive", stream=stream.id))["driver"]
            await post(client, f"{uid}/type", driver=driver, seq=1, data=f"clear; {ask}\r")
            await stream.shows("at 1;1")


async def test_a_terminal_of_another_process_is_seen_and_driven_the_same(tmp_path: Path) -> None:
    async with at_shell(tmp_path, elsewhere=True) as (runs, turn, client, _):
        await reply(turn, apply("shell", "s", "printf '\\033[1mbold\\033[0m\\n'; echo $((6 * 7))\r"))
        uid = uid_of(runs)
        async with looking(client, uid) as stream:
            screen = await stream.until(lambda screen: "42" in screen["html"] and 'class="bold">bold' in screen["html"])
            assert (screen["rows"], screen["cols"]) == (10, 40)
            driver = (await post(client, f"{uid}/drive", stream=stream.id, rows=12, cols=60))["driver"]
            await stream.until(lambda screen: screen["driver"] == "person" and screen["mine"])
            status, told = await refused(client, f"{uid}/drive", stream=stream.id)
            assert (status, told["code"]) == (409, "driven_by_person")
            await post(client, f"{uid}/type", driver=driver, seq=1, data="stty size; printf '\\033[32mgreen\\n'\r")
            await stream.until(lambda screen: "12 60" in screen["html"] and 'class="f2">green' in screen["html"])
            await post(client, f"{uid}/back", driver=driver)
            await stream.until(lambda screen: screen["driver"] is None and screen["cols"] == 40)


async def test_who_has_gone_before_another_process_has_answered_does_not_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, go_on = asyncio.Event(), asyncio.Event()
    drive = RemoteTerminal.drive

    async def slowly(self: RemoteTerminal, size: Size, lost: Callable[[KeepholdError], None]) -> None:
        await drive(self, size, lost)
        taken.set()
        await go_on.wait()

    monkeypatch.setattr(RemoteTerminal, "drive", slowly)
    async with at_shell(tmp_path, elsewhere=True) as (runs, turn, client, screens):
        uid = uid_of(runs)
        async with looking(client, uid) as stream:
            driving = asyncio.create_task(refused(client, f"{uid}/drive", stream=stream.id))
            await taken.wait()
            assert runs.live()[0].driver == "person"
        await until(lambda: not screens._views)
        go_on.set()
        status, told = await driving
        assert (status, told["code"]) == (409, "not_running")
        await until(lambda: runs.live()[0].driver is None)
        await reply(turn, apply("shell", "s", "exit\r"))


async def test_what_does_not_run_or_is_no_terminal_is_refused_with_the_reason(tmp_path: Path) -> None:
    @keephold.tool(actions=("spawn", "fetch", "abort"))
    async def idle() -> str:
        await asyncio.sleep(1000)
        return ""

    async with Runtime([idle], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn, browsing(rt) as (client, _):
        await reply(turn, spawn("idle", "i"))
        answer = await client.get(f"/screens/{uid_of(rt)}")
        error = answer.json()["error"]["message"]
        assert (answer.status_code, error.partition(":")[0]) == (400, "handle `i` is not a terminal")
        assert "`keephold send i` sends it something" in error
        assert (await client.get("/screens/nobody")).status_code == 404
        assert (await client.post(f"/screens/{uid_of(rt)}/drive", content=b"[")).status_code == 400
        assert (await client.post(f"/screens/{uid_of(rt)}/type", content=b"x" * (2 << 20))).status_code == 413


@pytest.mark.parametrize("step", ["driven", "resize"])
async def test_a_takeover_that_fails_leaves_no_driver(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    async with Runtime([shell()]) as rt, rt.turn("main") as turn:
        await turn.run([spawn("shell", "s")])
        handle = rt.registry.live("main")[0]
        await until(lambda: handle.run is not None and handle.run.live is not None)
        terminal = LocalTerminal(handle)
        with monkeypatch.context() as patched:
            patched.setattr(type(terminal_of(handle)), step, _failing)
            with pytest.raises(OSError, match="too large"):
                await terminal.drive(Size(20, 70))
        assert handle.driver is None and handle.driven_since is None
        await terminal.drive(Size(20, 70))  # nobody else drives it
        await terminal.hand_back()


def _failing(*_: Any) -> None:
    raise OSError("too large")
