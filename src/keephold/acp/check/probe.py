"""An agent under examination: every message is recorded in order, and none is corrected.

The client library would hide the faults that checks look for, so this is the bare wire: messages are sent as given, ids
are arbitrary, and lines may be invalid. Checks examine what was recorded, and fail or are skipped.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec

from keephold.acp.client.process import AgentProcess
from keephold.acp.lines import LineReader, LineWriter
from keephold.acp.wire import BACKLOG_BYTES, LINE_BYTES, METHOD_NOT_FOUND

if TYPE_CHECKING:
    from keephold.acp.check.scenes import Scenes

T = TypeVar("T")
CANCELLED = {"outcome": "cancelled"}
Examine: TypeAlias = Callable[["Scenes"], Awaitable[None]]
Level: TypeAlias = Literal["MUST", "SHOULD"]
"""MUST: the protocol, or the extension that the agent offers, requires it. SHOULD: clients rely on it all the same."""


class WireEntry(msgspec.Struct, frozen=True):
    """A message, or an invalid line. `ours`: the client sent it."""

    number: int
    ours: bool
    message: Any

    @property
    def method(self) -> str | None:
        found = self.message.get("method") if isinstance(self.message, dict) else None
        return found if isinstance(found, str) else None

    @property
    def params(self) -> dict[str, Any]:
        """Its params; empty if they are missing or malformed."""
        found = self.message.get("params") if isinstance(self.message, dict) else None
        return found if isinstance(found, dict) else {}


def is_answer(entry: WireEntry, id: int | str) -> bool:
    """Return whether it is the agent's answer to the request of that id: `7` differs from `"7"`."""
    if entry.ours or not isinstance(entry.message, dict) or "method" in entry.message:
        return False
    theirs = entry.message.get("id")
    return type(theirs) is type(id) and theirs == id


class Probe:
    """One run of the agent. `permit` answers its permission requests; None leaves one open."""

    def __init__(self, command: Sequence[str], timeout: float, pass_env: Sequence[str] = ()) -> None:
        self.log: list[WireEntry] = []
        self.capabilities: dict[str, Any] = {}
        self.info: dict[str, Any] = {}
        self.auth_methods: list[str] = []
        self.permit: Callable[[WireEntry], dict[str, Any] | None] = allow
        self._timeout = timeout
        self._last_id = 0
        self._changed = asyncio.Event()
        self._died: str | None = None
        self._process = AgentProcess(command, cwd=None, env=None, pass_env=pass_env, exited=self._exited)
        self._reader = LineReader(
            self._process.reading,
            limit=LINE_BYTES,
            line=self._line,
            too_long=self._line,
            ended=lambda _: self._process.hurry(),
        )
        self._writer = LineWriter(self._process.writing, most=BACKLOG_BYTES, lost=lambda _: None)
        self._reader.start()

    async def close(self) -> None:
        self._reader.stop()
        self._writer.close()
        await self._process.end()

    # Sending

    def send(self, message: dict[str, Any]) -> WireEntry:
        message = {"jsonrpc": "2.0", **message}
        return self.send_line(json.dumps(message), message)

    def send_line(self, line: str, message: Any = None) -> WireEntry:
        entry = self._note(True, line if message is None else message)
        self._writer.write(line.encode() + b"\n")
        return entry

    def request(self, method: str, params: Any, id: int | str | None = None) -> WireEntry:
        """Send a request; without an id, under the next one."""
        if id is None:
            self._last_id += 1
            id = self._last_id
        return self.send({"id": id, "method": method, "params": params})

    async def ask(self, method: str, params: Any, id: int | str | None = None) -> dict[str, Any]:
        message: dict[str, Any] = (await self.answer(self.request(method, params, id))).message
        return message

    # Receiving

    def answered(self, request: WireEntry) -> WireEntry | None:
        id = request.message["id"]
        return next((entry for entry in self.log[request.number + 1 :] if is_answer(entry, id)), None)

    async def answer(self, request: WireEntry) -> WireEntry:
        return await self.until(lambda: self.answered(request), f"answer {request.method}")

    async def until(self, look: Callable[[], T | None], what: str) -> T:
        """Wait until `look` finds something; `what` says what the agent did not do if it never does."""
        try:
            async with asyncio.timeout(self._timeout):
                while (found := look()) is None:
                    if self._died is not None:
                        raise Died(self._died)
                    self._changed.clear()
                    await self._changed.wait()
                return found
        except TimeoutError:
            raise Silent(f"the agent did not {what} within {self._timeout:g} s{self._process.printed()}") from None

    def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = json.loads(line)
        except ValueError:
            message = line.decode(errors="replace")
        entry = self._note(False, message)
        if entry.method is not None and "id" in entry.message:
            self._requested(entry)

    def _requested(self, entry: WireEntry) -> None:
        if entry.method != "session/request_permission":
            error = {"code": METHOD_NOT_FOUND, "message": f"Method not found: {entry.method}"}
            self.send({"id": entry.message["id"], "error": error})
        elif (outcome := self.permit(entry)) is not None:
            self.send({"id": entry.message["id"], "result": {"outcome": outcome}})

    def _note(self, ours: bool, message: Any) -> WireEntry:
        entry = WireEntry(len(self.log), ours, message)
        self.log.append(entry)
        self._changed.set()
        return entry

    def _exited(self) -> None:
        self._reader.rest()
        self._died = self._process.epitaph()
        self._changed.set()


def choose(request: WireEntry, *kinds: str) -> dict[str, Any]:
    """Return the outcome that takes an option of one of these kinds, or `cancelled` if there is none."""
    options = request.params.get("options")
    for kind in kinds:
        for option in options if isinstance(options, list) else ():
            if isinstance(option, dict) and option.get("kind") == kind:
                return {"outcome": "selected", "optionId": option.get("optionId")}
    return CANCELLED


def allow(request: WireEntry) -> dict[str, Any]:
    return choose(request, "allow_once", "allow_always")


def reject(request: WireEntry) -> dict[str, Any]:
    return choose(request, "reject_once", "reject_always")


class Check(msgspec.Struct, frozen=True):
    """A check: its name, its topic, its level, its statement about an agent that passes, and its function."""

    name: str
    topic: str
    level: Level
    says: str
    examine: Examine


known: list[Check] = []
"""All checks, in the order they are written."""


def _check(level: Level, topic: str, name: str, says: str) -> Callable[[Examine], Examine]:
    def add(examine: Examine) -> Examine:
        known.append(Check(name, topic, level, says, examine))
        return examine

    return add


must, should = partial(_check, "MUST"), partial(_check, "SHOULD")


class Failed(Exception):
    """The agent is wrong; the messages show where."""

    def __init__(self, why: str, messages: Sequence[WireEntry | None] = ()) -> None:
        super().__init__(why)
        self.messages = tuple(entry for entry in messages if entry is not None)


class Silent(Failed):
    """The agent did not respond in time."""


class Died(Failed):
    """The agent exited, or closed its output, before it responded."""


class Skipped(Exception):
    """The check does not apply to this agent, or cannot tell."""
