"""`await` for a line of output, and for a handle that is ready (A9)."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.turn.calls import STATEFUL, TALKING, call, fetch, opened, replies, reply, spawn
from tests.turn.puppets import STORES, Puppets, nothing, start, store_url

import keephold
from keephold import Call, Runtime, ToolError
from keephold.policies import NotificationPolicy
from keephold.testing import VirtualClock


@keephold.tool(actions=STATEFUL)
async def server(call: Call, lines: list[str], every: float = 1.0, stays: float = 100.0) -> str:
    """Print one text after the other, then stay."""
    for line in lines:
        await asyncio.sleep(every)
        call.emit(line)
    await asyncio.sleep(stays)
    return "over"


READY = replace(server, name="ready_server", spawn=replace(server.spawn, ready=r"listening on \d+"))
UP = ["starting\n", "listening on 80\n"]


def on(id: str, pattern: str) -> dict[str, str]:
    return {"id": id, "pattern": pattern}


def until(*conditions: dict[str, str], **others: Any) -> keephold.ToolCall:
    return call("await", output=list(conditions), **others)


async def test_A9_await_returns_when_a_line_matches_and_the_handle_runs_on(clock: VirtualClock) -> None:
    async with opened(clock, [server]) as (_, turn):
        await replies(turn, spawn("server", "s", lines=UP))
        begun = clock.now()
        answer = await reply(turn, until(on("s", "listening on (.*)")))
        assert clock.now() - begun == 2
        assert answer == {
            "completed": [],
            "pending": [{"id": "s", "state": "running", "matched": "listening on 80"}],
        }


async def test_A9_a_map_of_patterns_is_accepted(clock: VirtualClock) -> None:
    async with opened(clock, [server]) as (_, turn):
        await replies(turn, spawn("server", "s", lines=UP))
        (entry,) = (await reply(turn, call("await", output={"s": "^start"})))["pending"]
        assert entry["matched"] == "starting"


async def test_A9_output_printed_before_counts(clock: VirtualClock) -> None:
    async with opened(clock, [server]) as (_, turn):
        await replies(turn, spawn("server", "s", lines=UP))
        await asyncio.sleep(10)
        begun = clock.now()
        (entry,) = (await reply(turn, until(on("s", "starting"), timeout_secs=0)))["pending"]
        assert (clock.now(), entry["matched"]) == (begun, "starting")


async def test_A9_a_handle_that_stops_without_a_match_ends_the_wait(clock: VirtualClock) -> None:
    async with opened(clock, [server]) as (_, turn):
        await replies(turn, spawn("server", "s", lines=UP, stays=3))
        answer = await reply(turn, until(on("s", "never")))
        assert answer == {"completed": [{"id": "s", "state": "stopped", "result": "over"}], "pending": []}


async def test_A9_all_conditions_must_hold(clock: VirtualClock) -> None:
    async with opened(clock, [server, READY]) as (_, turn):
        begun = clock.now()
        await replies(
            turn,
            spawn("server", "a", lines=["x\n"], stays=1),
            spawn("server", "b", lines=["x\n"], stays=4),
            spawn("server", "c", lines=["x\n", "y\n"], every=3),
            spawn("ready_server", "d", lines=["listening on 1\n"], every=8),
        )
        answer = await reply(turn, until(on("c", "y"), on("c", "^x$"), all=["b"], any=["a"], ready=["d"]))
        assert clock.now() - begun == 8
        assert [entry["id"] for entry in answer["completed"]] == ["a", "b"]
        assert answer["pending"] == [
            {"id": "c", "state": "running", "matched": "y\nx"},
            {"id": "d", "state": "running", "ready": True},
        ]


async def test_A9_a_timeout_shows_what_matched_so_far(clock: VirtualClock) -> None:
    async with opened(clock, [server]) as (_, turn):
        await replies(turn, spawn("server", "s", lines=UP), spawn("server", "t", lines=UP))
        answer = await reply(turn, until(on("s", "starting"), on("t", "never"), timeout_secs=5))
        assert answer["timed_out"] and answer["pending"] == [
            {"id": "s", "state": "running", "matched": "starting"},
            {"id": "t", "state": "running"},
        ]


async def test_A9_a_spawn_and_the_wait_for_its_line_fit_into_one_batch(clock: VirtualClock) -> None:
    async with opened(clock, [server]) as (_, turn):
        _, answer = await replies(turn, spawn("server", "s", lines=UP), until(on("s", "listening")))
        assert answer["pending"][0]["matched"] == "listening on 80"


async def test_A9_a_queued_handle_is_waited_for_from_its_start(clock: VirtualClock) -> None:
    serial = replace(server, scheduling="serial")
    async with opened(clock, [serial]) as (_, turn):
        await replies(turn, spawn("server", "first", lines=["x\n"], stays=1))
        await replies(turn, spawn("server", "second", lines=UP))
        assert (await reply(turn, until(on("second", "listening"))))["pending"][0]["matched"] == "listening on 80"


async def test_A9_a_prompt_without_a_line_end_matches_at_once(clock: VirtualClock) -> None:
    async with opened(clock, [server]) as (_, turn):
        await replies(turn, spawn("server", "s", lines=["Python 3\n>>", "> "]))
        begun = clock.now()
        assert (await reply(turn, until(on("s", "^>>> $"))))["pending"][0]["matched"] == ">>> "
        assert clock.now() - begun == 2


async def test_A6_a_handle_that_reads_its_input_without_a_match_needs_input(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def shell(call: Call) -> None:
        call.emit("$ ")
        await call.input()

    async with opened(clock, [shell]) as (_, turn):
        await replies(turn, spawn("shell", "s"))
        answer = await reply(turn, until(on("s", "never")))
        assert answer["needs_input"] and answer["pending"][0]["waiting_for_input"]
        assert "needs_input" not in await reply(turn, until(on("s", r"\$ ")))


async def test_A6_output_that_is_still_to_be_searched_comes_before_needs_input(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def shell(call: Call) -> None:
        call.emit("x" * 99 + "\n")
        for _ in range(20):
            call.emit(("y" * 99 + "\n") * 1000)
        call.emit("$ ")
        await call.input()

    async with opened(clock, [shell]) as (_, turn):
        await replies(turn, spawn("shell", "s"))
        answer = await reply(turn, until(on("s", r"^\$ $")))
        assert answer["pending"] == [{"id": "s", "state": "running", "matched": "$ "}]
        assert (await reply(turn, until(on("s", "never"))))["needs_input"]


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ([on("s", "(")], "the pattern for handle `s` is not a regular expression (RE2 syntax): missing ): ("),
        ([on("s", "(?=x)")], "invalid perl operator: (?="),
        ([on("s", "x{1001}")], "invalid repetition size: {1001}"),
        ([on("s", r"\pL{50}")], "pattern too large"),
        ([on("s", "x" * 200_000)], "pattern too large"),
        ([on("s", "(?-m)^x")], "`(?-m)` is not supported"),
        ([on("s", "(")] * 65, "65 patterns; at most 64"),  # not one of them is compiled
        ([on("t", "x")], "Handle `t` not found"),
        ([{"id": "s"}], "missing `pattern` in `output[0]`"),
        ([["s", "x"]], "`output[0]`"),
        ("x", "`output`"),
        ([], "At least one handle ID required"),
    ],
)
async def test_A9_wrong_conditions_are_refused_with_the_reason(clock: VirtualClock, output: Any, says: str) -> None:
    async with opened(clock, [server]) as (_, turn):
        await replies(turn, spawn("server", "s", lines=UP))
        (response,) = await turn.run([call("await", output=output)])
        assert response.is_error and says in response.result, response.result


async def test_A9_waiting_for_a_tool_without_ready_is_refused_and_names_output(clock: VirtualClock) -> None:
    async with opened(clock, [server]) as (_, turn):
        await replies(turn, spawn("server", "s", lines=UP))
        (response,) = await turn.run([call("await", ready=["s"])])
        assert response.is_error and "`spawn.ready`" in response.result and '{"s": "<regex>"}' in response.result


async def test_A9_replies_say_that_a_handle_is_ready(clock: VirtualClock) -> None:
    async with opened(clock, [READY]) as (rt, turn):
        await replies(turn, spawn("ready_server", "s", lines=UP, stays=5))
        assert "ready" not in await reply(turn, fetch("ready_server", "s"))
        begun = clock.now()
        assert (await reply(turn, call("await", ready=["s"])))["pending"] == [
            {"id": "s", "state": "running", "ready": True}
        ]
        assert clock.now() - begun == 2
        assert (await reply(turn, fetch("ready_server", "s")))["ready"] is True
        assert (await rt.handle("s", conversation="main")).ready
        stopped = (await reply(turn, call("await", ready=["s"], all=["s"])))["completed"]
        assert stopped == [{"id": "s", "state": "stopped", "result": "over"}]
        assert not (await rt.handle("s", conversation="main")).ready


@pytest.mark.parametrize("store", STORES)
async def test_N1_a_handle_that_becomes_ready_is_notified_once(store: str, tmp_path: Path) -> None:
    puppets = Puppets()
    tool = puppets.tool(ready="up")
    async with Runtime([tool, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([start("p")])
        puppets.prints("p", "up\nup again\n")
        await puppets.done("p")
        await rt.registry.write(())
        (response,) = await turn.run([call("nothing")])
        assert [(each.kind, each.level, each.message) for each in response.notifications] == [
            ("tool.ready", "info", "`p` (work) is ready: up")
        ]
        puppets.prints("p", "up\n")
        await puppets.done("p")
        (response,) = await turn.run([call("nothing")])
        assert not response.notifications
        puppets.ends("p")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("look", ["fetch", "await"])
async def test_N3_a_reply_that_shows_ready_takes_the_notification_back(store: str, look: str, tmp_path: Path) -> None:
    puppets = Puppets()
    tool = puppets.tool(ready="up")
    async with Runtime([tool, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([start("p")])
        puppets.prints("p", "up\n")
        await puppets.done("p")
        await rt.registry.write(())
        seen = fetch("work", "p") if look == "fetch" else call("await", ready=["p"])
        (response,) = await turn.run([seen])
        assert '"ready":true' in response.result and not response.notifications
        (response,) = await turn.run([call("nothing")])
        assert not response.notifications
        puppets.ends("p")


async def test_N2_ready_is_not_notified_if_the_tool_says_so(clock: VirtualClock) -> None:
    quiet = replace(READY, spawn=replace(READY.spawn, notifications=NotificationPolicy(on_ready=False)))
    async with opened(clock, [quiet, nothing]) as (_, turn):
        await replies(turn, spawn("ready_server", "s", lines=UP))
        await asyncio.sleep(5)
        (response,) = await turn.run([call("nothing")])
        assert not response.notifications


async def test_A9_a_new_attempt_is_not_ready_until_it_says_so(clock: VirtualClock) -> None:
    attempts = 0

    @keephold.tool(actions=STATEFUL, ready="up", retry="safe")
    async def flaky(call: Call) -> None:
        nonlocal attempts
        attempts += 1
        await asyncio.sleep(1)
        call.emit("up\n")
        await asyncio.sleep(1)
        if attempts == 1:
            raise ToolError("not this time", transient=True)
        await asyncio.sleep(100)

    async with opened(clock, [flaky]) as (rt, turn):
        await replies(turn, spawn("flaky", "f"))
        await reply(turn, call("await", ready=["f"]))
        await asyncio.sleep(1.5)  # the second attempt begins after at most 0.2 s, and prints a second later
        assert attempts == 2
        assert "ready" not in await reply(turn, fetch("flaky", "f"))
        begun = clock.now()
        await reply(turn, call("await", ready=["f"]))
        assert 0 < clock.now() - begun < 1
        assert (await rt.handle("f", conversation="main")).ready


async def test_A9_python_waits_for_output_and_ready(clock: VirtualClock) -> None:
    async with opened(clock, [READY]) as (rt, turn):
        await replies(turn, spawn("ready_server", "s", lines=UP))
        (entry,) = (await turn.wait(output={"s": "start"}))["pending"]
        assert entry == {"id": "s", "state": "running", "matched": "starting"}
        (entry,) = (await rt.wait(ready=["s"], conversation="main"))["pending"]
        assert entry == {"id": "s", "state": "running", "ready": True}
        with pytest.raises(ToolError, match="missing"):
            await rt.wait(output=[on("s", "(")], conversation="main")


async def test_A9_a_commands_line_is_matched_as_it_is_rendered(tmp_path: Path) -> None:
    script = r"printf 'one\r\n\033[32mLocal\033[0m: http'; printf '://x\n'; sleep 100"
    (tmp_path / "keephold.toml").write_text(
        f"""[conversation.tools.dev]
        source = "local"
        command = ["sh", "-c", {json.dumps(script)}]
        run = "unattended"
        spawn = {{ stateful = true, ready = '^Local: \\S+$' }}
        """
    )
    async with Runtime(config=tmp_path / "keephold.toml") as rt, rt.turn("main") as turn:
        await turn.run([spawn("dev", "d")])
        answer = await turn.wait(output={"d": "://"}, ready=["d"], timeout=60)
        assert answer["pending"] == [{"id": "d", "state": "running", "ready": True, "matched": "Local: http://x"}]


@pytest.mark.parametrize("secs", [1, 3])
async def test_A7_a_wait_that_is_over_watches_nothing(clock: VirtualClock, secs: int) -> None:
    async with opened(clock, [server]) as (rt, turn):
        await replies(turn, spawn("server", "s", lines=UP))
        await turn.wait(output={"s": "listening"}, timeout=secs)
        (handle,) = rt.registry.live("main")
        assert not handle.watchers


@pytest.mark.parametrize(
    ("given", "suggested"),
    [
        ({"output": [on("s", "started (")]}, {"output": [on("s", r"started \(")]}),
        ({"output": [on("t", "up")]}, {"output": [on("s", "up")]}),
        ({"output": {"t": "up"}, "timeout_secs": 5}, {"output": [on("s", "up")], "timeout_secs": 5}),
        ({"output": [{"id": "s"}]}, {"output": [on("s", "(?i)ready|listening|started")]}),
        ({"output": "up", "all": ["s"]}, {"all": ["s"], "output": [on("s", "up")]}),
        ({"ready": ["s"]}, {"output": [on("s", "(?i)ready|listening|started")]}),
        ({"ready": "t"}, {"ready": ["r"]}),
    ],
)
async def test_C9_a_wrong_condition_is_answered_with_a_call_that_works(
    clock: VirtualClock, given: dict[str, Any], suggested: dict[str, Any]
) -> None:
    async with opened(clock, [server, READY]) as (_, turn):
        calls = [spawn("server", "s", lines=UP)] if "t" not in str(given.get("ready")) else []
        await replies(turn, *calls or [spawn("ready_server", "r", lines=UP)])
        (response,) = await turn.run([call("await", **given)])
        text = response.model.rpartition("\nTry: await ")[2]
        assert json.loads(text) == {"timeout_secs": 60, **suggested}, response.model
        (again,) = await turn.run([call("await", **json.loads(text))])
        assert not again.is_error, again.result
