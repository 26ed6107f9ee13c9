"""Files that a repository or another user has put beside a store, where `keephold mcp` looks for its server (M3)."""

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mcp import Client
from mcp.client.stdio import stdio_client
from tests.mcp.serving import background, end_background
from tests.mcp.test_background import Project
from tests.patience import PATIENCE

from keephold.cli.background import Background
from keephold.config import Config
from keephold.control.server_discovery import announce, connect


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "own"
    directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "s"))
        server.listen()
        yield directory / "s"


def is_found(store: Path) -> bool:
    connection = connect(store, None, None)
    if connection is None:
        return False
    connection.close()
    return True


def test_M3_a_note_is_not_written_through_a_link(tmp_path: Path, listening: Path) -> None:
    store, victim = tmp_path / "s.db", tmp_path / "authorized_keys"
    victim.write_text("mine")
    (tmp_path / "s.db-server").symlink_to(victim)
    announce(store, str(listening), None, None)
    assert victim.read_text() == "mine" and is_found(store)


@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_M3_a_socket_that_others_can_replace_is_not_used(tmp_path: Path, listening: Path, mode: int) -> None:
    store = tmp_path / "s.db"
    announce(store, str(listening), None, None)
    assert is_found(store)
    listening.parent.chmod(mode)
    assert not is_found(store)


@pytest.mark.parametrize(
    "note",
    [
        "[" * 60_000,
        '{"config": "", "conversations": 5, "socket": "/s"}',
        '{"config": "", "conversations": [""], "socket": "a\\u0000b"}',
        '{"config": "", "conversations": [""], "socket": "\\ud800"}',
        '{"config": "", "conversations": [""], "socket": "\\u0000abstract"}',
    ],
)
def test_M3_garbage_is_not_a_note(tmp_path: Path, note: str) -> None:
    (tmp_path / "s.db-server").write_text(note)
    assert not is_found(tmp_path / "s.db")


def test_M3_pipes_and_links_are_not_notes(tmp_path: Path, listening: Path) -> None:
    store, file = tmp_path / "s.db", tmp_path / "s.db-server"
    os.mkfifo(file)  # to open one that nobody writes to would block
    assert not is_found(store)
    announce(store, str(listening), None, None)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert not is_found(store)


async def test_M3_the_log_is_not_written_through_a_link_and_the_client_is_served(tmp_path: Path) -> None:
    here, victim = Project(tmp_path), tmp_path / "victim"
    victim.write_bytes(b"x" * (2 << 20))
    (tmp_path / "store.db-server.log").symlink_to(victim)
    async with Client(stdio_client(here.host()), mode="auto") as client:
        assert (await client.list_tools()).tools
    assert victim.stat().st_size == 2 << 20 and background(tmp_path) == []


async def test_M3_a_client_that_writes_before_it_reads_does_not_block_for_good(tmp_path: Path) -> None:
    """In a store whose directory does not exist yet."""
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    requests: list[dict[str, Any]] = [{"id": 0, "method": "initialize", "params": about}]
    requests += [{"method": "notifications/initialized"}]
    requests += [{"id": n, "method": "ping", "params": {"_meta": {"x": "x" * 500}}} for n in range(1, 1000)]
    requests += [{"id": n, "method": "tools/list"} for n in range(1000, 1200)]
    requests += [{"id": n, "method": "ping", "params": {"_meta": {"x": "x" * 500}}} for n in range(1200, 3000)]
    host = Project(tmp_path).host()
    host.args[-1] = f"sqlite:///{tmp_path / 'new' / 'store.db'}"
    process = await asyncio.create_subprocess_exec(
        host.command, *host.args, env=host.env, cwd=host.cwd, stdin=-1, stdout=-1, stderr=-3, limit=1 << 20
    )
    assert process.stdin is not None and process.stdout is not None
    output = cast(asyncio.ReadTransport, process.stdout._transport)  # type: ignore[attr-defined]
    try:
        lines = b"".join(json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n" for each in requests)
        output.pause_reading()
        process.stdin.write(lines)
        async with asyncio.timeout(PATIENCE):
            await process.stdin.drain()
    finally:
        process.kill()
        output.resume_reading()
        await process.wait()
        assert background(tmp_path), "the background server has started in the new directory"
        await end_background(tmp_path)


async def test_M3_an_unused_server_ends_early_if_newer_ones_were_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that passes another trace at every start would leave a process for each call, for ten minutes."""
    store, slept = tmp_path / "s.db", list[float]()
    sleep = asyncio.sleep

    async def count(secs: float) -> None:
        slept.append(secs)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", count)
    server = Background(store, Config(), None)
    runtime: Any = SimpleNamespace(registry=SimpleNamespace(live=list))
    listening: Any = SimpleNamespace(clients=0, withdraw=lambda: None)

    async def idle_secs() -> float:
        slept.clear()
        await server.unneeded(runtime, listening, 600)
        assert not list(tmp_path.glob("*.lock"))  # nor does a file stay for each of them
        return sum(slept)

    announce(store, "/s", None, None, server.name)
    assert await idle_secs() > 600
    for number in range(3):
        announce(store, "/s", None, None, f"{number:016}")
        os.utime(tmp_path / f"s.db-server-{number:016}", (2e9, 2e9))
    assert await idle_secs() < 30
