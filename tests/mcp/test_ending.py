"""Servers that are told to end, and clients that hang up on one of their own: in order, and nothing is left (R6)."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from tests.mcp.clients import ERAS, MODERN, KnowsTasks, ask, connected, read, start_task, task_is
from tests.mcp.serving import Office, Process
from tests.patience import PATIENCE, until


def hello(number: int, method: str, **params: Any) -> bytes:
    """A request of 2025 as a line."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    if number:
        message["id"] = number
    return json.dumps(message).encode() + b"\n"


def begin(office: Office) -> "subprocess.Popen[bytes]":
    """A server on pipes, greeted."""
    said = (office.directory / "said").open("wb")
    with said:
        server = office.start(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
    assert server.stdin is not None and server.stdout is not None
    info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    server.stdin.write(hello(1, "initialize", **info) + hello(0, "notifications/initialized"))
    server.stdin.flush()
    assert b'"serverInfo"' in server.stdout.readline()
    return server


def send(server: "subprocess.Popen[bytes]", number: int, tool: str, **arguments: Any) -> None:
    assert server.stdin is not None
    server.stdin.write(hello(number, "tools/call", name=tool, arguments=arguments))
    server.stdin.flush()


def doze(office: Office, server: "subprocess.Popen[bytes]", *, spawned: bool) -> int:
    """A command of the server's; its pid."""
    more = {"action": "spawn", "id": "d"} if spawned else {}
    send(server, 2, "doze", pid=office.path("pid"), **more)
    end = time.monotonic() + PATIENCE
    while not (Path(office.path("pid")).exists() and (written := Path(office.path("pid")).read_text().strip())):
        assert time.monotonic() < end and server.poll() is None
        time.sleep(0.01)
    return int(written)


@pytest.mark.parametrize(
    ("how", "spawned"), [("hangs up", True), ("hangs up", False), ("SIGTERM", True), ("SIGINT", False)]
)
def test_R6_a_stdio_server_ends_with_its_client_and_ends_its_commands(office: Office, how: str, spawned: bool) -> None:
    server = begin(office)
    pid = doze(office, server, spawned=spawned)
    assert psutil.pid_exists(pid)
    assert server.stdin is not None
    if how == "hangs up":
        server.stdin.close()
    else:
        server.send_signal(getattr(signal, how))
    code = server.wait(PATIENCE)
    assert code == {"hangs up": 0, "SIGTERM": 143, "SIGINT": 130}[how]
    assert not psutil.pid_exists(pid)
    said = (office.directory / "said").read_text()
    assert said == f"using {office.directory / 'keephold.toml'}\n", said


def test_R6_a_client_that_closes_what_it_reads_ends_the_server(office: Office) -> None:
    """A broken pipe is the same hang-up."""
    server = begin(office)
    assert server.stdin is not None and server.stdout is not None
    server.stdout.close()
    send(server, 2, "echo", text="x")
    server.stdin.close()
    assert server.wait(PATIENCE) in (0, 1)
    assert "Traceback" not in (office.directory / "said").read_text()


def test_M1_nothing_but_the_protocol_is_on_standard_output(office: Office) -> None:
    """Not even what a client sends that is none."""
    server = begin(office)
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(b"nonsense\n{}\n[]\n" + b"[" * 50_000 + b"\n\xff\xfe\n")
    send(server, 5, "echo", text="still here")
    lines: list[bytes] = []
    while not lines or b"still here" not in lines[-1]:
        lines.append(server.stdout.readline())
        assert lines[-1].startswith(b'{"jsonrpc":"2.0"') or b'"jsonrpc"' in lines[-1], lines[-1]
    server.stdin.close()
    assert server.wait(PATIENCE) == 0


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
async def test_R6_an_http_server_ends_its_streams_in_order(office: Office, number: str) -> None:
    server = Process(office)
    async with connected(server.url, tasks=KnowsTasks()) as client:
        await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
        task = await start_task(client, "fragile", gate=office.path("never"))
        spawn = {"action": "spawn", "id": "d", "pid": office.path("pid")}
        await client.call_tool("doze", spawn)
        await until(lambda: Path(office.path("pid")).exists() and bool(Path(office.path("pid")).read_text()))
        pid = int(Path(office.path("pid")).read_text())
        waiting = asyncio.create_task(client.call_tool("wait_for", {"handleId": "h"}))
        lost = False
        async with client.listen(resource_subscriptions=["keephold://handles/h"]) as stream:
            os.kill(server.process.pid, getattr(signal, number))
            try:
                async with asyncio.timeout(PATIENCE):
                    async for _ in stream:
                        pass
            except SubscriptionLost:
                lost = True
        code = await asyncio.to_thread(server.process.wait, PATIENCE)
        assert code == 128 + getattr(signal, number)
        assert not lost, "the stream was cut and not closed"
        assert not psutil.pid_exists(pid)
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([waiting])
        with contextlib.suppress(MCPError, httpx2.HTTPError):  # answered, or its connection closed; it does not hang
            assert waiting.result().is_error
    said = server.said.read_text()
    assert "Traceback" not in said and len(said.splitlines()) == 2, said
    server.start()
    async with connected(server.url, tasks=KnowsTasks()) as client:
        ended = await task_is(client, task, "failed", "cancelled", "completed")
        assert ended["status"] != "completed" or ended["result"]["isError"] is True
        assert read(await client.call_tool("wait_for", {"handleId": "h", "timeoutMs": 0}))["status"] == "timeout"


async def test_R6_a_server_with_sessions_of_2025_ends_as_promptly(office: Office) -> None:
    """Their streams have no end of their own, and one call of theirs is open."""
    server = Process(office)
    try:
        async with connected(server.url, "legacy") as client, connected(server.url, "legacy") as idle:
            await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
            await ask(idle, "resources/subscribe", uri="keephold://handles")
            waiting = asyncio.create_task(client.call_tool("wait_for", {"handleId": "h"}))
            await until(lambda: server.connections() >= 6)  # three of clients, three of its own
            server.process.terminate()
            assert await asyncio.to_thread(server.process.wait, PATIENCE) == 143
            waiting.cancel()
            await asyncio.wait([waiting])
    except* httpx2.ConnectError:  # the client tries to resume its call, and to end its session
        pass
    said = server.said.read_text()
    assert "Traceback" not in said and len(said.splitlines()) == 2, said


@pytest.mark.parametrize("era", ERAS)
async def test_M3_a_handle_of_a_stdio_server_that_is_gone_is_in_the_store(era: str, office: Office) -> None:
    """What was parked goes on; what ran says how it ended."""
    with (office.directory / "said").open("w") as said:
        async with Client(stdio_client(office.stdio(), errlog=said), mode=era) as client:
            await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
            await client.call_tool("work", {"action": "spawn", "id": "w", "gate": office.path("never")})
        async with Client(stdio_client(office.stdio(), errlog=said), mode=era) as client:
            assert read(await client.call_tool("wait_for", {"handleId": "h", "timeoutMs": 0}))["status"] == "timeout"
            fetched = read(await client.call_tool("work", {"action": "fetch", "id": "w"}))
            assert fetched["state"] == "stopped" and fetched["ended_by"] == "shutdown"
    using = f"using {office.directory / 'keephold.toml'}\n"
    assert (office.directory / "said").read_text() == 2 * using


async def test_R6_a_second_server_on_the_port_says_so(office: Office) -> None:
    server = Process(office)
    second = office.start("--http", str(server.port), stderr=subprocess.PIPE)
    _, said = await asyncio.to_thread(second.communicate, None, PATIENCE)
    assert second.returncode not in (0, None)
    assert str(server.port).encode() in said and b"Traceback" not in said
    async with connected(server.url, MODERN) as client:
        assert read(await client.call_tool("list_wait_handles", {}))["handles"] == []
