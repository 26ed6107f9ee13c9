"""How a handle comes to its end: by itself, by an abort, by the end of its turn, by the end of the runtime (S2, S3)."""

import asyncio
from pathlib import Path

from tests.scenarios.assistant import batch, call, error, one

import keephold
from keephold.testing import VirtualClock

CONFIG = """
[conversation.tools.server]
source = "local"
command = ["sh", "-c", "echo listening; exec sleep 300"]
run = "ask"
run_actions = { spawn = "unattended", abort = "ask" }
spawn = { stateful = true, lifecycle.on_turn_end = "keep" }
"""


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"))
async def editor(call: keephold.Call) -> str:
    call.emit("opened\n")
    save = await call.ask(keephold.Question(id="save", text="Save?", answer_type="Boolean"))
    await asyncio.sleep(10)
    return "saved" if save else "discarded"


async def test_S2_from_running_to_waiting_and_back_to_stopped(clock: VirtualClock) -> None:
    async with keephold.Runtime([editor], clock=clock) as rt, rt.turn("main") as turn:

        async def state() -> str:
            return (await rt.handle("e", conversation="main")).state

        await one(turn, "editor", {"action": "spawn", "id": "e"})
        assert await state() == "waiting"
        await one(turn, "editor", {"action": "apply", "id": "e", "input": True})
        assert await state() == "running"
        await one(turn, "await", {"all": ["e"]})
        assert await state() == "stopped"
        assert (await rt.handle("e", conversation="main")).ended_by == "self"


async def test_S2_stopped_if_aborted_while_waiting(clock: VirtualClock) -> None:
    async with keephold.Runtime([editor], clock=clock) as rt, rt.turn("main") as turn:
        waiting = await one(turn, "editor", {"action": "spawn", "id": "e"})
        assert waiting["state"] == "waiting"
        aborted = await one(turn, "editor", {"action": "abort", "id": "e"})
        assert aborted.pop("result").startswith("Aborted by the assistant.")
        assert aborted == {"id": "e", "state": "stopped", "ended_by": "abort"}  # and no `is_error`: it was wanted
        told = await error(turn, "editor", {"action": "apply", "id": "e", "input": True})
        assert "`e` is stopped" in told


async def test_S5_a_handle_lives_across_the_batches_of_a_turn_and_stays_readable(clock: VirtualClock) -> None:
    async with keephold.Runtime([editor], clock=clock) as rt, rt.turn("main") as turn:
        await one(turn, "editor", {"action": "spawn", "id": "e"})
        await clock.advance(3600 * 2)
        await one(turn, "editor", {"action": "apply", "id": "e", "input": False})
        await clock.advance(3600 * 2)  # longer than its retention, but the turn is open
        stopped = await one(turn, "editor", {"action": "fetch", "id": "e"})
        assert stopped == {"id": "e", "state": "stopped", "result": "discarded"}


async def test_T1_what_is_kept_outlives_its_turn_and_ends_with_the_runtime(tmp_path: Path) -> None:
    config = tmp_path / "keephold.toml"
    config.write_text(CONFIG)
    async with keephold.Runtime(config=config) as rt:
        async with rt.turn("main") as turn:
            await one(turn, "server", {"action": "spawn", "id": "s"})
            await turn.end()
            assert turn.ending is not None
            assert [(handle["id"], handle["state"]) for handle in turn.ending.kept] == [("s", "running")]
        async with rt.turn("main") as turn:
            _, waited = await batch(
                turn,
                call("server", {"action": "fetch", "id": "s"}),
                call("await", {"all": ["s"], "timeout_secs": 0}),
            )
            assert waited["pending"] == [{"id": "s", "state": "running"}]
        assert [handle.id for handle in rt.live()] == ["s"]
    ended = await rt.handle("s", conversation="main")
    assert (ended.state, ended.ended_by) == ("stopped", "shutdown")


async def test_P1_permission_is_asked_on_spawn_and_can_be_set_for_each_action(tmp_path: Path) -> None:
    """Nobody is there to be asked. The tool's `run` would refuse the spawn; `run_actions` decides otherwise."""
    config = tmp_path / "keephold.toml"
    config.write_text(CONFIG)
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        assert (await one(turn, "server", {"action": "spawn", "id": "s"}))["state"] == "running"
        assert (await one(turn, "server", {"action": "fetch", "id": "s"}))["state"] == "running"
        assert "run_actions.abort" in await error(turn, "server", {"action": "abort", "id": "s"})
        assert "permission" in await error(turn, "server", {})
