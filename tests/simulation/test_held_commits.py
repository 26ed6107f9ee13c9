"""Decided and visible: what a store has not committed, nobody sees, nobody wakes for and no reply tells (S2, B1, A7).

The store here commits when it is told to. `on_hold` is set in the middle, when everything before is committed.
"""

from typing import Any

import pytest
from tests.simulation.directed import Theatre, rest, theatre
from tests.simulation.ops import Abort, Apply, Fetch, Once, Spawn
from tests.simulation.stores import HeldStore

from keephold.handles.state import Failure, Ok, Stopped
from keephold.store.base import Changed, Opened, Registered, Responded
from keephold.testing import VirtualClock


async def _spawned(here: Theatre, *ids: str) -> None:
    here.run(*(Spawn(id) for id in ids))
    await rest()


def _kinds(store: HeldStore) -> list[list[str]]:
    """What is held, in words."""
    return [
        [type(op.event).__name__ if isinstance(op, Changed) else type(op).__name__ for op in ops]
        for ops, _ in store.held
    ]


async def test_an_end_is_visible_and_wakes_waiters_when_it_is_committed(clock: VirtualClock) -> None:
    store = HeldStore()
    async with theatre(clock, store) as here:
        await _spawned(here, "w1")
        answer = here.world.wait(0, [], ["w1"], None)
        await rest()
        store.on_hold = True
        here.tell("w1", "ok", "done")
        await rest()
        assert isinstance(here.handle("w1").decided, Stopped)
        assert here.state("w1") == "running" and answer.at is None
        assert _kinds(store) == [["Ended"]]
        store.release()
        assert here.state("w1") == "stopped"
        await rest()
        assert answer.values[0]["completed"][0]["result"] == "done"
        store.on_hold = False


async def test_a_wait_that_times_out_tells_what_is_visible(clock: VirtualClock) -> None:
    store = HeldStore()
    async with theatre(clock, store) as here:
        await _spawned(here, "w1")
        store.on_hold = True
        answer = here.world.wait(0, [], ["w1"], 1.0)
        here.tell("w1", "ok", "done")
        await clock.advance(2)
        assert answer.values == [{"completed": [], "pending": [{"id": "w1", "state": "running"}], "timed_out": True}]
        store.on_hold = False
        store.release()


async def test_S2_a_second_end_is_refused_while_the_first_is_only_decided(clock: VirtualClock) -> None:
    store = HeldStore()
    async with theatre(clock, store) as here:
        await _spawned(here, "w1")
        store.on_hold = True
        here.tell("w1", "ok", "done")
        await rest()
        assert not here.registry.end(here.handle("w1"), Failure("late"), "abort")
        answer = here.run(Abort("w1"))
        await rest()
        assert answer.at is None
        store.on_hold = False
        store.release()
        await rest()
        assert answer.values == [(False, {"id": "w1", "state": "stopped", "result": "done"})]
        assert here.handle("w1").info().outcome == Ok("done")


async def test_S2_an_abort_that_was_decided_first_stands(clock: VirtualClock) -> None:
    store = HeldStore()
    async with theatre(clock, store) as here:
        await _spawned(here, "w1")
        store.on_hold = True
        here.run(Abort("w1"))
        await rest()
        store.release(1)  # the batch is registered; the abort acts, its end is held
        await rest()
        assert here.state("w1") == "running" and _kinds(store) == [["Ended"]]
        assert not here.registry.end(here.handle("w1"), Ok("late"))
        store.on_hold = False
        store.release()
        await rest()
        assert here.handle("w1").info().ended_by == "abort"


async def test_B1_no_reply_leaves_before_it_is_committed(clock: VirtualClock) -> None:
    store = HeldStore()
    async with theatre(clock, store) as here:
        answer = here.run(Once("w8"))
        await rest()
        store.on_hold = True
        here.tell("w8", "ok", "done")
        await rest()
        assert answer.at is None and _kinds(store) == [["Ended"]]
        store.release()
        await rest()
        assert answer.at is None and _kinds(store) == [["Responded"]]
        (responded,) = store.held[0][0]
        assert isinstance(responded, Responded) and responded.responses == (("0", "done", "done", False, None),)
        store.release()
        await rest()
        assert answer.values == [(False, "done")]
        store.on_hold = False


