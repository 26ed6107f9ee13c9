"""A completion that was accepted is the outcome (R4, D5), even if the call is ended before its tool has returned
`Pending`: a fast webhook is enough."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import notifications, ok, stored_in
from tests.patience import until
from tests.turn.calls import STATEFUL, abort, call, reply, spawn

import keephold
from keephold import Call, Key, Pending, Runtime, Turn
from keephold.outcomes import Ok
from keephold.testing import VirtualClock

STORES = ("memory", "sqlite")


class Posting:
    """A tool that has given its key away and not yet returned `Pending`: it waits for the reply to its own request."""

    def __init__(self, **options: Any) -> None:
        self.keys: list[Key] = []

        @keephold.tool(**{"actions": STATEFUL, "name": "post", **options})
        async def post(call: Call) -> Pending:
            self.keys.append(await call.completion_key())
            await asyncio.Event().wait()
            return Pending()

        self.tool = post

    async def key(self) -> Key:
        await until(lambda: bool(self.keys))
        return self.keys[0]


@asynccontextmanager
async def two(where: str, tmp_path: Path, posting: Posting) -> AsyncIterator[tuple[Runtime, Runtime]]:
    """The runtime of the tool, and the one that gets the webhook: on SQLite another one, as in another process."""
    if where == "memory":
        async with Runtime([posting.tool]) as rt:
            yield rt, rt
    else:
        store = stored_in(tmp_path)
        async with Runtime([posting.tool], store=store) as rt, Runtime(store=store) as other:
            yield rt, other


async def _abort(turn: Turn) -> None:
    await turn.run([abort("post", "p")])


async def _cancel(turn: Turn) -> None:
    turn.cancel()


async def _end(turn: Turn) -> None:
    await turn.end()


@pytest.mark.parametrize("where", STORES)
@pytest.mark.parametrize("how", [_abort, _cancel, _end])
async def test_R4_a_call_that_is_ended_after_its_completion_was_accepted_stops_with_it(
    where: str, how: Callable[[Turn], Awaitable[None]], tmp_path: Path
) -> None:
    posting = Posting()
    async with two(where, tmp_path, posting) as (rt, webhooks):
        async with rt.turn("main") as turn:
            await turn.run([spawn("post", "p")])
            assert str(await webhooks.resolve(await posting.key(), ok("paid"))) == "accepted"
            await how(turn)
        info = await rt.handle("p", conversation="main")
        assert (info.state, info.outcome, info.ended_by) == ("stopped", Ok("paid"), "self")
        again = await webhooks.resolve(posting.keys[0], ok("twice"))
        assert (str(again), again.terminal) == ("already_resolved", {"status": "ok", "payload": "paid"})
        assert (await webhooks.handle("p", conversation="main")).outcome == Ok("paid")


@pytest.mark.parametrize("where", STORES)
async def test_R4_the_model_reads_the_accepted_completion(where: str, tmp_path: Path) -> None:
    """As the reply of its abort; by a notification, if the end of the turn ended the call; as a one-shot's result."""
    posting = Posting()
    async with two(where, tmp_path, posting) as (rt, webhooks):
        async with rt.turn("main") as turn:
            await turn.run([spawn("post", "p")])
            await webhooks.resolve(await posting.key(), ok("paid"))
            assert await reply(turn, abort("post", "p")) == {"id": "p", "state": "stopped", "result": "paid"}
            posting.keys.clear()
            await turn.run([spawn("post", "q")])
            await webhooks.resolve(
                await posting.key(), {"status": "err", "payload": {"code": "no", "message": "broke"}}
            )
        assert await notifications(rt) == [("tool.failed", "error")]
        posting.keys.clear()
        async with rt.turn("main") as turn:
            batch = asyncio.create_task(turn.run([call("post")]))
            await webhooks.resolve(await posting.key(), ok("one"))
            turn.cancel()
            (response,) = await batch
            assert (response.result, response.is_error) == ("one", False)


async def test_R4_a_timeout_of_the_tool_does_not_undo_its_completion(clock: VirtualClock) -> None:
    posting = Posting(timeout_secs=5)
    async with Runtime([posting.tool], clock=clock) as rt, rt.turn("main") as turn:
        await turn.run([spawn("post", "p")])
        assert str(await rt.resolve(await posting.key(), ok("paid"))) == "accepted"
        assert (await rt.wait(all=["p"], conversation="main"))["completed"][0]["result"] == "paid"


async def test_R4_without_a_completion_the_end_counts_and_resolves_the_key() -> None:
    posting = Posting()
    async with Runtime([posting.tool]) as rt, rt.turn("main") as turn:
        await turn.run([spawn("post", "p")])
        key = await posting.key()
        assert (await reply(turn, abort("post", "p")))["ended_by"] == "abort"
        assert str(await rt.resolve(key, ok("late"))) == "already_resolved"


async def test_P1_a_completion_whose_result_needs_approval_is_not_shown_by_an_abort() -> None:
    posting = Posting(result="ask")
    async with Runtime([posting.tool]) as rt, rt.turn("main") as turn:
        await turn.run([spawn("post", "p")])
        await rt.resolve(await posting.key(), ok("secret"))
        assert "secret" not in (await turn.run([abort("post", "p")]))[0].result
