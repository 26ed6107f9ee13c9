"""Real MCP servers for the tests of using them: a program on pipes or over HTTP, in either era, and what it noted."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE
from tests.ports import free_port

import keephold
from keephold import Response, Runtime, ToolCall, Turn
from keephold.tools.remote.server import McpServer

PROGRAM = str(Path(__file__).with_name("mcp_program.py"))


class Server:
    """A server, reached in one way, and the file of what it did."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.notes = directory / "notes"
        self.words = words
        self.env = {"MCP_NOTES": str(self.notes), "SECRET": "hunter2-hunter2"}
        self.url: str | None = None

    def spec(self, name: str = "other", **options: Any) -> McpServer:
        options = {"run": "unattended", "stateful": True, **options}
        if self.url is not None:
            return keephold.mcp_server(name, url=self.url, **options)
        command = [sys.executable, PROGRAM, *self.words]
        return keephold.mcp_server(name, command=command, env=self.env, **options)

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    @property
    def pid(self) -> int:
        """Of the program that was started last."""
        return int([line for line in self.noted() if line.startswith("started ")][-1].split()[1])


@contextmanager
def serving(directory: Path, kind: str, era: str, *words: str) -> Iterator[Server]:
    """A server of that kind (`stdio`, `http`) and era (`modern`, `legacy`)."""
    if kind == "stdio":
        yield Server(directory, "stdio", era, *words)
        return
    server = Server(directory, era, *words)
    port = free_port()
    server.url = f"http://127.0.0.1:{port}/mcp"
    process = start_http(server, port)
    try:
        yield server
    finally:
        process.kill()
        process.wait()


def start_http(server: Server, port: int, transport: str = "http") -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, PROGRAM, transport, str(port), *server.words],
        env={**os.environ, **server.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.02)
    raise AssertionError("the HTTP server did not start")


async def using(turn: Turn, tool: str, /, **arguments: Any) -> Response:
    """The response to one call."""
    (response,) = await turn.run([ToolCall(id="1", name=tool, arguments=arguments)])
    return response


def names(rt: Runtime) -> set[str]:
    return {tool["name"] for tool in rt.tools()}
