"""`keephold serve` as a process: how it ends, what goes on in the next one, and how it refuses to start (R6, L1)."""

import asyncio
import signal
import socket
import sqlite3
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from tests.durable.lives import ok
from tests.mcp.clients import connected
from tests.patience import PATIENCE, until
from tests.serve.lasting import CONFIG
from tests.serve.serving import TOKEN, Served, served
from tests.serve.streams import Event, events
from tests.trusting import write_trusted

from keephold import ConfigError, Runtime
from keephold.cli import main
from keephold.cli.access import owner_token


async def noted(server: Served, file: str, lines: int = 1) -> str:
    """The last line of a note, once there are so many."""
    path = server.directory / file
    await until(lambda: path.exists() and len(path.read_text().splitlines()) >= lines)
    return path.read_text().splitlines()[-1]


async def spawn(server: Served, *tools: str) -> None:
    async with connected(server.mcp, token=TOKEN) as client:
        for tool in tools:
            made = await client.call_tool(tool, {"action": "spawn", "id": tool, "directory": str(server.directory)})
            assert not made.is_error, made
            await noted(server, tool)


async def uid_of(http: httpx2.AsyncClient, id: str) -> str:
    return str((await http.get(f"/api/handles/{id}", params={"conversation": "mcp"})).json()["uid"])


async def ended(server: Served) -> int:
    return await asyncio.to_thread(server.process.wait, PATIENCE)


class Stream:
    """Somebody who reads a stream to its end, which has to come in good order."""

    def __init__(self, http: httpx2.AsyncClient, path: str) -> None:
        self.events: list[Event] = []
        self.task = asyncio.create_task(self._read(http, path))

    async def _read(self, http: httpx2.AsyncClient, path: str) -> None:
        async with http.stream("GET", path) as answered:
            assert answered.status_code == 200
            async for event in events(answered):
                self.events.append(event)

    @property
    def numbers(self) -> list[int]:
        return [event.id for event in self.events if event.id]


async def test_R6_stopped_in_the_middle_everything_goes_on_by_its_own_rule(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG) as server:
        async with server.client() as http:
            await spawn(server, "deploy", "approve", "work")
            uid = await uid_of(http, "work")
            told, followed = Stream(http, "/api/events?after=0"), Stream(http, f"/api/handles/{uid}/follow")
            waiting = asyncio.create_task(http.post("/api/wait", json={"all": [uid]}))
            await until(lambda: bool(told.events and followed.events))
            server.process.send_signal(signal.SIGTERM)
            await asyncio.gather(told.task, followed.task)
            assert told.numbers == list(range(1, told.numbers[-1] + 1))
            assert followed.events[-1].type in ("end", "refused")
            (stopped,) = (await waiting).json()["completed"]
            assert stopped["ended_by"] == "shutdown", "whoever waits is answered"
            assert await ended(server) == 143
        server.restart()
        async with server.client() as http:
            work = (await http.get(f"/api/handles/{uid}")).json()
            assert (work["state"], work["ended_by"]) == ("stopped", "shutdown")
            for tool in ("deploy", "approve"):
                key = await noted(server, tool)
                completed = await http.post(f"/complete/{key}", json=ok("yes"), headers={"Authorization": ""})
                assert completed.status_code == 200, completed.text
            body = {"all": ["deploy", "approve"], "conversation": "mcp", "timeout": PATIENCE}
            done = (await http.post("/api/wait", json=body)).json()
            assert {each["id"]: each["result"] for each in done["completed"]} == {
                "deploy": ["created", "yes", 2], "approve": "yes"
            }  # fmt: skip
            assert (server.directory / "created").read_text() == "attempt 1\n"
            since = Stream(http, f"/api/events?after={told.numbers[-1]}")
            await until(lambda: bool(since.events))
            assert since.events[0].id == told.numbers[-1] + 1, "no gap, no reset"
            since.task.cancel()
            await asyncio.wait([since.task])
        assert server.stop(signal.SIGINT) == 130


