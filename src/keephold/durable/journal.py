"""A call's journal: its recorded effects, found again by name (E2, E3, E7, E10).

It is loaded once, when an attempt begins; after that it only grows. A replay runs the tool again with its journal:
recorded effects are returned, others are done and recorded.
"""

import asyncio
import hashlib
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from keephold.durable.host import Host
from keephold.durable.keys import masked
from keephold.errors import KeepholdError, ToolError
from keephold.handles.observing import NOTHING
from keephold.handles.state import Failure, error_of
from keephold.store.base import Entry, EntryKind, Journaled, Op, Wrote
from keephold.text import as_text, has_no_number

_log = logging.getLogger("keephold.durable")

NOT_THE_TOOLS = ("lease_lost", "runtime_closing", "store_unavailable")
"""Errors that say nothing about what a step did: they are never recorded as its outcome."""

_encoder = msgspec.json.Encoder(order="sorted", enc_hook=as_text)
_encode, _decode = _encoder.encode, msgspec.json.decode
_sha256 = hashlib.sha256


class Journal:
    """The journal of one call in one attempt."""

    __slots__ = (
        "_counts",
        "_entries",
        "_fence",
        "_host",
        "_idle",
        "_kept",
        "_received",
        "_running",
        "_uid",
        "_used",
        "inputs",
    )

    def __init__(self, host: Host, uid: str, fence: int, entries: Iterable[Entry] = ()) -> None:
        self._host = host
        self._uid = uid
        self._fence = fence
        self._counts: dict[str, int] = {}
        self._used: set[str] = set()
        self._entries: dict[tuple[str, str], Entry] = {}
        self.inputs: list[Any] = []
        """Input that `apply` had sent before this attempt, in order."""
        for entry in entries:
            self._entries[entry.kind, entry.name] = entry
        for number in range(1, sum(kind == "input" for kind, _ in self._entries) + 1):
            self.inputs.append(_decode(self._entries["input", str(number)].value))
        self._received = len(self.inputs)
        self._kept = 0
        self._running = 0
        self._idle: asyncio.Event | None = None

    def use(self, step_id: str) -> None:
        """Reserve a step id, or raise if the call has used it (E3)."""
        if step_id in self._used:
            raise ToolError(
                f"step id `{step_id}` was already used by this tool call; every step needs an id of its own",
                code="durable_effect_duplicate_step_id",
            )
        self._used.add(step_id)

    def number(self, kind: EntryKind, of: str = "") -> str:
        """Return the next name of a kind whose entries are numbered in the order the code reaches them (E10)."""
        counted = f"{kind}:{of}"
        count = self._counts[counted] = self._counts.get(counted, 0) + 1
        return f"{of}:{count}" if of else str(count)

    def recorded(self, kind: EntryKind, name: str) -> Entry | None:
        return self._entries.get((kind, name))

    def op(self, kind: EntryKind, name: str, value: Any, digest: bytes = b"", *, given: Any = None) -> Journaled:
        """Return the operation that records a value, to be written with others. `given`: the input it answers."""
        asked = b"" if given is None else _shown(_encode(given))
        return Journaled(self._uid, self._fence, kind, name, digest, _encode(value), input=asked)

    async def record(
        self,
        kind: EntryKind,
        name: str,
        value: bytes,
        digest: bytes = b"",
        *,
        ok: bool = True,
        given: bytes = b"",
        also: Sequence[Op] = (),
    ) -> Sequence[Any]:
        """Write an entry, and other operations with it, as one commit; return their results."""
        entry = Journaled(self._uid, self._fence, kind, name, digest, value, ok, _shown(given))
        return await self._host.write((entry, *also, *self._printed()))

    def _printed(self) -> tuple[Wrote, ...]:
        """Write what the call has printed since its last entry with the next one, so that a replay finds it (E10)."""
        output = self._host.printed(self._uid)
        if output is None or output.total == self._kept:
            return ()
        self._kept = output.total
        return (Wrote(self._uid, self._fence, output.keep(self._host.store.inline_output)),)

    def store_input(self, value: Any, cause: bytes, then: Callable[[], None]) -> None:
        """Write the input that the `apply` of that name sent, then hand it to the tool (E10)."""
        self._received += 1
        op = self.op("input", str(self._received), value, cause)
        self._host.commit((op,), lambda _: then(), lambda _: None, keep=True)

    async def run(self, step_id: str, given: bytes, function: Any, argument: Any) -> Any:
        """Run one journaled step, whose id has been reserved."""
        digest = _sha256(given).digest()
        entry = self._entries.get(("step", step_id))
        if entry is not None:
            return _replayed(step_id, entry, digest)
        self._running += 1
        try:
            return await self._do(step_id, given, digest, function, argument)
        finally:
            self._running -= 1
            if not self._running and self._idle is not None:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until no step runs: one that outlives its attempt (a `gather` whose other step failed) is recorded
        first."""
        while self._running:
            if self._idle is None or self._idle.is_set():
                self._idle = asyncio.Event()
            await self._idle.wait()

    async def _do(self, step_id: str, given: bytes, digest: bytes, function: Any, argument: Any) -> Any:
        try:
            traces = self._host.traces
            with NOTHING if traces is None else traces.step(step_id):
                doing = function(argument)
                if not inspect.isawaitable(doing):
                    raise TypeError(f"the function of step `{step_id}` is not async; make it `async def`")
                result = await doing
        except Exception as error:
            if isinstance(error, KeepholdError) and not isinstance(error, ToolError) and error.code in NOT_THE_TOOLS:
                raise
            if not isinstance(error, ToolError):
                _log.error("step `%s` of call %s raised", step_id, self._uid, exc_info=error)
            raised = error if isinstance(error, ToolError) else ToolError(_words(error))
            await self.record("step", step_id, _encode(error_of(raised)), digest, ok=False, given=given)
            raise raised from (None if raised is error else error)
        value = to_bytes(result, f"the result of step `{step_id}`")
        op = Journaled(self._uid, self._fence, "step", step_id, digest, value, True, _shown(given))
        await self._host.write((op, *self._printed()))
        return _decode(value)


def _shown(given: bytes) -> bytes:
    """Return an input as it is written, for people to read and so without keys (K5). A replay compares the digest,
    which is of the input itself."""
    return masked(given.decode()).encode() if b"hf1." in given else given


def _replayed(step_id: str, entry: Entry, digest: bytes) -> Any:
    if entry.digest != digest:
        raise ToolError(
            f"step `{step_id}` was recorded with another input; nothing ran. The input belongs to the step: give a "
            "changed step another id",
            code="durable_effect_hash_conflict",
        )
    if entry.ok:
        return _decode(entry.value)
    error = msgspec.json.decode(entry.value, type=Failure)
    raise ToolError(error.message, code=error.code, transient=error.transient, trace=error.trace)


def to_bytes(value: Any, what: str) -> bytes:
    """Return a value as JSON with sorted keys, or raise an error that names it."""
    try:
        data = _encode(value)
        if b"null" in data and has_no_number(value):
            raise ValueError("it holds a float that is not a number")
        return data
    except (TypeError, ValueError, RecursionError, OverflowError, NotImplementedError) as error:
        raise ToolError(
            f"{what} is not JSON ({error}); nothing was recorded. Use dicts, lists, strings, numbers, booleans, None",
            code="durable_effect_not_json",
        ) from None


def _words(error: Exception) -> str:
    if isinstance(error, KeepholdError):
        return error.message
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
