"""The worker's end of a call's channel: frames to the front end, inputs and answers back.

A frame stays here until a front end has it in its store. While no front end answers, output is kept up to
`SPOOL_BYTES`; of more, the first and the last half stay, and a line says how much is missing.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from contextvars import Context
from itertools import islice
from typing import Any

import httpx2
import msgspec

from keephold.engines.wire import PATH, Asking, EngineCall, Frame, Lost, Printed, Progressed, Reading, Said, Talk
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
_FULL_SECS = 0.5
_AGAIN_SECS, _AGAIN_AT_MOST_SECS = 0.1, 5.0
_ELSEWHERE = 421
"""Status of a front end that does not have the call: another one behind the same address may."""
_encode, _decode = msgspec.json.encode, msgspec.json.decode


class Channel:
    """The channel of one attempt."""

    def __init__(self, http: httpx2.AsyncClient, call: EngineCall, attempt: int) -> None:
        self._http = http
        self._call = call
        self._attempt = attempt
        self._frames: deque[Frame] = deque()
        """Those that no front end has."""
        self._first = 1
        """The number of the first of them."""
        self._sending = 0
        """How many of them are on their way, and must not be changed."""
        self._size = 0
        self._limit = SPOOL_BYTES if self.connected else UNSENT_BYTES
        self._missing = 0
        self._note: Printed | None = None
        """Says how much is missing."""
        self._lost = False
        self._wanted, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._epoch: str | None = None
        self._reading = False
        self._open: Asking | None = None
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

    def open(self, *, listens: bool) -> None:
        """Begin to send, and to ask for input if it may come."""
        if self.connected:
            self._begin(self._send())
            if listens:
                self._listen()

    def _begin(self, work: Any) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work, context=Context()))

    def say(self, frame: Frame) -> None:
        """Send a frame when its turn has come."""
        last = self._frames[-1] if len(self._frames) > self._sending else None
        self._size += _size(frame)
        if isinstance(frame, Printed):
            if isinstance(last, Printed) and last is not self._note and _size(last) + _size(frame) <= PIECE_BYTES:
                self._frames.pop()
                frame = Printed(last.data + frame.data)
        elif isinstance(frame, Progressed) and isinstance(last, Progressed):
            self._size -= _size(self._frames.pop())  # only the newest counts
        elif isinstance(frame, Reading):
            self._reading, frame = frame.yes, Reading(frame.yes, self._inputs)
        self._frames.append(frame)
        if self._size > self._limit:
            self._shorten()
        self._empty.clear()
        self._wanted.set()

    def _shorten(self) -> None:
        """Drop output from the middle, so that three quarters of the limit are left. The frames behind get other
        numbers: none of them was sent."""
        kept, before, limit = deque[Frame](), 0, self._limit * 3 // 8
        surplus, note = self._size - 2 * limit, self._note
        if not any(frame is note for frame in islice(self._frames, self._sending, None)):
            note, self._missing = None, 0  # it was sent
        for position, frame in enumerate(self._frames):
            if frame is note:
                self._size -= _size(frame)
            elif isinstance(frame, Printed) and position >= self._sending and before >= limit and surplus > 0:
                surplus -= _size(frame)
                self._size -= _size(frame)
                self._missing += _size(frame)
                if surplus <= 0:
                    self._note = Printed(f"\n[{self._missing} bytes are missing: no front end took them]\n".encode())
                    self._size += _size(self._note)
                    kept.append(self._note)
            else:
                before += _size(frame)
                kept.append(frame)
        self._frames = kept

    def ask(self, name: str | None, question: dict[str, Any], then: Callable[[Outcome], None]) -> None:
        """Send a question; `then` gets the answer."""
        self._asked += 1
        self._open, self._answer = Asking(self._asked, name, question), then
        self.say(self._open)
        self._listen()

    def withdrawn(self) -> None:
        """Nobody waits for the answer any more."""
        self._open = self._answer = None

    async def store(self, value: Any) -> str:
        """Let the front end store a value, and return its hash."""
        said = await self._talk(Talk(self._attempt, value=value))
        assert said.stored is not None
        return said.stored

    async def fetch(self, stored: str) -> Any:
        """Return a stored value."""
        return (await self._talk(Talk(self._attempt, fetch=stored))).value

    async def flush(self, secs: float) -> None:
        """Wait until a front end has everything, for at most that many seconds if the rest can travel otherwise."""
        while self.connected and self._frames and not self._lost:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(secs):
                    await self._empty.wait()
            if self._size <= UNSENT_BYTES:
                return

    def unsent(self) -> list[Any]:
        """Return what no front end has: attempt, number and frame of each."""
        at = enumerate(self._frames, self._first)
        return [[self._attempt, number, msgspec.to_builtins(frame)] for number, frame in at]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Its tasks

    async def _send(self) -> None:
        try:
            while True:
                await self._wanted.wait()
                batch, size = list[Frame](), 0
                for frame in self._frames:
                    batch.append(frame)
                    size += _size(frame)
                    if size >= _AT_ONCE or len(batch) >= 1000:
                        break
                self._sending = len(batch)
                await self._exchange(Talk(self._attempt, self._first, batch, self._inputs, self._number))
                self._sending = 0
                if not self._frames:
                    self._wanted.clear()
                    self._empty.set()
        except Lost:
            self._give_up()

    def _give_up(self) -> None:
        self._lost = True
        self._empty.set()
        self.on_lost()

    @property
    def _number(self) -> int | None:
        return None if self._open is None else self._open.number

    def _listen(self) -> None:
        if not self._listens and self.connected:
            self._listens = True
            self._begin(self._hear())

    async def _hear(self) -> None:
        try:
            while True:
                waiting = Talk(self._attempt, inputs=self._inputs, ask=self._number, wait=_LISTEN_SECS)
                said = await self._exchange(waiting)
                if said.end is not None or self.full:  # it would be said again at once
                    await asyncio.sleep(_AGAIN_AT_MOST_SECS if said.end is not None else _FULL_SECS)
        except Lost:
            self._give_up()

    async def _exchange(self, talk: Talk) -> Said:
        """Say it, and take the answer. Two exchanges may be under way: what one has brought, the other brings again."""
        said = await self._talk(talk)
        while self._frames and self._first <= said.received:
            self._size -= _size(self._frames.popleft())
            self._first += 1
        if self._epoch is not None and said.epoch != self._epoch:
            if self._open is not None:
                self.say(self._open)
            if self._reading:
                self.say(Reading(True))
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

    async def _talk(self, talk: Talk) -> Said:
        """Say it until a front end answers."""
        delay = _AGAIN_SECS
        headers = {"authorization": f"Bearer {self._call.bearer}", "content-type": "application/json"}
        body, warned = _encode(talk), False
        while True:
            try:
                url = f"{self._call.url}{PATH}{self._call.uid}"
                answer = await self._http.post(url, content=body, headers=headers, timeout=talk.wait + 15)
                if answer.status_code == 200:
                    return _decode(answer.content, type=Said)
                if answer.status_code in (403, 409, 410):
                    raise Lost(answer.text)
                problem = f"it answered {answer.status_code}"
                delay = _AGAIN_SECS if answer.status_code == _ELSEWHERE else delay
            except (httpx2.HTTPError, msgspec.DecodeError, OSError) as error:
                problem = str(error) or type(error).__name__
            if not warned and delay >= 1:
                warned = True
                _log.warning("the front end of call %s does not answer: %s", self._call.uid, problem)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _AGAIN_AT_MOST_SECS)


def _size(frame: Frame) -> int:
    return len(frame.data) if isinstance(frame, Printed) else len(_encode(frame))