async def test_R6_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG) as server:
        await spawn(server, "stubborn")
        server.process.send_signal(signal.SIGTERM)
        await noted(server, "cancelled")  # it is closing, and this one would keep it a while
        server.process.send_signal(signal.SIGTERM)
        assert await ended(server) == 143
        server.restart()
        async with server.client() as http:
            fact = (await http.get("/api/handles/stubborn", params={"conversation": "mcp"})).json()
            assert fact["state"] == "stopped" and not fact["ok"], "the next one tells how it ended"


async def tools(http: httpx2.AsyncClient) -> set[str]:
    return {tool["name"] for tool in (await http.get("/api/tools")).json()}


async def test_L4_HUP_reads_the_configuration_again_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG) as server:
        file = tmp_path / "keephold.toml"

        async def hangs_up(text: str | None, said: str) -> None:
            file.unlink() if text is None else write_trusted(file, text, tmp_path / "state")
            size = len(server.said.read_text())
            server.process.send_signal(signal.SIGHUP)
            await until(lambda: said in server.said.read_text()[size:])

        async with server.client() as http:
            await spawn(server, "work")
            before = await tools(http)
            await hangs_up("[conversation", "nothing changed")
            await hangs_up("[nonsense]\n", "nonsense")
            await hangs_up(None, "nothing changed")
            assert await tools(http) == before
            more = '[conversation.tools.hello]\nsource = "local"\ncommand = ["echo", "hello"]\nrun = "unattended"\n'
            file.write_text(CONFIG + more)  # K7: not what was trusted
            server.process.send_signal(signal.SIGHUP)
            await until(lambda: "keephold.toml has changed since you trusted it" in server.said.read_text())
            assert await tools(http) == before
            await hangs_up(CONFIG + more, "read again; a restart is needed for the code of Python tools")
            assert await tools(http) == before | {"hello"}
            async with connected(server.mcp, token=TOKEN) as client:
                said: Any = (await client.call_tool("hello", {})).content[0]
                assert said.text == "hello\n"
            await hangs_up(CONFIG + "[serve]\nport = 1\n", "a restart is needed for serve")
            assert (await http.get("/api/handles/work", params={"conversation": "mcp"})).json()["state"] == "running"


async def test_M7_it_serves_without_a_file_and_says_how_to_add_tools(tmp_path: Path) -> None:
    with served(tmp_path, None) as server:
        await until(lambda: f"there is no keephold.toml in {tmp_path} or above it" in server.said.read_text())
        async with server.client() as http:
            assert {"await", "create_wait_handle", "wait_for"} <= await tools(http)
            assert "run <code>keephold init</code>" in (await http.get("/tools")).text
            write_trusted(tmp_path / "keephold.toml", CONFIG, tmp_path / "state")
            server.process.send_signal(signal.SIGHUP)
            await until(lambda: "keephold.toml was read again" in server.said.read_text())
            assert "work" in await tools(http)


async def test_E6_two_servers_on_one_store_are_one_system(tmp_path: Path) -> None:
    one_place, other_place = tmp_path / "one", tmp_path / "other"
    one_place.mkdir()
    other_place.mkdir()
    with (
        served(one_place, CONFIG, env={}) as one,
        served(other_place, CONFIG, "--store", store_of(one), env={}) as other,
    ):
        token = Path(f"{one.store}-token").read_text().strip()
        assert one.made_token() == other.made_token() == token, "the token is the store's"
        bearer = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(base_url=one.base, headers=bearer, timeout=PATIENCE) as here,
            httpx2.AsyncClient(base_url=other.base, headers=bearer, timeout=PATIENCE) as there,
            connected(one.mcp, token=token) as client,
        ):
            told = Stream(there, "/api/events?after=0")
            await client.call_tool("work", {"action": "spawn", "id": "w", "directory": str(one_place)})
            await noted(one, "work")
            uid = await uid_of(here, "w")
            fact = (await there.get(f"/api/handles/{uid}")).json()
            assert (fact["state"], fact["owner"], fact["here"]) == ("running", "alive", False)
            assert (await there.get(f"/api/handles/{uid}/output")).json()["text"] == "working\n"
            ended_by = (await there.post(f"/api/handles/{uid}/abort", json={})).json()["ended_by"]
            assert ended_by == "abort" == (await here.get(f"/api/handles/{uid}")).json()["ended_by"]
            last = (await here.get("/api/stats")).json()["store"]["last_event"]
            await until(lambda: told.numbers[-1:] == [last])
            other.process.send_signal(signal.SIGTERM)
            await told.task
            assert told.numbers == list(range(1, last + 1))
        assert one.process.poll() is None


