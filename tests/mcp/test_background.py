"""The background server of `keephold mcp` (M3): a process for each session, or for each call, loses nothing."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.mcp.clients import ERAS, read
from tests.mcp.serving import background, end_background, environment, lives
from tests.patience import until
from tests.trusting import write_trusted

CONFIG = """
[conversation.tools.work]
source = "local"
command = ["sh", "-c", "echo $COLOUR; while [ ! -e gate ]; do sleep 0.05; done; echo done"]
run = "unattended"
spawn = { stateful = true }
"""


class Project:
    """A directory with a configuration and a store, in which hosts start `keephold mcp`."""

    def __init__(self, directory: Path, config: str = CONFIG) -> None:
        self.directory = directory
        write_trusted(directory / "keephold.toml", config, directory / "state")

    def host(self, **env: str) -> StdioServerParameters:
        words = ["-W", "error", "-m", "keephold", "mcp", "--store", f"sqlite:///{self.directory / 'store.db'}"]
        known = {**environment(self.directory), **env}
        return StdioServerParameters(command=sys.executable, args=words, env=known, cwd=self.directory)

    async def call(self, tool: str, era: str = "auto", env: dict[str, str] | None = None, **arguments: Any) -> Any:
        """The reply to a call in a process of its own."""
        async with Client(stdio_client(self.host(**(env or {}))), mode=era) as client:
            return read(await client.call_tool(tool, arguments))

    def servers(self) -> list[int]:
        return background(self.directory)

    def log(self) -> str:
        return (self.directory / "store.db-server.log").read_text()


@asynccontextmanager
async def project(directory: Path, config: str = CONFIG) -> AsyncIterator[Project]:
    made = Project(directory, config)
    try:
        yield made
    finally:
        await end_background(directory)
        assert "Traceback" not in made.log() and "never awaited" not in made.log(), made.log()


@pytest.mark.parametrize("era", ERAS)
async def test_M3_a_process_for_each_call_finds_what_another_has_spawned(tmp_path: Path, era: str) -> None:
    async with project(tmp_path) as here:
        assert await here.call("work", era, spawn="w") == {"id": "w", "state": "running"}
        (server,) = here.servers()
        (tmp_path / "gate").touch()
        waited = await here.call("await", era, all=["w"], timeout_secs=30)
        assert waited["completed"] == [{"id": "w", "state": "stopped", "result": "\ndone\n"}]
        assert here.servers() == [server]


async def test_M3_the_server_ends_after_its_last_client_and_handle(tmp_path: Path) -> None:
    async with project(tmp_path, f"[mcp]\nbackground_secs = 1\n{CONFIG}") as here:
        await here.call("work", spawn="w")
        (server,) = here.servers()
        await asyncio.sleep(2.5)  # longer than `background_secs`; a slow machine makes it longer still
        assert lives(server), here.log()
        (tmp_path / "gate").touch()
        await until(lambda: not lives(server))
        assert here.servers() == [] and not list(tmp_path.glob("*.m"))
        assert (await here.call("await", all=["w"], timeout_secs=30))["completed"][0]["result"] == "\ndone\n"


async def test_M3_many_clients_at_once_have_one_server(tmp_path: Path) -> None:
    async with project(tmp_path) as here:
        await asyncio.gather(*(here.call("work", spawn=f"w{number}") for number in range(6)))
        (server,) = here.servers()
        (tmp_path / "gate").touch()
        waited = await here.call("await", all=[f"w{number}" for number in range(6)], timeout_secs=30)
        assert len(waited["completed"]) == 6 and here.servers() == [server]


async def test_M3_another_environment_or_configuration_has_another_server(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    async with project(tmp_path) as here:
        for colour in ("red", "blue"):
            await here.call("work", env={"COLOUR": colour}, spawn=colour)
            waited = await here.call("await", env={"COLOUR": colour, "SHLVL": "7"}, all=[colour], timeout_secs=30)
            assert waited["completed"][0]["result"] == f"{colour}\ndone\n"
        write_trusted(tmp_path / "keephold.toml", CONFIG.replace("echo done", "echo changed"), tmp_path / "state")
        await here.call("work", spawn="green")
        waited = await here.call("await", all=["green"], timeout_secs=30)
        assert waited["completed"][0]["result"] == "\nchanged\n"


async def test_M3_a_server_that_was_killed_is_replaced(tmp_path: Path) -> None:
    async with project(tmp_path) as here:
        await here.call("work", spawn="w")
        (server,) = here.servers()
        os.kill(server, signal.SIGKILL)
        await until(lambda: not lives(server))
        ended = (await here.call("await", all=["w"], timeout_secs=30))["completed"][0]
        assert ended["state"] == "stopped" and here.servers() != [server]


async def test_M3_a_server_that_cannot_start_leaves_its_error_to_the_client(tmp_path: Path) -> None:
    tool = '[conversation.tools.f]\nsource = "python"\nfunction = "no_such_module_here:f"\n'
    here = Project(tmp_path, tool)
    host = here.host()
    process = await asyncio.create_subprocess_exec(
        host.command,
        *host.args,
        env=host.env,
        cwd=tmp_path,
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode and b"there is no module `no_such_module_here`" in said and here.servers() == []


async def test_M3_keephold_spawn_starts_a_tool_in_the_background_server(tmp_path: Path) -> None:
    counting = CONFIG.replace("echo $COLOUR", "echo {{ tool.arguments.count + 1 }} {{ tool.arguments.text }}")
    parameters = "parameters.count = {type = 'integer', required = true}\nparameters.text = {required = true}\n"
    async with project(tmp_path, counting + parameters) as here:

        async def run(*words: str) -> tuple[int | None, str]:
            argv = [sys.executable, "-m", "keephold", *words, "--store", f"sqlite:///{tmp_path / 'store.db'}"]
            pipe = asyncio.subprocess.PIPE
            known = environment(tmp_path)
            started = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe, cwd=tmp_path, env=known)
            out, err = await started.communicate()
            return started.returncode, (out + err).decode()

        assert await run("spawn", "work", "count=1", "text=2", "--id", "w") == (0, "w: running\n")
        (server,) = here.servers()
        code, refused = await run("spawn", "work", "count=1", "text=2", "--id", "w")
        assert code == 2 and "`w`" in refused and "Try:" not in refused  # how a model would call it
        code, refused = await run("spawn", "work", "count=many", "text=2")
        assert code == 1 and "`count` must be an integer" in refused
        for tool in ("sleep", "wrok"):
            code, refused = await run("spawn", tool, "durationMs=1")
            assert code == 2 and f"`{tool}` cannot be spawned on this server; tools that can: `work`" in refused
        code, refused = await run("spawn", "work", "count=1", "count=2", "text=2")
        assert code == 2 and "`count` is given twice" in refused
        code, refused = await run("spawn", "work", "count=1", "text=2", "--id", "")
        assert code == 2 and "handle id" in refused
        (tmp_path / "gate").touch()
        assert await run("spawn", "work", "count=1", "text=2", "--id", "v", "--wait") == (0, "v: ok: done\n")
        assert await run("logs", "w") == (0, "2 2\ndone\n")
        assert here.servers() == [server]
