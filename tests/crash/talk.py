"""A program that uses keephold and may be killed anywhere: what its scenes are written with.

It takes up its turn, answers the batch that was left open, looks for handles before it spawns them, and reports what it
was told, and nothing else.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from tests.crash.world import World

from keephold import HandleInfo, KeepholdError, Response, Runtime, ToolCall, ToolError, Turn
from keephold.store.base import HandleQuery

_PAUSE = 0.003


class Later(Exception):
    """Only time can bring the scene to its end: run it again when the clock has moved on."""


class Play:
    """One runtime, and the world its scenes tell of what happened."""

    def __init__(self, runtime: Runtime, world: World) -> None:
        self.runtime = runtime
        self.world = world

    @asynccontextmanager
    async def turn(self, conversation: str, *, park_after: float | None = None) -> "AsyncIterator[Talk]":
        """The turn that a run before left open, or a new one. The batch it left unanswered is answered first (B9)."""
        turn = self.runtime.turn(conversation, resume=True)
        await until_it_writes(turn.__aenter__)
        async with _Entered(turn):
            talk = Talk(self, turn)
            if turn.unfinished is not None:
                calls = [call.id for call in turn.unfinished.calls]
                talk.answered(calls, await turn.resume(park_after=park_after), resumed=True)
            elif turn.answered is not None:  # it may not have arrived
                talk.told("recalled", turn.answered)
            yield talk

    @asynccontextmanager
    async def resolving(self, name: str) -> AsyncIterator[None]:
        """Beside the block, resolve the key of that name as soon as anyone has been told it."""

        async def resolve() -> None:
            await self.world.heard("key", name=name)
            await self.resolve(name)

        task = asyncio.create_task(resolve())
        try:
            yield
        finally:
            if not self.world.find("key", name=name):
                task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def any(self, conversation: str) -> bool:
        """Whether a run before has made a call in the conversation."""
        return bool(
            await self.runtime.registry.store.handles(HandleQuery(conversation=conversation, stateful=None, limit=1))
        )

    async def resolve(self, name: str) -> None:
        """Resolve the key of that name with something that tells this run from all others."""
        key = await self.world.heard("key", name=name)
        sent = {"status": "ok", "payload": {"resolved in run": self.world.run}}
        outcome = await until_it_writes(lambda: self.runtime.resolve(key["key"], sent))
        facts = {"key_id": key["key_id"], "uid": key["uid"], "sent": sent}
        self.world.say("resolved", status=outcome.status, terminal=outcome.terminal, **facts)


class Talk:
    """A turn, as a model's loop uses it."""

    def __init__(self, play: Play, turn: Turn) -> None:
        self._play = play
        self._turn = turn
        self._calls = 0
        self.cancel = turn.cancel

    async def run(self, *calls: tuple[str, dict[str, Any]], park_after: float | None = None) -> Sequence[Response]:
        """One batch."""
        while True:
            made = [ToolCall(self._label(), name, arguments) for name, arguments in calls]
            responses = await self._turn.run(made, park_after=park_after)
            if not all(response.code == "store_unavailable" for response in responses):
                self.answered([call.id for call in made], responses)
                return responses
            await asyncio.sleep(_PAUSE)

    def _label(self) -> str:
        self._calls += 1
        return f"{self._turn.conversation}-{self._play.world.run}-{self._calls}"

    def answered(self, calls: Sequence[str], responses: Sequence[Response], *, resumed: bool = False) -> None:
        self.told("answered", responses, calls=calls, resumed=resumed, failed=self._turn.failed is not None)

    def told(self, kind: str, responses: Sequence[Response], **facts: Any) -> None:
        given = [[response.id, response.result, response.is_error] for response in responses]
        self._play.world.say(kind, conversation=self._turn.conversation, turn=self._turn.id, responses=given, **facts)

    async def look(self, id: str) -> HandleInfo | None:
        try:
            return await self._play.runtime.handle(id, conversation=self._turn.conversation)
        except ToolError as error:
            assert error.code == "handle_not_found", error
            return None

    async def spawn(self, tool: str, id: str, **arguments: Any) -> None:
        """Spawn it, unless a run before has."""
        if await self.look(id) is None:
            await self.run((tool, {"action": "spawn", "id": id, **arguments}))

    async def parked(self, id: str) -> HandleInfo:
        """Until it is parked, or has stopped."""
        while (info := await self.look(id)) is None or not (info.parked or info.state == "stopped"):  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE)
        return info

    async def wait(self, *ids: str) -> Any:
        """`await` all of them: its answer."""
        (response,) = await self.run(("await", {"all": list(ids)}))
        assert not response.is_error, response.result
        return json.loads(response.result)

    async def finish(self, *ids: str) -> None:
        """Until all have stopped, and how."""
        waited = await self.wait(*ids)
        assert [each["id"] for each in waited["completed"]] == list(ids), waited
        for id in ids:
            await self.stopped(id)

    async def stopped(self, id: str) -> None:
        info = await self.look(id)
        assert info is not None and info.state == "stopped", (id, info)
        outcome = msgspec.to_builtins(info.outcome)
        self._play.world.say("stopped", uid=info.uid, id=id, outcome=outcome, ended_by=info.ended_by)


class _Entered:
    """A turn that has been entered already."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *error: Any) -> None:
        given = (None, None, None) if isinstance(error[1], Later) else error
        await self._turn.__aexit__(*given)


async def until_it_writes(work: Callable[[], Awaitable[Any]]) -> Any:
    """Again while the store cannot write; nothing of it has happened then."""
    while True:
        try:
            return await work()
        except KeepholdError as error:
            if error.code != "store_unavailable":
                raise
            await asyncio.sleep(_PAUSE)
