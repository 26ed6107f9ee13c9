"""A client of `keephold acp` that does anything, drawn from a generator: over pipes, line by line, by hand."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import psutil
from tests.acp.watching import OPENING, Id, Message, Watch
from tests.patience import PATIENCE

CONFIG = """
[conversation.tools.acts]
source = "local"
run = "unattended"
command = ["sh", "-c", "echo {{ tool.arguments.word }} >> EFFECTS; sleep {{ tool.arguments.secs }}"]
parameters.word = { type = "string", required = true }
parameters.secs = { type = "string", required = true }

[conversation.tools.careful]
source = "local"
command = ["sh", "-c", "echo {{ tool.arguments.word }} >> EFFECTS"]
parameters.word = { type = "string", required = true }
"""


class Wild:
    """One process of the agent, and a client that is connected to it."""

    def __init__(self, rng: Random, watch: Watch, place: Path) -> None:
        self.rng, self.watch, self.place = rng, watch, place
        self.pid = 0
        self._buffer = b""
        self._ids = 0
        self._more = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended = False

    # The process

    async def start(self, server: int, door: str, config: Path) -> None:
        """A fork of the warm process with that pid."""
        before = {child.pid for child in psutil.Process(server).children()}
        self._link = socket.socket(socket.AF_UNIX)
        self._link.connect(door)
        their_in, our_out = os.pipe()
        our_in, their_out = os.pipe()
        words = ["acp", "--config", str(config), "--store", f"sqlite:///{self.place}/store.db"]
        with (self.place / "stderr").open("ab") as errors:
            socket.send_fds(self._link, [json.dumps(words).encode()], [their_in, their_out, errors.fileno()])
        os.close(their_in)
        os.close(their_out)
        self._link.setblocking(False)
        loop = asyncio.get_running_loop()
        self._reader = asyncio.StreamReader(limit=1 << 26)
        protocol = asyncio.StreamReaderProtocol(self._reader)
        self._in, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(our_in, "rb", 0))
        self._out, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(our_out, "wb", 0))
        self._reading = asyncio.create_task(self._read())
        self.request("initialize", protocolVersion=1)
        self.flush()
        await self.until(lambda: not self.watch.asked)
        (self.pid,) = {child.pid for child in psutil.Process(server).children()} - before

    async def _read(self) -> None:
        while line := await self._reader.readline():
            if not line.endswith(b"\n"):
                return  # killed in the middle of it
            message = json.loads(line)
            self.watch.heard(message)
            if "id" in message and "method" in message:
                self._asked(message)
            self._more.set()

    async def until(self, condition: Callable[[], Any], within: float = PATIENCE) -> None:
        """Until that is so, which is looked at whenever something has come; `TimeoutError` if it takes too long."""
        async with asyncio.timeout(within):
            while not condition():
                self._more.clear()
                await self._more.wait()

    async def gone(self) -> None:
        """Until the process has ended."""
        self._out.close()
        async with asyncio.timeout(PATIENCE):
            await asyncio.get_running_loop().sock_recv(self._link, 16)
            await self._reading
        self.ended = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._in.close()
        self._link.close()
        await asyncio.sleep(0)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    # What is said

    def _write(self, line: bytes) -> None:
        self._buffer += line + b"\n"

    def flush(self) -> None:
        """What was said since the last time leaves in one piece."""
        data, self._buffer = self._buffer, b""
        if not self._out.is_closing():
            self._out.write(data)

    def _send(self, message: Message) -> None:
        self._write(json.dumps({"jsonrpc": "2.0", **message}).encode())
        self.watch.sent(message)

    def request(self, method: str, **params: Any) -> Id:
        self._ids += 1
        id: Id = self._ids if self._ids % 3 else f"r{self._ids}"
        self._send({"id": id, "method": method, "params": params})
        return id

    def notify(self, method: str, **params: Any) -> None:
        self._send({"method": method, "params": params})

    def prompt(self, session: str, *steps: dict[str, Any]) -> Id:
        return self.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": json.dumps(steps)}])

    def _asked(self, message: Message) -> None:
        task = asyncio.create_task(self._decide(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _decide(self, message: Message) -> None:
        """Say something to a request for permission, sooner or later or never."""
        rng = self.rng
        options = [option["optionId"] for option in message["params"].get("options", ())]
        how = rng.choice(["select", "select", "select", "cancelled", "error", "nonsense", "never"])
        await asyncio.sleep(rng.choice([0, 0, 0.01, 0.05]))
        self.answer(message, how, rng.choice(options or ["none"]))
        self.flush()

    def answer(self, message: Message, how: str, option: str) -> None:
        if message["id"] not in self.watch.questions and self.rng.random() < 0.8:
            return  # taken back; an answer may be on its way all the same
        if how == "error":
            self._send({"id": message["id"], "error": {"code": -32603, "message": "no window"}})
        elif how != "never":
            outcome: Any = {"outcome": "selected", "optionId": option}
            outcome = {"cancelled": {"outcome": "cancelled"}, "nonsense": 7}.get(how, outcome)
            self._send({"id": message["id"], "result": {"outcome": outcome}})

    # Anything

    def act(self, words: "Words") -> None:
        """One thing."""
        rng = self.rng
        known = [id for id, seen in self.watch.sessions.items() if not seen.deleted]
        at_hand = [id for id in known if self.watch.sessions[id].open] if rng.random() < 0.85 else known
        session = rng.choice(at_hand or known or ["s-none"])
        kind = rng.randrange(100)
        if (kind < 12 and len(known) < 4) or not known:
            self.request("session/new", cwd="/tmp", mcpServers=[])
        elif kind < 42:
            self.prompt(session, *words.steps())
        elif kind < 52:
            self.notify("session/cancel", sessionId=session)
        elif kind < 62:
            self.request(rng.choice(OPENING), sessionId=session, cwd="/tmp", mcpServers=[])
        elif kind < 66:
            self.request("session/list", **({"cwd": "/tmp"} if rng.random() < 0.5 else {}))
        elif kind < 72:
            self.request("session/close", sessionId=session)
        elif kind < 74:
            self.request("session/delete", sessionId=session)
        elif kind < 79:
            self.request("session/set_mode", sessionId=session, modeId=rng.choice(["ask", "unattended", "sleepy"]))
        elif kind < 86:
            open_ids = [*self.watch.asked, "nobody", -1]
            self.notify("$/cancel_request", requestId=rng.choice(open_ids))
        elif kind < 91:
            words.let_go()
        else:
            self._nonsense(session)

    def _nonsense(self, session: str) -> None:
        rng = self.rng
        kind = rng.randrange(9)
        if kind == 0:
            self.watch.garbage += 1
            self._write(rng.choice([b"{", b"garbage", b"[]", b"7", b'{"jsonrpc": "2.0"}', b"\xff\xfe", b'{"id": {}}']))
        elif kind == 1:
            self._write(b"   ")
        elif kind == 2:
            self.request(rng.choice(["session/fork", "", "fs/read_text_file"]), sessionId=session)
        elif kind == 3:
            self.request(
                "session/prompt", sessionId=session, prompt=rng.choice([None, 7, [], [{"type": "audio"}], "x"])
            )
        elif kind == 4:
            self.request("session/new", cwd=rng.choice(["here", 7, None]), mcpServers=rng.choice([[], [{}], 7]))
        elif kind == 5:
            self.request(
                rng.choice(["session/close", "session/load", "session/set_mode"]),
                sessionId=rng.choice([7, None, "s-x"]),
            )
        elif kind == 6:
            self._write(b'{"jsonrpc": "2.0", "id": 77, "result": {}}')
        elif kind == 7:
            self.notify(rng.choice(["session/cancel", "$/cancel_request", "what"]), sessionId=rng.choice([7, [], {}]))
        elif rng.random() < 0.2:
            self.watch.garbage += 1
            self._write(b"x" * (17 << 20))


class Words:
    """What the model is told to say: scripts for `tests/acp/agents/playing.py`. Words of tools that act are unique."""

    def __init__(self, rng: Random, place: Path) -> None:
        self.rng, self.place = rng, place
        self._count = 0
        self._files: list[Path] = []

    def steps(self) -> list[dict[str, Any]]:
        rng = self.rng
        return [self._step() for _ in range(rng.randint(1, 3))]

    def let_go(self) -> None:
        """Some command that waits for a file ends."""
        if self._files:
            self._files.pop(self.rng.randrange(len(self._files))).touch()

    def _step(self) -> dict[str, Any]:
        rng = self.rng
        step: dict[str, Any] = {"text": [rng.choice(["a ", "b "]) for _ in range(rng.randint(0, 4))] or ["c"]}
        if rng.random() < 0.2:
            step["think"] = "hm"
        if rng.random() < 0.1:
            step["hang"] = True
        elif rng.random() < 0.07:
            step["fail"] = "no"
        else:
            step["calls"] = [self._call() for _ in range(rng.randint(0, 4))]
        return step

    def _call(self) -> list[Any]:
        rng = self.rng
        self._count += 1
        id = "same" if rng.random() < 0.15 else f"c{self._count}"
        word, handle = f"w{self._count}", rng.choice("xyz")
        file = self.place / f"file{self._count}"
        kind = rng.randrange(16)
        if kind == 0:
            self._files.append(file)
            return [id, "build", {"action": "spawn", "id": handle, "file": str(file)}]
        if kind == 1:
            self._files.append(file)
            return [id, "waits", {"action": "spawn", "id": handle, "file": str(file)}]
        if kind == 2:
            return [id, "job", {"action": "spawn", "id": handle}]
        plain: dict[int, tuple[str, dict[str, Any]]] = {
            3: ("look", {"path": "a.txt"}),
            4: ("change", {"path": "a.txt", "new": "b"}),
            5: ("floods", {"lines": rng.choice([10, 400])}),
            6: ("hangs", {}),
            7: ("fails", {}),
            8: ("asks", {"kind": rng.choice(["boolean", "select", "text", "secret"])}),
            9: ("nobody", {}),
            10: ("job", {"action": rng.choice(["fetch", "abort"]), "id": handle}),
            11: ("job", {"action": "apply", "id": handle, "input": rng.choice(["finish", "on"])}),
            12: ("await", {"any": [handle], "timeout_secs": 0}),
            13: ("acts", {"word": word, "secs": rng.choice(["0", "0.05"])}),
        }
        name, arguments = plain.get(kind, ("careful", {"word": word}))
        return [id, name, arguments]
