"""The worker's end of a call's channel: frames to the front end, inputs and answers back. `Ends` says which calls end.

A frame stays here until a front end has it in its store. While no front end answers, output and diffs are kept up to
`SPOOL_BYTES`; of more, the first and the last half stay, and a line says how much is missing.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import Context
from itertools import islice
from typing import Any

import httpx2
import msgspec

from keephold.engines import wire
from keephold.engines.base import EngineUnavailable, patiently
from keephold.handles.state import Outcome

_log = logging.getLogger("keephold.engines")

SPOOL_BYTES = 8 << 20
"""Bytes of output that are kept for a front end that does not answer."""
UNSENT_BYTES = 128 << 10
"""Bytes of output that travel with the end of an attempt if no front end takes them."""
_AT_ONCE = 256 << 10
PIECE_BYTES = 32 << 10
"""Bytes of output in one frame."""
_LISTEN_SECS = 20.0
_FULL_SECS, _ENDS_SECS, _ELSEWHERE_SECS = 0.5, 5.0, 0.1
_SOON_SECS, _PACE_SECS, _AT_LAST_SECS = 0.05, 0.25, 5.0
_CLOSE_SECS = 2.0
_TRIES = 20
"""How often a worker says that a call ends if no front end takes it. The last time is a minute after the first, or five
seconds after it if front ends take other ends meanwhile."""
_encode, _decode = msgspec.json.encode, msgspec.json.decode


class Channel:
    """The channel of one attempt."""

    def __init__(self, http: httpx2.AsyncClient, call: wire.EngineCall, attempt: int) -> None:
        self._http = http
        self._call = call
        self._attempt = attempt
        self._frames: deque[wire.Frame] = deque()
        """Those that no front end has."""
        self._first = 1
        """The number of the first of them."""
        self._sending = 0
        """How many of them are on their way, and must not be changed."""
        self._size = 0
        self._limit = SPOOL_BYTES if self.connected else UNSENT_BYTES
        self._missing = 0
        self._note: wire.Frame | None = None
        """Says how much is missing."""
        self._lost = False
        self._wanted, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._epoch: str | None = None
        self._reading = False
        self.waiting: bool | None = False if attempt == 1 else None
        """Whether the call waits in its effects, as the front end knows it."""
        self._open: wire.Asking | None = None
        self._asked = self._inputs = 0
        self._answer: Callable[[Outcome], None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._listens = False
        self.full = False
        """Whether the tool has to read before it gets more input."""
        self.on_input: Callable[[Any], bool] = lambda value: True
        self.on_end: Callable[[float], None] = lambda grace: None
        self.on_lost: Callable[[], None] = lambda: None

    @property
    def connected(self) -> bool:
        """Whether there may be a front end at all."""
        return self._call.url is not None

    @property
    def empty(self) -> bool:
        """Whether front ends have all frames, or are none."""
        return not self._frames or not self.connected

    def carry(self, unsent: Sequence[Any]) -> None:
        """Send the frames that earlier attempts could not send, which keep their origin."""
        for attempt, number, frame in unsent:
            self.say(wire.Carried(attempt, number, msgspec.convert(frame, wire.Kept)))

    def open(self, *, listens: bool) -> None:
        """Begin to send, and to ask for input if it may come."""
        if self.connected:
            self._begin(self._send())
            if listens:
                self._listen()

    def _begin(self, work: Awaitable[None]) -> None:
        self._tasks.append(Context().run(asyncio.get_running_loop().create_task, self._until_lost(work)))

    async def _until_lost(self, work: Awaitable[None]) -> None:
        try:
            await work
        except wire.Lost:
            self._lost = True
            self._empty.set()
            self.on_lost()

    def say(self, frame: wire.Frame) -> None:
        """Send a frame when its turn has come. One that a front end cannot read is dropped: all others would wait."""
        if isinstance(frame, wire.Progressed | wire.Showing | wire.Emitting | wire.Taking):
            try:
                _decode(_encode(frame), type=wire.Frame)
            except Exception as error:  # a tool may give anything, such as a progress that is not a number
                _log.warning("a frame of call %s is not valid: %s", self._call.uid, error)
                return
        last = self._frames[-1] if len(self._frames) > self._sending else None
        self._size += _size(frame)
        if isinstance(frame, wire.Output):
            if isinstance(last, wire.Output) and last is not self._note and _size(last) + _size(frame) <= PIECE_BYTES:
                self._frames.pop()
                frame = wire.Output(last.data + frame.data)
        elif isinstance(frame, wire.Progressed) and isinstance(last, wire.Progressed):
            self._size -= _size(self._frames.pop())  # only the newest counts
        elif isinstance(frame, wire.Reading):
            self._reading, frame = frame.yes, wire.Reading(frame.yes, self._inputs)
        elif isinstance(frame, wire.Waiting):
            self.waiting = frame.yes
        elif isinstance(frame, wire.Withdrawn):
            self._open = self._answer = None
        self._frames.append(frame)
        if self._size > self._limit:
            self._shorten()
        self._empty.clear()
        self._wanted.set()

    def _shorten(self) -> None:
        """Drop output from the middle, so that three quarters of the limit are left, and say there how much is missing.
        The frames behind get other numbers: none of them was sent."""
        kept, half, before, at = list[wire.Frame](), self._limit * 3 // 8, 0, 0
        surplus = self._size - 2 * half
        dropped: wire.Frame | None = None
        if not any(frame is self._note for frame in islice(self._frames, self._sending, None)):
            self._note, self._missing = None, 0  # it was sent
        for position, frame in enumerate(self._frames):
            size = _size(frame)
            beyond = dropped is not None or before + size > half
            may_drop = position >= self._sending and surplus > 0 and beyond and _may_drop(frame)
            if frame is not self._note and not may_drop:
                before += size
                kept.append(frame)
                continue
            dropped, at = frame, len(kept)
            self._size -= size
            if frame is not self._note:
                surplus -= size
                self._missing += size
        if dropped is not None:
            note = wire.Output(f"\n[{self._missing} bytes are missing: no front end took them]\n".encode())
            self._note = note
            if isinstance(dropped, wire.Carried):
                self._note = wire.Carried(dropped.attempt, dropped.number, note)
            self._size += _size(self._note)
            kept.insert(at, self._note)
        self._frames = deque(kept)

    def ask(self, name: str | None, question: dict[str, Any], then: Callable[[Outcome], None]) -> None:
        """Send a question; `then` gets the answer."""
        self._asked += 1
        self._open, self._answer = wire.Asking(self._asked, name, question), then
        self.say(self._open)
        self._listen()

    async def store(self, value: Any) -> str:
        """Let the front end store a value, and return its hash."""
        said = await self._talk(wire.Talk(self._attempt, value=value))
        assert said.stored is not None
        return said.stored

    async def fetch(self, stored: str) -> Any:
        """Return a stored value."""
        return (await self._talk(wire.Talk(self._attempt, fetch=stored))).value

    async def flush(self, secs: float) -> None:
        """Wait until a front end has everything, for at most that many seconds if the rest can travel otherwise."""
        while self.connected and self._frames and not self._lost:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(secs):
                    await self._empty.wait()
            if self._size <= UNSENT_BYTES:
                return

    def unsent(self) -> list[Any]:
        """Return the output and the events that perhaps no front end has: attempt, number and frame of each."""
        self._limit = UNSENT_BYTES
        if self._size > self._limit:
            self._shorten()
        frames = (wire.origin(self._attempt, *at) for at in enumerate(self._frames, self._first))
        return [[*at, msgspec.to_builtins(frame)] for *at, frame in frames if isinstance(frame, wire.Kept)]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Its tasks

    async def _send(self) -> None:
        while True:
            await self._wanted.wait()
            batch, size = list[wire.Frame](), 0
            for frame in self._frames:
                batch.append(frame)
                size += _size(frame)
                if size >= _AT_ONCE or len(batch) >= 1000:
                    break
            self._sending = len(batch)
            await self._exchange(wire.Talk(self._attempt, self._first, batch, self._inputs, self._number))
            self._sending = 0
            if not self._frames:
                self._wanted.clear()
                self._empty.set()

    @property
    def _number(self) -> int | None:
        return None if self._open is None else self._open.number

    def _listen(self) -> None:
        if not self._listens and self.connected:
            self._listens = True
            self._begin(self._hear())

    async def _hear(self) -> None:
        while True:
            waiting = wire.Talk(self._attempt, inputs=self._inputs, ask=self._number, wait=_LISTEN_SECS)
            said = await self._exchange(waiting)
            if said.end is not None or self.full:  # it would be said again at once
                await asyncio.sleep(_ENDS_SECS if said.end is not None else _FULL_SECS)

    async def _exchange(self, talk: wire.Talk) -> wire.TalkAnswer:
        """Say it, and take the answer. Two exchanges may be under way: what one has brought, the other brings again."""
        said = await self._talk(talk)
        while self._frames and self._first <= said.received:
            self._size -= _size(self._frames.popleft())
            self._first += 1
        if self._epoch is not None and said.epoch != self._epoch:
            if self._open is not None:
                self.say(self._open)
            if self._reading:
                self.say(wire.Reading(True))
            if self.waiting:
                self.say(wire.Waiting(True))
        self._epoch = said.epoch
        for value in said.inputs[self._inputs - talk.inputs :]:
            self.full = not self.on_input(value)
            if self.full:  # the front end keeps it, and refuses more
                break
            self._inputs += 1
        if said.answer is not None and self._answer is not None and talk.ask == self._number:
            answer, self._open, self._answer = self._answer, None, None
            answer(said.answer)
        if said.end is not None:
            self.on_end(said.end)
        return said

    async def _talk(self, talk: wire.Talk) -> wire.TalkAnswer:
        """Say it until a front end answers."""
        body = _encode(talk)

        async def post() -> wire.TalkAnswer:
            try:
                return await self._post(body, talk.wait + 15)
            except EngineUnavailable:
                # A front end that refuses the worker does not read its message, and then the refusal can be lost.
                await self._post(_encode(wire.Talk(self._attempt, inputs=self._inputs)), 15)
                raise

        return await patiently(post, f"the front end at {self._call.url}")

    async def _post(self, body: bytes, secs: float) -> wire.TalkAnswer:
        url, headers = f"{self._call.url}{wire.PATH}{self._call.uid}", {"authorization": f"Bearer {self._call.bearer}"}
        try:
            while True:
                answer = await self._http.post(url, content=body, headers=headers, timeout=secs)
                if answer.status_code != wire.ELSEWHERE:
                    break
                await asyncio.sleep(_ELSEWHERE_SECS)
            if answer.status_code == 200:
                return _decode(answer.content, type=wire.TalkAnswer)
        except (httpx2.HTTPError, msgspec.DecodeError, OSError) as error:
            raise EngineUnavailable(str(error) or type(error).__name__) from None
        if answer.status_code in (403, 409, 410) and wire.REFUSES in answer.headers:
            raise wire.Lost(answer.text)
        raise EngineUnavailable(f"it answered {answer.status_code}")


class Ends:
    """Says which calls end, for all attempts of a worker, in at most four requests a second. Each costs the worker more
    than a millisecond."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http
        self._left: dict[str, dict[str, tuple[str, int]]] = {}
        """By the address of front ends and the uid of the call: its authority, and how often it is still sent."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def say(self, call: wire.EngineCall) -> None:
        """Say that a call ends, which is not waited for."""
        if call.url is not None:
            self._left.setdefault(call.url, {})[call.uid] = call.bearer, _TRIES
            if call.url not in self._tasks:
                self._tasks[call.url] = asyncio.get_running_loop().create_task(self._send(call.url), context=Context())

    async def close(self) -> None:
        """Wait for a moment until all is said."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=_CLOSE_SECS)
            for task in self._tasks.values():
                task.cancel()

    async def _send(self, url: str) -> None:
        left, delay = self._left[url], _SOON_SECS
        await asyncio.sleep(delay)
        while left:
            batch = dict(islice(left.items(), wire.ENDS_AT_ONCE))
            untaken = await self._untaken(url, {uid: authority for uid, (authority, _) in batch.items()})
            for uid, (authority, tries) in batch.items():
                del left[uid]
                if uid in untaken and tries > 1:
                    left[uid] = authority, tries - 1
            delay = _PACE_SECS if len(untaken) < len(batch) else min(2 * delay, _AT_LAST_SECS)
            await asyncio.sleep(delay)
        del self._tasks[url]

    async def _untaken(self, url: str, authorities: dict[str, str]) -> Collection[str]:
        """Tell a front end, and return the calls that it does not have."""
        with contextlib.suppress(httpx2.HTTPError, httpx2.InvalidURL, msgspec.DecodeError, OSError):
            answer = await self._http.post(f"{url}{wire.PATH}", content=_encode(authorities))
            if answer.status_code == 200:
                return _decode(answer.content, type=list[str])
        return authorities


def _may_drop(frame: wire.Frame) -> bool:
    """Return whether a frame may be dropped if there are too many. Events with a name are in the journal, too, which
    is bounded."""
    frame = wire.origin(0, 0, frame)[-1]
    return isinstance(frame, wire.Output | wire.Progressed | wire.Showing) or (
        isinstance(frame, wire.Emitting) and frame.name is None
    )


def _size(frame: wire.Frame) -> int:
    frame = wire.origin(0, 0, frame)[-1]
    return len(frame.data) if isinstance(frame, wire.Output) else len(_encode(frame))