def store_of(server: Served) -> str:
    return f"sqlite:///{server.store}"


def refused(store: Path, *words: str, **env: str) -> str:
    """What it says when it does not start: all of this is found out before it serves, so it needs no process."""
    (store.parent / "keephold.toml").touch()
    options = ["--config", str(store.parent / "keephold.toml"), "--store", f"sqlite:///{store}", *words]
    result = CliRunner().invoke(main, ["serve", *options], env={"KEEPHOLD_TOKEN": None, **env})
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.output
    return result.output


def test_L1_what_keeps_it_from_starting_is_said(tmp_path: Path) -> None:
    store, token = tmp_path / "store.db", tmp_path / "store.db-token"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        told = refused(store, "--port", port)
        assert f"cannot listen on 127.0.0.1:{port}" in told and "add --replace" in told
    assert "fewer than 16" in refused(store, "--port", "0", KEEPHOLD_TOKEN="short")
    assert "needs a token" in refused(store, "--port", "0", "--host", "0.0.0.0")
    assert "--url must begin with" in refused(store, "--port", "0", "--url", "ftp://x")
    token.write_text("token-that-others-can-read\n")
    token.chmod(0o644)
    assert "can be read by others" in refused(store, "--port", "0")
    token.write_text("short\n")
    token.chmod(0o600)
    assert "no token of at least 16" in refused(store, "--port", "0")


def test_K5_the_token_of_a_store_is_made_once_and_is_its_owners(tmp_path: Path) -> None:
    file = tmp_path / "store.db-token"
    token = owner_token(file)
    assert owner_token(file) == token and len(token) >= 32
    assert [(each.name, each.stat().st_mode & 0o777) for each in tmp_path.iterdir()] == [("store.db-token", 0o600)]
    with pytest.raises(ConfigError, match="no token can be kept"):
        owner_token(tmp_path / "none" / "store.db-token")


async def test_L1_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    async with Runtime(store=f"sqlite:///{store}"):
        pass
    newer = sqlite3.connect(store)
    (version,) = newer.execute("PRAGMA user_version").fetchone()
    newer.execute(f"PRAGMA user_version = {version + 1}")
    newer.close()
    assert "newer" in await asyncio.to_thread(refused, store, "--port", "0")


async def test_L1_memory_serves_as_well_and_keeps_nothing(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG, "--store", "memory:", env={}) as server:
        token = server.made_token()
        assert not server.store.exists()
        async with httpx2.AsyncClient(
            timeout=PATIENCE, base_url=server.base, headers={"Authorization": f"Bearer {token}"}
        ) as http:
            async with connected(server.mcp, token=token) as client:
                await client.call_tool("approve", {"action": "spawn", "id": "a", "directory": str(tmp_path)})
            uid = await uid_of(http, "a")
            told, followed = Stream(http, "/api/events?after=0"), Stream(http, f"/api/handles/{uid}/follow")
            await until(lambda: bool(told.events and followed.events))
            server.process.send_signal(signal.SIGTERM)
            await asyncio.gather(told.task, followed.task)
            assert await ended(server) == 143


def test_where_it_listens_is_said_beside_its_public_address(tmp_path: Path) -> None:
    with served(tmp_path, '[serve]\nurl = "https://tools.example"\n') as server:
        server.stop()
    first, second, *_ = server.said.read_text().splitlines()
    assert first.startswith("keephold at https://tools.example/ (token")
    assert second == f"listening on http://127.0.0.1:{server.port}/"
