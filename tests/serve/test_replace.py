"""`keephold serve --replace`: a new server takes the place of a running one, and nothing is refused, lost or repeated."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.durable.lives import ok, until
from tests.mcp.clients import ERAS, connected
from tests.serve.lasting import CONFIG as LASTING
from tests.serve.serving import PATIENCE, TOKEN, Served, environment, serve, served
from tests.serve.streams import listening
from tests.soak import tries

CONFIG = (
    LASTING
    + """
[conversation.tools.echo]
source = "local"
command = ["printf", "%s", "{{ tool.arguments.text }}"]
parameters = { text = { type = "string" } }
run = "unattended"

[conversation.tools.counts]
source = "local"
command = ["sh", "-c", "while read line; do echo got $line; done; echo over"]
run = "unattended"
[conversation.tools.counts.spawn]
actions = ["spawn", "fetch", "apply", "abort"]
stdin = true
[conversation.tools.counts.spawn.lifecycle]
on_turn_end = "keep"
"""
)


class Load:
    """Clients that ask without a pause, and must always be answered."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self.answered: dict[str, int] = {}
        self._over = asyncio.Event()

    def _count(self, what: str) -> None:
        self.answered[what] = self.answered.get(what, 0) + 1

    async def pages(self) -> None:
        """One connection, kept open."""
        async with self._server.client() as http:
            while not self._over.is_set():
                assert (await http.get("/api/handles")).status_code == 200
                self._count("kept")

    async def connections(self) -> None:
        """A connection for each request."""
        while not self._over.is_set():
            async with self._server.client() as http:
                assert (await http.get("/healthz")).status_code == 200
                self._count("new")

    async def calls(self, era: str) -> None:
        """Calls of an MCP client, which has one session all the time."""
        async with connected(self._server.mcp, token=TOKEN, mode=era) as client:
            for number in itertools.count():
                if self._over.is_set():
                    return
                said: Any = (await client.call_tool("echo", {"text": str(number)})).content[0]
                assert said.text == str(number)
                self._count(era)

    async def completions(self) -> None:
        """Calls whose results come from outside: each is completed once."""
        async with self._server.client() as http:
            for number in itertools.count():
                if self._over.is_set():
                    return
                made = await http.post("/api/tools/create_wait_handle", json={"arguments": {}})
                assert made.status_code == 200, (number, made.text)
                self._count("completions")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        works = [self.pages(), self.connections(), *(self.calls(era) for era in ERAS)]
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
            yield
            self._over.set()

    async def goes_on(self) -> None:
        """Wait until every kind of client was answered ten times more."""
        before = dict(self.answered)
        await until(lambda: all(self.answered.get(each, 0) >= before.get(each, 0) + 10 for each in self.kinds))

    kinds = ("kept", "new", *ERAS)


async def replaced(server: Served, *words: str) -> "subprocess.Popen[bytes]":
    return await asyncio.to_thread(server.replace, *words)


async def ended(process: "subprocess.Popen[bytes]") -> int:
    return await asyncio.to_thread(process.wait, PATIENCE)


async def test_R6_a_server_is_replaced_under_load_and_no_request_is_refused(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG) as server:
        load = Load(server)
        async with listening(server) as listener, load.running():
            for _ in range(tries(2, soak=20)):
                await load.goes_on()
                before = await replaced(server)
                assert await ended(before) == 0, "nothing is left there"
            await load.goes_on()
        assert listener.connections > 1 and listener.ids == list(range(1, len(listener.ids) + 1))