async def test_B2_nothing_starts_before_it_is_registered(clock: VirtualClock) -> None:
    store = HeldStore()
    async with theatre(clock, store) as here:
        store.on_hold = True
        answer = here.run(Spawn("w1"), Spawn("w2"), Fetch("w1"))
        await rest()
        assert here.world.states() == [] and _kinds(store) == [["Opened", "Registered", "Registered"]]
        opened, *registered = store.held[0][0]
        assert isinstance(opened, Opened) and all(isinstance(op, Registered) for op in registered)
        made = [op.record.uid for op in registered if isinstance(op, Registered)]
        assert [uid for *_, uid in opened.calls] == [*made, None]  # B9; a fetch makes none
        store.release(1)
        assert [here.state("w1"), here.state("w2")] == ["running", "running"]  # it says that they start, too
        await rest()
        assert answer.at is None
        store.on_hold = False
        store.release()
        await rest()
        assert [reply["state"] for _, reply in answer.values] == ["running"] * 3


async def test_A6_a_question_is_asked_when_it_is_committed(clock: VirtualClock) -> None:
    store = HeldStore()
    async with theatre(clock, store) as here:
        await _spawned(here, "c1")
        await clock.advance(1)
        answer = here.world.wait(0, [], ["c1"], None)
        await rest()
        store.on_hold = True
        here.tell("c1", "ask")
        await rest()
        assert here.state("c1") == "running" and answer.at is None
        store.release()
        await rest()
        assert here.state("c1") == "waiting" and answer.values[0]["needs_input"] is True
        store.on_hold = False


async def test_C6_an_answer_reaches_the_tool_when_it_is_committed(clock: VirtualClock) -> None:
    store = HeldStore()
    async with theatre(clock, store) as here:
        await _spawned(here, "c1")
        await clock.advance(1)
        here.tell("c1", "ask")
        here.tell("c1", "ok", "answered")  # which it does as soon as it has the answer
        await rest()
        store.on_hold = True
        here.run(Apply("c1", True))
        await rest()
        store.release(1)
        await rest()
        assert here.state("c1") == "waiting" and _kinds(store) == [["QuestionAnswered", "TakenBack"], []]
        store.on_hold = False
        store.release()
        await rest()
        assert here.state("c1") == "stopped"


async def test_commits_become_visible_in_order(clock: VirtualClock) -> None:
    store = HeldStore()
    async with theatre(clock, store) as here:
        await _spawned(here, "w1", "w2")
        answer = here.world.wait(0, ["w1", "w2"], [], None)
        await rest()
        store.on_hold = True
        here.tell("w2", "ok", "second")
        here.tell("w1", "ok", "first")
        await rest()
        store.release(1)
        await rest()
        assert (here.state("w1"), here.state("w2")) == ("running", "stopped")
        assert [entry["id"] for entry in answer.values[0]["completed"]] == ["w2"]
        assert answer.values[0]["pending"] == [{"id": "w1", "state": "running"}]
        store.on_hold = False
        store.release()


@pytest.mark.parametrize("kind", ["l", "d"])
async def test_B4_two_serial_handles_are_never_seen_running_at_once(clock: VirtualClock, kind: str) -> None:
    store = HeldStore()
    async with theatre(clock, store) as here:
        await _spawned(here, f"{kind}1", f"{kind}2")
        await clock.advance(3)
        store.on_hold = True
        here.tell(f"{kind}1", "ok")
        seen: list[tuple[Any, ...]] = []
        for _ in range(3):
            await rest()
            seen.append(tuple(here.state(f"{kind}{number}") for number in (1, 2)))
            store.release(1)
        assert seen == [("running", "pending"), ("stopped", "pending"), ("stopped", "running")]
        store.on_hold = False
