"""`create_wait_handle` and `complete_wait_handle` (W1, W5–W7, D8)."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.turn.calls import STATEFUL, spawn
from tests.unit.waiting.calls import calling
from tests.wait_tools import with_wait_tools

import keephold
from keephold import Call, ConfigError, Key, Pending, Runtime, ToolCall
from keephold.testing import VirtualClock

START = "2026-01-01T00:00:00.000Z"


async def test_W1_a_created_handle_is_answered_as_the_seed_writes_it(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        metadata = {"userId": "user_456", "priority": "high"}
        made = await ask.create("job-123", type="workflow", metadata=metadata, timeoutMs=300_000)
        assert made == {
            "success": True,
            "handleId": "job-123",
            "type": "workflow",
            "status": "pending",
            "startTime": START,
            "timeout": 300_000,
            "metadata": metadata,
        }
        info = await ask.rt.handle("job-123", conversation="main")
        assert (info.state, info.kind, info.parked, info.metadata) == ("running", "workflow", True, metadata)


async def test_W1_a_hook_has_its_key_and_where_to_send_it(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        made = await ask.create("plain", type="hook")
        assert "completeUrl" not in made
        outcome = await ask.rt.resolve(made["key"], {"status": "ok", "payload": 1})
        assert str(outcome) == "accepted"
        ask.rt.durability.complete_url = "http://127.0.0.1:1/complete"
        made = await ask.create("served", type="hook")
        assert made["completeUrl"] == f"http://127.0.0.1:1/complete/{made['key']}"
        assert "key" not in await ask.create("other", type="agent")


async def test_W1_a_timer_that_was_created_does_not_complete_by_itself(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask.create("t", type="timer")
        await clock.advance(86_400)
        assert (await ask.rt.handle("t", conversation="main")).state == "running"


async def test_W7_an_id_is_used_once_in_any_state(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask.create("h")
        assert await ask.error("create_wait_handle", handleId="h", type="hook") == {
            "error": "Wait handle h already exists",
            "isError": True,
        }
        await ask.complete("h")
        assert (await ask.error("create_wait_handle", handleId="h", type="hook"))["error"].endswith("already exists")


async def test_W7_what_is_wrong_with_a_call_is_an_object(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        assert "`type`" in (await ask.error("create_wait_handle", handleId="h"))["error"]
        assert "webhook" in (await ask.error("create_wait_handle", handleId="h", type="webhook"))["error"]
        assert "handle id" in (await ask.error("create_wait_handle", handleId="a b", type="hook"))["error"]
        assert "timeoutMs" in (await ask.error("create_wait_handle", handleId="h", type="hook", timeoutMs=-1))["error"]


async def test_completing_is_answered_as_the_seed_writes_it(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask.create("webhook-callback-456", type="hook")
        await clock.advance(5.234)
        result = {"status": "processed", "recordsUpdated": 42}
        assert await ask.complete("webhook-callback-456", result=result) == {
            "success": True,
            "handleId": "webhook-callback-456",
            "type": "hook",
            "status": "completed",
            "result": result,
            "elapsedMs": 5234,
            "elapsedTime": "5s",
            "startTime": START,
            "endTime": "2026-01-01T00:00:05.234Z",
        }


@pytest.mark.parametrize("error", ["External service timeout", ""])
async def test_W6_an_error_key_even_empty_is_a_failure(clock: VirtualClock, error: str) -> None:
    async with calling(clock) as ask:
        await ask.create("h")
        done = await ask.complete("h", error=error, result={"ignored": True})
        assert (done["status"], done["error"]) == ("failed", error) and "result" not in done
        waited = await ask.wait_for("h")
        assert (waited["status"], waited["error"], waited["isError"]) == ("failed", error, True)


async def test_C10_a_null_error_is_none(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask.create("h")
        assert (await ask.complete("h", error=None, result=None))["status"] == "completed"


async def test_W6_completing_twice_tells_how_it_is(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask.create("h")
        await ask.complete("h", result=1)
        late = await ask.error("complete_wait_handle", handleId="h", error="no")
        assert late == {"error": "Wait handle h is already completed", "currentStatus": "completed", "isError": True}
        assert (await ask.wait_for("h"))["result"] == 1


async def test_W6_of_many_who_complete_at_once_one_wins(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask.create("h")
        responses = await asyncio.gather(
            *(ask.response("complete_wait_handle", handleId="h", result=n) for n in range(9))
        )
        (won,) = [json.loads(each.result) for each in responses if not each.is_error]
        assert (await ask.wait_for("h"))["result"] == won["result"]
        lost = [json.loads(each.result) for each in responses if each.is_error]
        assert {each["currentStatus"] for each in lost} == {"completed"}


async def test_W5_W6_a_late_success_never_overwrites_a_timeout(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask.create("h", timeoutMs=250)
        await clock.advance(1)
        late = await ask.error("complete_wait_handle", handleId="h", result="too late")
        assert late["currentStatus"] == "timeout"
        waited = await ask.wait_for("h")
        assert (waited["status"], waited["error"]) == ("timeout", "Operation timed out after 250ms")
        assert (waited["operationElapsedMs"], waited["operationElapsedTime"]) == (250, "250ms")
        assert "isError" not in waited


async def test_W5_a_timeout_of_0_is_none(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        assert "timeout" not in await ask.create("h", timeoutMs=0)
        await clock.advance(86_400)
        assert (await ask.complete("h"))["status"] == "completed"


async def test_W7_completing_what_does_not_exist(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        assert (await ask.error("complete_wait_handle", handleId="x"))["error"] == "Wait handle x not found"


async def test_B2_B3_a_batch_creates_completes_and_waits(clock: VirtualClock) -> None:
    async with with_wait_tools(clock=clock) as rt, rt.turn("main") as turn:
        calls = [
            ToolCall("1", "wait_for", {"handleId": "h"}),
            ToolCall("2", "complete_wait_handle", {"handleId": "h", "result": 7}),
            ToolCall("3", "create_wait_handle", {"handleId": "h", "type": "custom"}),
        ]
        replies = [json.loads(response.result) for response in await turn.run(calls)]
        assert [reply["status"] for reply in replies] == ["completed", "completed", "pending"]
        assert replies[0]["result"] == 7


async def test_B2_two_of_one_id_in_a_batch_reject_it(clock: VirtualClock) -> None:
    async with with_wait_tools(clock=clock) as rt, rt.turn("main") as turn:
        two = [ToolCall(str(n), "create_wait_handle", {"handleId": "h", "type": "custom"}) for n in range(2)]
        responses = await turn.run(two)
        assert {response.code for response in responses} == {"batch_rejected"}
        assert await rt.handles(conversation="main") == []


async def test_T1_wait_handles_outlive_the_turn(clock: VirtualClock) -> None:
    async with with_wait_tools(clock=clock) as rt:
        async with rt.turn("main") as turn:
            await turn.run([ToolCall("1", "create_wait_handle", {"handleId": "h", "type": "custom"})])
        assert (await rt.handle("h", conversation="main")).state == "running"


async def test_D8_a_model_cannot_complete_a_parked_call_by_its_id(clock: VirtualClock) -> None:
    keys: list[Key] = []

    @keephold.tool(actions=STATEFUL, on_turn_end="keep")
    async def approve(call: Call) -> Pending:
        keys.append(await call.completion_key())
        return Pending()

    @keephold.tool(actions=STATEFUL, on_turn_end="keep")
    async def busy() -> str:
        await asyncio.sleep(60)
        return "done"

    async with calling(clock, approve, busy) as ask:
        async with ask.rt.turn("main") as turn:
            await turn.run([spawn("approve", "a"), spawn("busy", "b")])
        refused = await ask.error("complete_wait_handle", handleId="a", result="yes")
        assert "completion key" in refused["error"]
        assert '"abort"' in (await ask.error("complete_wait_handle", handleId="b", result="yes"))["error"]
        assert (await ask.rt.handle("a", conversation="main")).state == "running"
        done = await ask.complete(keys[0], result="yes")
        assert (done["handleId"], done["type"], done["status"]) == ("a", "tool", "completed")
        assert (await ask.wait_for("a"))["result"] == "yes"
        late = await ask.error("complete_wait_handle", handleId=keys[0], result="no")
        assert late["currentStatus"] == "completed"


async def test_D8_an_event_is_brought_by_its_key_and_the_call_goes_on(clock: VirtualClock) -> None:
    keys: list[Key] = []

    @keephold.tool(actions=STATEFUL, on_crash="replay", on_turn_end="keep")
    async def waits(call: Call) -> str:
        keys.append(await call.durable().external_event_key("go"))
        got = await call.durable().await_event_json(keys[0])
        await asyncio.sleep(10)
        return f"got {got}"

    async with calling(clock, waits) as ask:
        async with ask.rt.turn("main") as turn:
            await turn.run([spawn("waits", "w")])
        done = await ask.complete(keys[0], result=5)
        assert (done["handleId"], done["status"]) == ("w", "pending") and "endTime" not in done
        assert (await ask.wait_for("w"))["result"] == "got 5"


async def test_D8_K5_a_key_that_is_none_is_not_repeated(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        refused = await ask.error("complete_wait_handle", handleId="hf1.x.y.z")
        assert "hf1" not in refused["error"]


async def test_N3_what_a_wait_tool_showed_is_no_news(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask.create("shown")
        await ask.create("unseen")
        response = await ask.response("complete_wait_handle", handleId="shown")
        assert response.notifications == ()
        await ask.rt.resolve((await ask.create("hook", type="hook"))["key"], {"status": "ok"})
        response = await ask.response("wait_for", handleId="hook")
        assert response.notifications == ()
        await ask.create("other", type="hook", timeoutMs=10)
        await clock.advance(1)
        told = (await ask.response("list_wait_handles")).notifications
        assert [each.kind for each in told] == ["tool.failed"] and "other" in told[0].message


async def test_a_tool_of_the_same_name_stands_in_for_a_wait_tool(clock: VirtualClock, tmp_path: Path) -> None:
    @keephold.tool
    async def sleep() -> str:
        return "mine"

    async with calling(clock, sleep) as ask:
        assert (await ask.response("sleep")).result == "mine"


async def test_P2_W7_one_that_nobody_permits_is_an_error_like_others(clock: VirtualClock, tmp_path: Path) -> None:
    config = tmp_path / "keephold.toml"
    config.write_text('[conversation.tools.create_wait_handle]\nsource = "builtin"\nrun = "ask"\n')
    async with calling(clock, config=config) as ask:
        refused = await ask.error("create_wait_handle", handleId="h", type="hook")
        assert "permission" in refused["error"]


async def test_they_are_offered_where_the_configuration_names_them(clock: VirtualClock, tmp_path: Path) -> None:
    config = tmp_path / "keephold.toml"
    config.write_text('[conversation.tools.create_wait_handle]\nsource = "builtin"\n')
    offered = ["await", "read_output", "create_wait_handle"]
    for options in ({"config": config}, {"builtins": ["create_wait_handle"]}):
        async with Runtime(clock=clock, **options) as rt:
            assert [tool["name"] for tool in rt.tools()] == offered
    async with Runtime(clock=clock) as rt:
        assert rt.tools() == []
    with pytest.raises(ConfigError, match="builtins: `await` is not a wait tool; there are sleep, create_wait_handle"):
        Runtime(builtins=["await"])


async def test_W11_handles_that_wait_share_their_tool_and_their_terms(clock: VirtualClock) -> None:
    """Ten thousand of them may wait: a copy of the tool for each would be most of their memory."""
    async with calling(clock) as ask:
        for id in ("a", "b"):
            await ask.create(id, type="hook")
        registry = ask.rt.registry
        a, b = (registry.find(id, ask.conversation) for id in ("a", "b"))
        assert a.tool is b.tool
        assert a.parking is b.parking is not None
