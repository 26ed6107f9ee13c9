"""Servers that come late, go away, or never come (M6, R2, K5)."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import mcp.types as types
import pytest
from mcp import Client
from tests.e2e.mcp_servers import Server, names, serving, start_http, using
from tests.patience import PATIENCE, until
from tests.ports import free_port

import keephold
from keephold import Runtime, ToolCall
from keephold.mcp.server import Server as KeepholdServer
from keephold.schema.shared import HANDLE_TOOLS
from keephold.tools.remote.server import McpServer


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:  # gone before it was opened, or before it was read
        return False


async def test_M6_a_server_that_is_not_there_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    missing = keephold.mcp_server("missing", command=["/no/such/program"], env={"TOKEN": "hunter2-hunter2"})

    @keephold.tool
    async def own() -> str:
        return "here"

    async with Runtime([own], servers=[missing]) as rt, rt.turn("main") as turn:
        assert (await using(turn, "own")).result == "here"
        assert await rt.connected() is False
        unknown = await using(turn, "theirs")
        assert unknown.code == "unknown_tool" and "`missing`" in unknown.result
    assert "No such file or directory" in caplog.text and "hunter2" not in caplog.text


async def test_M6_a_program_that_fails_is_quoted_without_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    script = "import os, sys; sys.exit('no access with ' + os.environ['TOKEN'])"
    broken = keephold.mcp_server("broken", command=[sys.executable, "-c", script], env={"TOKEN": "hunter2-hunter2"})
    async with Runtime(servers=[broken]) as rt:
        assert await rt.connected() is False
    assert "its program said: no access with ***" in caplog.text and "hunter2" not in caplog.text


async def test_M6_a_server_that_says_nothing_is_given_up_after_its_timeout() -> None:
    silent = keephold.mcp_server("silent", command=["sleep", "300"], timeout_secs=0.3)
    async with Runtime(servers=[silent]) as rt:
        assert await rt.connected() is False


async def test_M6_a_configured_tool_of_a_server_that_is_away_fails_with_a_transient_error(tmp_path: Path) -> None:
    file = tmp_path / "keephold.toml"
    file.write_text(
        '[mcp.servers.away]\ncommand = "/no/such/program"\nstateful = true\n'
        '[conversation.tools.theirs]\nsource = "mcp"\nserver = "away"\nrun = "unattended"\n'
    )
    async with Runtime(config=file) as rt, rt.turn("main") as turn:
        assert "theirs" not in names(rt)  # nobody knows what it takes
        failed = await using(turn, "theirs", anything=1)
        assert failed.code == "mcp_disconnected"
        assert failed.result.startswith("MCP server `away` cannot be reached: /no/such/program: No such file")
        handle = (await using(turn, "theirs", action="spawn", id="t")).result
        assert json.loads(handle)["transient"] is True


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_M6_a_program_that_dies_in_a_call_gives_a_transient_error_and_is_started_again(
    era: str, tmp_path: Path
) -> None:
    with serving(tmp_path, "stdio", era) as server:
        async with Runtime(servers=[server.spec()]) as rt, rt.turn("main") as turn:
            await rt.connected()
            calls = [
                ToolCall(id="1", name="slow", arguments={"file": str(tmp_path / "never")}),
                ToolCall(id="2", name="die", arguments={}),
            ]
            for response in await turn.run(calls):
                assert response.is_error and response.code == "mcp_disconnected"
                assert "MCP server `other` cannot be reached" in response.result
            again = await using(turn, "echo", text="back")
            assert again.result == "back"
            assert [each.kind for each in again.notifications] == ["mcp.disconnected", "mcp.reconnected"]


async def test_R5_a_call_that_lost_its_server_is_tried_again_if_that_is_safe(tmp_path: Path) -> None:
    with serving(tmp_path, "stdio", "modern") as server:
        file = tmp_path / "keephold.toml"
        file.write_text(
            f"""
            [mcp.servers.other]
            command = {json.dumps(list(server.spec().command))}
            env = {{ MCP_NOTES = {json.dumps(str(server.notes))} }}
            [conversation.tools.die_once]
            source = "mcp"
            server = "other"
            run = "unattended"
            retry.policy = "safe"
            """
        )
        async with Runtime(config=file) as rt, rt.turn("main") as turn:
            await rt.connected()
            assert (await using(turn, "die_once", file=str(tmp_path / "died"))).result == "alive"


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_M6_an_http_server_that_is_started_anew_is_found_again(era: str, tmp_path: Path) -> None:
    server, port = Server(tmp_path, era), free_port()
    server.url = f"http://127.0.0.1:{port}/mcp"
    process = start_http(server, port)
    try:
        async with Runtime(servers=[server.spec()]) as rt, rt.turn("main") as turn:
            await rt.connected()
            never = {"file": str(tmp_path / "never")}
            call = asyncio.create_task(turn.run([ToolCall(id="1", name="slow", arguments=never)]))
            await until(lambda: "slow began" in server.noted())
            process.kill()
            process.wait()
            (response,) = await call
            assert response.is_error and response.code == "mcp_disconnected"
            assert (await using(turn, "echo", text="x")).code == "mcp_disconnected"
            process = start_http(server, port)
            async with asyncio.timeout(PATIENCE):
                while (await using(turn, "echo", text="x")).result != "x":  # noqa: ASYNC110 (it takes its time)
                    await asyncio.sleep(0.1)
    finally:
        process.kill()
        process.wait()


async def test_M6_a_session_that_the_server_has_forgotten_is_made_again(tmp_path: Path) -> None:
    server, port = Server(tmp_path, "legacy"), free_port()
    server.url = f"http://127.0.0.1:{port}/mcp"
    process = start_http(server, port)
    try:
        async with Runtime(servers=[server.spec()]) as rt, rt.turn("main") as turn:
            await rt.connected()
            process.kill()
            process.wait()
            process = start_http(server, port)  # nobody has called meanwhile
            first = await using(turn, "echo", text="x")
            assert first.code == "mcp_disconnected"
            assert (await using(turn, "echo", text="x")).result == "x"
    finally:
        process.kill()
        process.wait()


async def test_M6_an_error_of_a_proxy_is_transient(tmp_path: Path) -> None:
    """A 503 without JSON-RPC, in the middle of things."""
    broken, relays = False, set[asyncio.Task[None] | None]()
    with serving(tmp_path, "http", "modern") as server:
        assert server.url is not None
        target = server.url

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            relays.add(asyncio.current_task())
            port = int(target.split(":")[2].split("/")[0])
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)

            async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, request: bool) -> None:
                while data := await source.read(65536):
                    if request and broken and b"POST" in data:
                        writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                        break
                    sink.write(data)
                writer.close()
                to_writer.close()

            await asyncio.gather(pump(reader, to_writer, True), pump(to_reader, writer, False), return_exceptions=True)

        proxy = await asyncio.start_server(relay, "127.0.0.1", 0)
        async with proxy:
            server.url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/mcp"
            async with Runtime(servers=[server.spec()]) as rt, rt.turn("main") as turn:
                await rt.connected()
                broken = True
                failed = await using(turn, "echo", text="x")
                broken = False
                assert failed.is_error and failed.code == "mcp_disconnected"
                assert (await using(turn, "echo", text="x")).result == "x"
            await asyncio.gather(*(relay for relay in relays if relay is not None))


async def test_R2_a_server_and_what_it_forked_end_with_the_runtime(tmp_path: Path) -> None:
    with serving(tmp_path, "stdio", "modern") as server:
        async with Runtime(servers=[server.spec()]) as rt, rt.turn("main") as turn:
            await rt.connected()
            forked = int((await using(turn, "fork")).result)
            assert alive(server.pid) and alive(forked)
        assert not alive(server.pid) and not alive(forked)


async def test_R2_a_server_dies_with_a_runtime_that_was_killed(tmp_path: Path) -> None:
    with serving(tmp_path, "stdio", "modern") as server:
        script = f"""
            import asyncio, sys
            sys.path.insert(0, {str(Path.cwd())!r})
            from pathlib import Path
            from tests.e2e.mcp_servers import Server, using
            from keephold import Runtime

            async def main():
                async with Runtime(servers=[Server(Path({str(tmp_path)!r}), "stdio", "modern").spec()]) as rt:
                    await rt.connected()
                    async with rt.turn("main") as turn:
                        print((await using(turn, "fork")).result, flush=True)
                        await asyncio.Event().wait()

            asyncio.run(main())
        """
        program = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE)
        assert program.stdout is not None
        with program.stdout:
            forked = int(await asyncio.to_thread(program.stdout.readline))
        assert alive(server.pid) and alive(forked)
        os.kill(program.pid, signal.SIGKILL)
        program.wait()
        await until(lambda: not alive(server.pid) and not alive(forked))


async def test_M6_names_that_clash_belong_to_the_first_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @keephold.tool
    async def echo(text: str) -> str:
        return f"ours: {text}"

    with serving(tmp_path, "stdio", "modern") as server:
        one: McpServer = server.spec("one", tools=["echo", "add"])
        other = server.spec("other", tools=["echo", "add"], prefix="other_")
        async with Runtime([echo], servers=[one, other]) as rt, rt.turn("main") as turn:
            assert await rt.connected()
            assert names(rt) - {*HANDLE_TOOLS} == {"await", "read_output", "echo", "add", "other_echo", "other_add"}
            assert (await using(turn, "echo", text="x")).result == "ours: x"
            assert (await using(turn, "other_echo", text="x")).result == "x"
    assert "its tool `echo` is left out: there is another tool of that name; set `prefix`" in caplog.text


async def test_M6_settings_of_single_tools_hold(tmp_path: Path) -> None:
    with serving(tmp_path, "stdio", "modern") as server:
        spec = server.spec()
        file = tmp_path / "keephold.toml"
        file.write_text(
            f"""
            [conversation.tools."*"]
            run = "unattended"
            [mcp.servers.other]
            command = {json.dumps(spec.command[0])}
            args = {json.dumps(spec.command[1:])}
            env = {{ MCP_NOTES = {json.dumps(str(server.notes))} }}
            tools = ["echo", "add", "environment"]
            stateful = true
            [conversation.tools.say]
            source = "mcp"
            server = "other"
            tool = "echo"
            description = "Ours."
            spawn.stateful = false
            [conversation.tools.add]
            source = "mcp"
            server = "other"
            run = "ask"
            """
        )
        async with Runtime(config=file) as rt, rt.turn("main") as turn:
            assert await rt.connected()
            assert names(rt) - {*HANDLE_TOOLS} == {"await", "read_output", "say", "add", "environment"}
            (say,) = [tool for tool in rt.tools() if tool["name"] == "say"]
            assert say["description"] == "Ours." and set(say["parameters"]["properties"]) == {"text"}
            assert (await using(turn, "say", text="hello")).result == "hello"
            assert (await using(turn, "add", a=1, b=2)).code == "permission_denied"
            os.environ["KEEPHOLD_TEST_INHERITED"] = "1"
            assert (await using(turn, "environment", name="KEEPHOLD_TEST_INHERITED")).result == "(none)"


async def test_M7_a_mute_server_delays_no_list_and_tools_that_come_are_announced(tmp_path: Path) -> None:
    changes = asyncio.Event()

    async def told(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changes.set()

    with serving(tmp_path, "stdio", "modern") as server:
        mute = keephold.mcp_server("mute", command=["sleep", "1000"])
        async with (
            Runtime(servers=[mute, server.spec()]) as rt,
            Client(KeepholdServer(rt), mode="legacy", message_handler=told) as client,
        ):
            listing = asyncio.create_task(client.list_tools())
            for _ in range(200):  # passes of the loop: no server can answer in them, and no timeout expires
                await asyncio.sleep(0)
            assert "echo" not in {tool.name for tool in listing.result().tools}
            await changes.wait()
            assert "echo" in {tool.name for tool in (await client.list_tools()).tools}


async def test_M6_a_server_that_has_only_the_old_transport_is_refused_clearly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    process = start_http(Server(tmp_path), port, "sse")
    try:
        async with Runtime(servers=[keephold.mcp_server("old", url=f"http://127.0.0.1:{port}/sse")]) as rt:
            assert not await rt.connected()
    finally:
        process.kill()
        process.wait()
    assert "speaks only the HTTP+SSE transport of protocol 2024-11-05, which is not supported" in caplog.text


async def test_M6_a_program_learns_the_directory_it_works_in_and_a_service_does_not(tmp_path: Path) -> None:
    for kind in ("stdio", "http"):
        with serving(tmp_path, kind, "legacy") as server:
            options = {"cwd": str(tmp_path)} if kind == "stdio" else {}
            async with Runtime(servers=[server.spec(**options)]) as rt, rt.turn("main") as turn:
                await rt.connected()
                said = await using(turn, "roots")
                assert (said.result == tmp_path.as_uri()) is (kind == "stdio")
