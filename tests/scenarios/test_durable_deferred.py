"""Active against deferred completion: the examples of "Tool execution" (D1, D2, D10, D11).

Most tools finish inline; one that waits on work elsewhere takes a completion key, hands it out, and returns `Pending`.
"""

import asyncio
from typing import Any

import pytest
from tests.scenarios.assistant import batch, call, one, text

import keephold
from keephold.testing import VirtualClock

queue: list[tuple[keephold.Key, str]] = []
"""A webhook, a job queue, a human: whatever delivers the result."""
stopped: list[str] = []


@pytest.fixture(autouse=True)
def _empty() -> None:
    queue.clear()
    stopped.clear()


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def review(call: keephold.Call, change: str) -> keephold.Pending:
    """Ask a person to review a change."""
    key = await call.completion_key()  # before returning Pending
    queue.append((key, change))
    return keephold.Pending()


@review.on_cancel
async def withdraw_review(key: keephold.Key, arguments: dict[str, Any]) -> None:
    stopped.append(arguments["change"])


async def test_D1_done_finishes_inline_and_pending_when_its_key_is_resolved(clock: VirtualClock) -> None:
    @keephold.tool
    async def read_file(path: str) -> str:
        return f"contents of {path}"

    async with keephold.Runtime([review, read_file], clock=clock) as rt, rt.turn("main") as turn:
        running = asyncio.create_task(
            turn.run([call("read_file", {"path": "a.txt"}), call("review", {"change": "typo"})])
        )
        await clock.advance(86_400)  # a day later
        key, change = queue[0]
        assert change == "typo"
        assert str(await rt.resolve(key, {"status": "ok", "payload": "looks good"})) == "accepted"
        assert [response.result for response in await running] == ["contents of a.txt", "looks good"]


async def test_D1_returning_pending_without_a_key_fails_the_call(clock: VirtualClock) -> None:
    @keephold.tool
    async def forgetful() -> keephold.Pending:
        return keephold.Pending()

    async with keephold.Runtime([forgetful], clock=clock) as rt, rt.turn("main") as turn:
        (response,) = await turn.run([call("forgetful", {})])
        assert response.is_error and response.code == "pending_tool_missing_completion_key"


async def test_D2_a_deadline_feeds_a_timeout_back_to_the_model(clock: VirtualClock) -> None:
    @keephold.tool
    async def ask_boss(call: keephold.Call) -> keephold.Pending:
        await call.completion_key()
        return keephold.Pending(deadline=3600)

    async with keephold.Runtime([ask_boss], clock=clock) as rt, rt.turn("main") as turn:
        (response,) = await turn.run([call("ask_boss", {})])
        assert response.is_error and response.result == "pending tool completion timed out"
        assert response.code == "tool_completion_timeout" and turn.failed is None


async def test_D11_fail_turn_on_timeout_fails_the_whole_turn(clock: VirtualClock) -> None:
    @keephold.tool
    async def ask_boss(call: keephold.Call) -> keephold.Pending:
        await call.completion_key()
        return keephold.Pending(deadline=3600, on_timeout="fail_turn")

    async with keephold.Runtime([ask_boss], clock=clock) as rt, rt.turn("main") as turn:
        await turn.run([call("ask_boss", {})])
        assert turn.failed is not None and turn.failed.code == "tool_completion_timeout"
        with pytest.raises(keephold.errors.TurnFailed):
            await turn.run([call("ask_boss", {})])


async def test_D2_cancelling_stops_the_work_outside_unless_it_is_to_be_ignored(clock: VirtualClock) -> None:
    @keephold.tool(actions=("spawn", "fetch", "abort"))
    async def nightly(call: keephold.Call) -> keephold.Pending:
        await call.completion_key()
        return keephold.Pending(on_cancel="ignore")

    @nightly.on_cancel
    async def stop_nightly(key: keephold.Key, arguments: dict[str, Any]) -> None:
        stopped.append("nightly")

    async with keephold.Runtime([review, nightly], clock=clock) as rt, rt.turn("main") as turn:
        await one(turn, "review", {"action": "spawn", "id": "r", "change": "typo"})
        await one(turn, "nightly", {"action": "spawn", "id": "n"})
        await clock.advance(1)
        ends = await batch(
            turn, call("review", {"action": "abort", "id": "r"}), call("nightly", {"action": "abort", "id": "n"})
        )
        assert [end["result"] for end in ends] == ["pending tool completion cancelled"] * 2
        await clock.advance(1)
        assert stopped == ["typo"]


async def test_D10_the_model_may_go_on_and_collect_the_result_later(clock: VirtualClock) -> None:
    async with keephold.Runtime([review], clock=clock) as rt, rt.turn("main") as turn:
        (response,) = await turn.run([keephold.ToolCall("toolu_7", "review", {"change": "typo"})], park_after=30)
        assert response.result == '{"id":"call:toolu_7","state":"running","parked":true}'
        await rt.resolve(queue[0][0], {"status": "ok", "payload": {"approved": True}})
        waited = await one(turn, "await", {"all": ["call:toolu_7"]})
        assert waited["completed"] == [{"id": "call:toolu_7", "state": "stopped", "result": '{"approved":true}'}]


async def test_D5_the_resolver_is_told_what_became_of_it(clock: VirtualClock) -> None:
    async with keephold.Runtime([review], clock=clock) as rt, rt.turn("main") as turn:
        await one(turn, "review", {"action": "spawn", "id": "r", "change": "typo"})
        await clock.advance(1)
        key = queue[0][0]
        first = await rt.resolve(key, {"status": "err", "payload": {"code": "rejected", "message": "not like this"}})
        second = await rt.resolve(key, {"status": "ok", "payload": "fine"})
        forged = await rt.resolve(key[:-1] + "!", {"status": "ok", "payload": "fine"})
        assert [str(each) for each in (first, second, forged)] == ["accepted", "already_resolved", "unknown_or_revoked"]
        assert second.terminal == {"status": "err", "payload": {"code": "rejected", "message": "not like this"}}
        assert "not like this" in await text(turn, "review", {"action": "fetch", "id": "r"})
