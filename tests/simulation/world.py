"""The real side of a simulation: a runtime whose tools do what they are told, in virtual time."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import msgspec
from tests.simulation.model import QUESTION, SETTLE, SETTLE_MAX
from tests.simulation.ops import KINDS, Abort, Apply, Await, Call, Fetch, Kind, Once, Order, Spawn, kind_of
from tests.simulation.stores import at_once

import keephold
from keephold.handles.view import Handles
from keephold.store.base import Store
from keephold.testing import VirtualClock

_SURE = msgspec.convert(QUESTION, keephold.Question)


class Puppet:
    """One call of a tool: it does what it is told, one order after the other."""

    def __init__(self) -> None:
        self._orders: deque[tuple[Order, str]] = deque()
        self._bell: asyncio.Future[None] | None = None
        self._deaf = False

    def tell(self, order: Order, text: str) -> None:
        self._orders.append((order, text))
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def obey(self, call: keephold.Call) -> str:
        while True:
            try:
                while not self._orders:
                    self._bell = asyncio.get_running_loop().create_future()
                    await self._bell
                order, text = self._orders.popleft()
                match order:
                    case "ok":
                        return text
                    case "fail":
                        raise keephold.ToolError(text)
                    case "emit":
                        call.emit(text)
                    case "ask":
                        await call.ask(_SURE)
                    case "read":
                        await self._read(call)
                    case "deaf":
                        self._deaf = True
            except asyncio.CancelledError:
                if not self._deaf:
                    raise

    async def _read(self, call: keephold.Call) -> None:
        try:
            await call.input()
        except EOFError as error:
            raise keephold.ToolError(str(error)) from None  # what a tool raises by mistake is logged; this is none


@dataclass
class Answer:
    """What came of a batch, a wait or the end of a turn, and when; None while nothing has."""

    at: float | None = None
    values: Sequence[Any] = (None,)


class Crew:
    """A puppet tool of each kind. Making tools is slow and runtimes can share them, one after the other."""

    def __init__(self) -> None:
        self.puppets: dict[int, Puppet] = {}
        self.tools = [self._tool(kind) for kind in KINDS.values()]

    def _tool(self, kind: Kind) -> keephold.Tool:
        @keephold.tool(
            name=kind.tool,
            actions=("spawn", "fetch", "apply", "abort") if kind.apply else ("spawn", "fetch", "abort"),
            scheduling="serial" if kind.serial else "parallel",
            resources=("{{ tool.arguments.first }}", "{{ tool.arguments.second }}") if kind.locks else (),
            priority=kind.priority,
            timeout_secs=kind.timeout,
            run="ask" if kind.denied else "unattended",
        )
        async def obey(call: keephold.Call, number: int, first: str = "", second: str = "") -> str:
            return await self.puppets[number].obey(call)

        spawn = replace(obey.spawn, settle_ms=int(SETTLE * 1000), settle_max_ms=int(SETTLE_MAX * 1000))
        return replace(obey, spawn=spawn)


class Stage:
    """A runtime with the crew's tools. Many worlds may use it, one after the other."""

    def __init__(self, crew: Crew, clock: VirtualClock, store: Store | str = "memory:") -> None:
        self.puppets = crew.puppets
        self.runtime = keephold.Runtime(crew.tools, store=store, clock=clock)

    async def __aenter__(self) -> Self:
        await self.runtime.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.runtime.__aexit__(kind, error, trace)


