"""Servers under test: `keephold mcp` as a process of its own, and one in the test's loop that can be looked into."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from mcp.client.stdio import StdioServerParameters
from tests.mcp.clients import TOKENS
from tests.mcp.office import CONFIG, TOOLS
from tests.patience import PATIENCE, until
from tests.ports import free_port
from tests.trusting import write_trusted

from keephold import Runtime
from keephold.mcp.http import http_app
from keephold.mcp.server import Server
from keephold.store.base import Store
from keephold.tools.base import Tool
from keephold.turn.prompts import Prompter

ROOT = Path(__file__).parents[2]


def environment(directory: Path) -> dict[str, str]:
    """That of a user who has set nothing and has a state directory of their own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("KEEPHOLD_")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_STATE_HOME": str(directory / "state"),
    }


def background(directory: Path) -> list[int]:
    """The background servers of `keephold mcp` on stores in that directory or below."""
    notes = (path for path in directory.rglob("*-server-*") if path.suffix != ".lock")
    return [json.loads(note.read_text())["pid"] for note in notes]


def lives(pid: int) -> bool:
    with suppress(ChildProcessError):  # the process of the tests inherits orphans
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    return Path(f"/proc/{pid}").exists()


async def end_background(directory: Path) -> None:
    servers = background(directory)
    for pid in servers:
        os.kill(pid, signal.SIGTERM)
    await until(lambda: not any(lives(pid) for pid in servers))


class Office:
    """A directory with a configuration and a store, and the commands that serve it."""

    def __init__(self, directory: Path, more: str = "") -> None:
        self.directory = directory
        write_trusted(directory / "keephold.toml", CONFIG + more, directory / "state")
        self.store = f"sqlite:///{directory / 'store.db'}"
        self._running: list[subprocess.Popen[bytes]] = []

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def open(self, gate: str) -> None:
        """Let whoever waits at it through."""
        (self.directory / gate).touch()

    def command(self, *words: str) -> list[str]:
        # -W error: a coroutine that nobody awaited is a defect
        return [sys.executable, "-W", "error", "-m", "keephold", "mcp", "--store", self.store, *words]

    def stdio(self) -> StdioServerParameters:
        program, *words = self.command()
        return StdioServerParameters(command=program, args=words, env=environment(self.directory), cwd=self.directory)

    def start(self, *words: str, stderr: Any = None, **options: Any) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            self.command(*words),
            cwd=self.directory,
            env={**environment(self.directory), **options.pop("env", {})},
            stderr=subprocess.DEVNULL if stderr is None else stderr,
            **options,
        )
        self._running.append(process)
        return process

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


class Process:
    """`keephold mcp --http` on a port that stays the same over restarts. What it says is in a file."""

    def __init__(self, office: Office, *words: str, env: Mapping[str, str] = {}) -> None:
        self._office = office
        self._words = words
        self._env = env
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.base}/mcp"
        self.said = office.directory / f"said-{self.port}"
        self.start()
        if not words and not env:
            TOKENS[self.url] = self.token

    def start(self) -> None:
        """Start it, and wait until it serves."""
        with self.said.open("ab") as said:
            self.process = self._office.start("--http", str(self.port), *self._words, stderr=said, env=self._env)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.01)
        raise AssertionError(f"the server did not start: {self.said.read_text()}")

    @property
    def token(self) -> str:
        """The token that it has made, which is in no place but its file."""
        return Path(f"{self._office.store.removeprefix('sqlite:///')}-token").read_text().strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def connections(self) -> int:
        """How many sockets it has open."""
        return sum(_is_socket(entry) for entry in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def cpu_secs(self) -> float:
        """How long it has computed, by now."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Here:
    """A server in this process, over HTTP."""

    runtime: Runtime
    server: Server
    url: str

    @property
    def base(self) -> str:
        return self.url.removesuffix("/mcp")

    def idle(self) -> bool:
        """Whether nothing is left of calls, streams and subscriptions that are over."""
        live = self.runtime.registry.live()
        waiting = any(handle.watchers for handle in live)
        followed = any(self.runtime.registry.followers.values())
        subscriptions = self.server.subscriptions
        return not (self.runtime.batches or waiting or followed or subscriptions._streams or subscriptions._sessions)


@asynccontextmanager
async def serving(
    *,
    tools: Iterable[Tool] = TOOLS,
    store: str | Store = "memory:",
    tokens: Mapping[str, str] | None = None,
    prompter: Prompter | None = None,
    **options: Any,
) -> AsyncIterator[Here]:
    """Serve these tools and all built-ins over HTTP, in this loop."""
    options.setdefault("builtins", ["*"])
    async with Runtime(tools, store=store, prompter=prompter) as runtime:
        server = Server(runtime, **options)
        config = uvicorn.Config(http_app(server, tokens=tokens), log_level="critical", ws="none")
        with socket.create_server(("127.0.0.1", 0)) as listening:
            web = uvicorn.Server(config)
            serving = asyncio.create_task(web.serve(sockets=[listening]))
            await until(lambda: web.started)
            try:
                yield Here(runtime, server, f"http://127.0.0.1:{listening.getsockname()[1]}/mcp")
            finally:
                await server.close()
                web.should_exit = True
                async with asyncio.timeout(PATIENCE):
                    await serving
                await _end_watcher()


async def _end_watcher() -> None:
    """The library that writes event streams keeps a task for the loop's whole life; a test's loop ends sooner."""
    for task in asyncio.all_tasks():
        if getattr(task.get_coro(), "__name__", "") == "_shutdown_watcher":
            task.cancel()
            await asyncio.wait([task])


def _is_socket(entry: Path) -> bool:
    try:
        return "socket:" in str(entry.readlink())
    except FileNotFoundError:  # it was closed meanwhile
        return False
