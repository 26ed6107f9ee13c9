"""Servers as hosts start them: anywhere, without a file, several beside each other (M5, M7)."""

import asyncio
import contextlib
import contextvars
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.mcp.clients import ERAS, read, texts
from tests.mcp.office import work
from tests.mcp.serving import end_background, environment

from keephold import Runtime
from keephold.ids import check_conversation, root_of
from keephold.mcp.hosts import HOST, ROOTS_SECS, Host
from keephold.mcp.server import Server
from keephold.testing import VirtualClock


class Desk:
    """A client that has started the server there, as far as the server can tell: in process, a request is served in the
    context of its sender."""

    def __init__(self, client: Client, host: Host) -> None:
        self._client = client
        self._context = contextvars.copy_context()
        self._context.run(HOST.set, host)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> mcp_types.CallToolResult:
        calling = asyncio.get_running_loop().create_task(self._client.call_tool(name, arguments), context=self._context)
        return await calling


@contextlib.asynccontextmanager
async def host(
    server: Server, cwd: str, name: str = "desk", era: str = "legacy", **options: Any
) -> AsyncIterator[Desk]:
    info = mcp_types.Implementation(name=name, version="1")
    async with Client(server, mode=era, client_info=info, **options) as client:
        yield Desk(client, Host(cwd, server.conversation))


def conversations(runtime: Runtime) -> set[str]:
    return {handle.conversation for handle in runtime.registry.live()}


async def spawn(client: Desk, gate: Path, id: str = "w") -> Any:
    return read(await client.call_tool("work", {"action": "spawn", "id": id, "gate": str(gate)}))


@pytest.mark.parametrize("era", ERAS)
async def test_M7_two_hosts_do_not_meet(era: str, tmp_path: Path) -> None:
    """Neither in ids nor in notifications; one that comes back finds its own."""
    async with Runtime([work]) as runtime:
        server = Server(runtime, builtins=["*"])
        async with host(server, "/one", era=era) as one, host(server, "/two", era=era) as two:
            assert (
                (await spawn(one, tmp_path / "a"))["state"] == (await spawn(two, tmp_path / "b"))["state"] == "running"
            )
            (tmp_path / "a").touch()
            waited = await one.call_tool("await", {"all": ["w"]})
            assert read(waited)["completed"][0]["result"].endswith("worked at a")
            assert len(texts(await two.call_tool("list_wait_handles", {}))) == 1  # no notification of the other's
        async with host(server, "/two", era=era) as two, host(server, "/two", name="other", era=era) as other:
            assert read(await other.call_tool("list_wait_handles", {}))["handles"] == []
            (tmp_path / "b").touch()
            assert read(await two.call_tool("await", {"all": ["w"]}))["completed"]


async def test_M7_a_named_conversation_is_shared_on_purpose(tmp_path: Path) -> None:
    async with Runtime([work]) as runtime:
        server = Server(runtime, conversation="team", builtins=["*"])
        async with host(server, "/one") as one, host(server, "/two", name="other") as two:
            await spawn(one, tmp_path / "gate")
            assert conversations(runtime) == {"team"}
            (tmp_path / "gate").touch()
            assert read(await two.call_tool("await", {"all": ["w"]}))["completed"]


async def test_M7_the_first_root_counts_where_the_directory_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/people/somebody")

    async def roots(context: Any) -> mcp_types.ListRootsResult:
        return mcp_types.ListRootsResult(roots=[mcp_types.Root(uri="file:///my%20project/")])

    found: list[str] = []
    for cwd in ("/", "/people/somebody", "/my project"):
        async with Runtime([work]) as runtime:
            async with host(Server(runtime), cwd, list_roots_callback=roots) as client:
                await spawn(client, tmp_path / "never")
            found += conversations(runtime)
    assert len(found) == 3 and len(set(found)) == 1, found


async def test_M7_a_client_that_does_not_name_its_roots_is_waited_for_a_second(
    clock: VirtualClock, tmp_path: Path
) -> None:
    async def never(context: Any) -> mcp_types.ListRootsResult:
        await asyncio.Event().wait()
        raise AssertionError("it is cancelled before")

    async with Runtime([work], clock=clock) as runtime:
        server, began = Server(runtime), asyncio.get_running_loop().time()
        async with host(server, "/", list_roots_callback=never) as client:
            both = asyncio.gather(spawn(client, tmp_path / "never", "a"), spawn(client, tmp_path / "never", "b"))
            assert [each["state"] for each in await both] == ["running", "running"]
        assert asyncio.get_running_loop().time() - began < ROOTS_SECS + 2  # settling takes up to one more (C4)
        (mine,) = conversations(runtime)
        assert re.fullmatch("mcp:desk:[0-9a-f]{12}", mine)


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "Claude: Desk/top", "mcp:alice", f"x/agent@{'0' * 32}", "\u202eevil\u200b", "a" * 500,
     "\u0430dmin", "\ud800", "編集者", "../..", "\n\x00\x1b[2J"],
)  # fmt: skip
def test_M7_a_strangers_name_makes_a_valid_conversation(name: str) -> None:
    """And never that of a principal, of a sub-agent, or of an owner."""

    class Session:
        client_params = mcp_types.InitializeRequestParams(
            protocol_version="2025-11-25",
            capabilities=mcp_types.ClientCapabilities(),
            client_info=mcp_types.Implementation(name=name, version="1"),
        )

    class Request:
        session = Session

    made = Host("/one").conversation("mcp", Request)  # type: ignore[arg-type]
    check_conversation(made)
    assert root_of(made) == made and made.count(":") == 2 and len(made) <= 64
    assert re.fullmatch("[0-9a-f]{12}", made.rpartition(":")[2])


async def test_K9_a_host_decides_for_itself_and_a_principal_does_not() -> None:
    async with Runtime() as runtime:
        calls = Server(runtime).calls
        assert calls.decides("mcp") and calls.decides("mcp:desk:0123456789ab")
        assert not calls.decides("mcp:alice") and not calls.decides("mcp:0123456789ab")
        assert not calls.decides("other:desk:0123456789ab") and not calls.decides("other")


@pytest.mark.parametrize("era", ERAS)
async def test_M7_a_host_starts_it_in_the_root_without_a_file(era: str, tmp_path: Path) -> None:
    """With what hosts give it: a home, a path and no more. Its log says what was looked for."""
    path = environment(tmp_path)
    env = {"HOME": str(tmp_path), "PATH": path["PATH"], "PYTHONPATH": path["PYTHONPATH"]}
    started = StdioServerParameters(command=sys.executable, args=["-m", "keephold", "mcp"], env=env, cwd="/")
    with (tmp_path / "log").open("w") as log:
        async with Client(stdio_client(started, errlog=log), mode=era) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"await", "sleep", "create_wait_handle", "wait_for"} <= names
            made = await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
            assert json.loads(texts(made)[0])["status"] == "pending"
    await end_background(tmp_path)
    assert "there is no keephold.toml in / or above it, nor in ~/.config/keephold" in (tmp_path / "log").read_text()