class World:
    """Two conversations of a runtime, for one script. Every step is a plain call that returns at once."""

    def __init__(self, stage: Stage, label: str) -> None:
        self._stage = stage
        self._names = [f"{label}.0", f"{label}.1"]
        self._label = label
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._turns: list[keephold.Turn] = []
        self._batches: list[asyncio.Task[None] | None] = [None, None]
        self._tasks: set[asyncio.Task[None]] = set()
        self.raised: list[BaseException] = []
        """What came out of a turn or a wait as an exception: nothing should."""
        stage.puppets.clear()

    async def __aenter__(self) -> Self:
        for name in self._names:
            self._turns.append(await self._stage.runtime.turn(name).__aenter__())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        for turn in self._turns:
            turn.cancel()
            await turn.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def now(self) -> float:
        return self._loop.time() - self._began

    def at(self, time: float, then: Callable[[], None]) -> None:
        self._loop.call_at(self._began + time, then)

    def states(self) -> list[tuple[int, str, str, str | None]]:
        """All that can be seen: each spawned handle, oldest first in its conversation."""
        return [
            (number, info.id, info.state, info.ended_by)
            for number in range(len(self._names))
            for info in self.infos(number)
        ]

    def infos(self, *numbers: int) -> list[keephold.HandleInfo]:
        """The spawned handles of these conversations, or of all."""
        names = [self._names[number] for number in numbers] if numbers else self._names
        return [info for name in names for info in at_once(Handles(self._stage.runtime.registry, name).list())]

    def let_go(self) -> None:
        """Tell every tool to end: none is left, however deaf."""
        for puppet in self._stage.puppets.values():
            puppet.tell("ok", "")

    # Steps

    def run(self, conversation: int, calls: Sequence[Call], numbers: Sequence[int]) -> Answer:
        """A batch begins. `numbers` are those of its puppets."""
        answer = Answer()
        wire = [self._wire(str(at), call, number) for at, (call, number) in enumerate(zip(calls, numbers, strict=True))]
        self._batches[conversation] = self._task(self._run(self._turns[conversation], wire, answer))
        return answer

    async def _run(self, turn: keephold.Turn, calls: list[keephold.ToolCall], answer: Answer) -> None:
        responses = await turn.run(calls)
        answer.at, answer.values = self.now, [_read(response, str(at)) for at, response in enumerate(responses)]

    def wait(self, conversation: int, any: Sequence[str], all: Sequence[str], timeout: float | None) -> Answer:
        answer = Answer()
        self._task(self._wait(self._names[conversation], any, all, timeout, answer))
        return answer

    async def _wait(
        self, name: str, any: Sequence[str], all: Sequence[str], timeout: float | None, answer: Answer
    ) -> None:
        found = await self._stage.runtime.wait(any=any, all=all, timeout=timeout, conversation=name)
        answer.at, answer.values = self.now, [msgspec.to_builtins(found)]

    def tell(self, number: int, order: Order, text: str) -> None:
        self._stage.puppets[number].tell(order, text)

    def end_turn(self, conversation: int, cancel: bool) -> Answer:
        answer = Answer()
        self._task(self._end(conversation, cancel, answer))
        return answer

    async def _end(self, conversation: int, cancel: bool, answer: Answer) -> None:
        turn, batch = self._turns[conversation], self._batches[conversation]
        if cancel:
            turn.cancel()
        if batch is not None:
            await batch
        await turn.end()
        self._turns[conversation] = await self._stage.runtime.turn(self._names[conversation]).__aenter__()
        answer.at = self.now

    def _task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.raised.append(error)

    def _wire(self, label: str, call: Call, number: int) -> keephold.ToolCall:
        """The call as a model would send it."""
        match call:
            case Await(any, all, timeout, lines):
                given: dict[str, Any] = {"any": list(any), "all": list(all)}
                given |= {"output": [{"id": id, "pattern": "."} for id in lines]} if lines else {}
                return keephold.ToolCall(
                    label, "await", given if timeout is None else given | {"timeout_secs": timeout}
                )
            case Spawn(id, names) | Once(id, names):
                self._stage.puppets[number] = Puppet()
                arguments: dict[str, Any] = {"number": number}
                if names:
                    arguments |= {"first": f"{self._label}:{names[0]}", "second": f"{self._label}:{names[-1]}"}
                if isinstance(call, Spawn):
                    arguments |= {"action": "spawn", "id": id}
                    arguments |= {"number": "bad"} if call.bad else {}
            case Fetch(id):
                arguments = {"action": "fetch", "id": id}
            case Apply(id, given_input):
                arguments = {"action": "apply", "id": id, "input": given_input}
            case Abort(id):
                arguments = {"action": "abort", "id": id}
        return keephold.ToolCall(label, kind_of(id).tool, arguments)


def _read(response: keephold.Response, label: str) -> tuple[bool, Any]:
    """B1: in request order, with the label of its call."""
    assert response.id == label, f"response {response.id} where call {label} was"
    body = response.result
    return response.is_error, msgspec.json.decode(body) if body.startswith("{") else body
