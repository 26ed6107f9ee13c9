"""The completion of a parked call, held until a person says whether it may be seen (D5, D7, D10, P1, P5)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.durable.lives import (
    HandClock,
    approval,
    notifications,
    ok,
    only,
    parked,
    parsed,
    power_cut,
    stopped,
    stored_in,
)
from tests.patience import until
from tests.turn.calls import STATEFUL, abort, call, fetch, reply, spawn, wait_all
from tests.turn.people import Person

import keephold
from keephold import Call, Key, Pending, Runtime, Tool, Turn
from keephold.outcomes import Failure, Ok
from keephold.turn.prompts import Approved, DeliverResult, Denied, Dismissed, Edited

STORES = ("memory", "sqlite")


@asynccontextmanager
async def opened(
    directory: Path, store: str, tools: list[Tool], person: Person, clock: HandClock | None = None
) -> AsyncIterator[tuple[Runtime, Turn]]:
    url = "memory:" if store == "memory" else stored_in(directory)
    async with Runtime(tools, store=url, clock=clock, prompter=person) as rt, rt.turn("main") as turn:
        yield rt, turn


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (Approved(), Ok("the secret")),
        (Edited("public"), Ok("public")),
        (Denied(), Ok("Result delivery skipped by user.")),
        (Denied("no"), Ok("Result delivery skipped by user: no")),
        (Dismissed(), Ok("Result delivery cancelled.")),
    ],
)
async def test_P1_D9_a_completion_is_seen_when_the_person_has_said(
    tmp_path: Path, store: str, said: Any, outcome: Ok
) -> None:
    keys, person = list[Key](), Person()
    async with opened(tmp_path, store, [approval(keys, result="ask")], person) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        assert str(await rt.resolve(keys[0], ok("the secret"))) == "accepted"
        prompt = await person.sees()
        assert msgspec.structs.replace(prompt, uid=None, digest="", request="") == DeliverResult(
            tool="approve", id="a", result="the secret", is_error=False, conversation="main", edit=False
        )
        assert parsed(await only(turn, fetch("approve", "a"))) == {"id": "a", "state": "running", "parked": True}
        answer = await rt.resolve(keys[0], ok("again"))
        assert (str(answer), answer.terminal) == ("already_resolved", ok("the secret"))  # D5: what was accepted counts
        assert await notifications(rt) == []
        await person.says(said)
        info = await stopped(rt, "a")
        assert info.outcome == outcome and len(person.seen) == 1
        assert await notifications(rt) == [("tool.stopped", "info")]


@pytest.mark.parametrize("store", STORES)
async def test_P1_an_error_stays_one(tmp_path: Path, store: str) -> None:
    keys, person = list[Key](), Person(Denied())
    async with opened(tmp_path, store, [approval(keys, result="ask")], person) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        await rt.resolve(keys[0], {"status": "err", "payload": {"code": "mine", "message": "the secret"}})
        outcome = (await stopped(rt, "a")).outcome
        assert outcome == Failure("Result delivery skipped by user.", "mine")
        assert isinstance(person.seen[0], DeliverResult) and person.seen[0].is_error


@pytest.mark.parametrize("store", STORES)
async def test_D10_a_one_shot_call_is_answered_then(tmp_path: Path, store: str) -> None:
    keys, person = list[Key](), Person()
    async with opened(tmp_path, store, [approval(keys, result="edit")], person) as (rt, turn):
        batch = asyncio.create_task(turn.run([call("approve")]))
        await parked(rt)
        await rt.resolve(keys[0], ok("the secret"))
        prompt = await person.sees()
        assert (prompt.id, prompt.edit) == (None, True) and not batch.done()
        await person.says(Edited("public"))
        assert (await batch)[0].result == "public"


@pytest.mark.parametrize("store", STORES)
async def test_D5_resolved_before_it_is_parked_is_asked_about_once(tmp_path: Path, store: str) -> None:
    """The completion is there when the tool returns `Pending`."""
    person = Person()

    @keephold.tool(actions=STATEFUL, result="ask")
    async def quick(call: Call) -> Pending:
        await rt.resolve(await call.completion_key(), ok("the secret"))
        return Pending()

    async with opened(tmp_path, store, [quick], person) as (rt, turn):
        await reply(turn, spawn("quick", "q"))
        await person.says(Approved())
        assert (await stopped(rt, "q")).outcome == Ok("the secret")
        assert len(person.seen) == 1


@pytest.mark.parametrize("store", STORES)
async def test_D7_its_deadline_does_not_undo_what_was_accepted(tmp_path: Path, store: str) -> None:
    keys, person, clock = list[Key](), Person(), HandClock()
    approve = approval(keys, Pending(deadline=60), result="ask")
    async with opened(tmp_path, store, [approve], person, clock) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        await rt.resolve(keys[0], ok("the secret"))
        await person.sees()
        clock.at += 3600
        await rt.deadlines.check()
        assert (await rt.handle("a", conversation="main")).state == "running"
        await person.says(Approved())
        assert (await stopped(rt, "a")).outcome == Ok("the secret")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("end", ["abort", "cancel"])
async def test_D2_P5_ending_it_meanwhile_withdraws_the_prompt(tmp_path: Path, store: str, end: str) -> None:
    keys, person = list[Key](), Person()
    async with opened(tmp_path, store, [approval(keys, result="ask")], person) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        await rt.resolve(keys[0], ok("the secret"))
        prompt = await person.sees()
        if end == "abort":
            await turn.run([abort("approve", "a")])
        else:
            turn.cancel()
            await turn.end()
        await person.sees_nothing()
        assert person.withdrawn == [prompt]
        info = await rt.handle("a", conversation="main")
        assert info.state == "stopped" and "secret" not in str(info.outcome)


@pytest.mark.parametrize("store", STORES)
async def test_T4_a_turn_that_ends_leaves_it_and_its_prompt(tmp_path: Path, store: str) -> None:
    """Parked calls are not live: they stay, and the person may still say."""
    keys, person = list[Key](), Person()
    async with opened(tmp_path, store, [approval(keys, result="ask")], person) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        await rt.resolve(keys[0], ok("the secret"))
        await person.sees()
        await turn.end()
        assert person.withdrawn == []
        await person.says(Approved())
        assert (await stopped(rt, "a")).outcome == Ok("the secret")


@pytest.mark.parametrize("ending", ["close", "crash"])
async def test_R6_D7_the_next_runtime_asks_again(tmp_path: Path, ending: str) -> None:
    keys, first, store = list[Key](), Person(), stored_in(tmp_path)
    approve = approval(keys, result="ask")
    async with Runtime([approve], store=store, prompter=first) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        await rt.resolve(keys[0], ok("the secret"))
        await first.sees()
        if ending == "crash":
            store = power_cut(store)
        await rt.close()
    person = Person()
    async with Runtime([approve], store=store, prompter=person) as rt, rt.turn("main") as turn:
        await person.says(Approved())
        assert parsed(await only(turn, wait_all("a")))["completed"][0]["result"] == "the secret"
        assert len(person.seen) == 1


async def test_P1_what_it_printed_before_it_parked_is_withheld_too(tmp_path: Path) -> None:
    keys, person, store = list[Key](), Person(Denied()), stored_in(tmp_path)

    @keephold.tool(actions=STATEFUL, result="ask")
    async def prints(call: Call) -> Pending:
        call.emit("printed secret\n")
        keys.append(await call.completion_key())
        return Pending()

    async with Runtime([prints], store=store, prompter=person) as rt, rt.turn("main") as turn:
        await turn.run([spawn("prints", "p")])
        await parked(rt)
        await rt.resolve(keys[0], ok("a secret"))
        assert (await stopped(rt, "p")).output_bytes == 0
    async with Runtime([prints], store=store) as rt, rt.turn("main") as turn:
        fetched, read = await turn.run([fetch("prints", "p"), call("read_output", id="p")])
        assert "secret" not in fetched.result and "secret" not in read.result


async def test_P5_two_runtimes_ask_and_the_first_word_counts(tmp_path: Path) -> None:
    keys, here, there, store = list[Key](), Person(), Person(), stored_in(tmp_path)
    approve = approval(keys, result="ask")
    async with (
        Runtime([approve], store=store, prompter=here) as rt,
        Runtime([approve], store=store, prompter=there) as other,
        rt.turn("main") as turn,
    ):
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        await rt.resolve(keys[0], ok("the secret"))
        await here.sees()
        await there.sees()
        await there.says(Denied("not that"))
        assert (await stopped(other, "a")).outcome == Ok("Result delivery skipped by user: not that")
        await here.sees_nothing()
        assert len(here.withdrawn) == 1
        assert (await stopped(rt, "a")).outcome == Ok("Result delivery skipped by user: not that")
        await until(lambda: not here.open and not there.open)


async def test_P5_a_sweep_while_the_person_decides_asks_no_second_time(tmp_path: Path) -> None:
    keys, person = list[Key](), Person()
    async with opened(tmp_path, "sqlite", [approval(keys, result="ask")], person) as (rt, turn):
        await turn.run([spawn("approve", "a"), spawn("approve", "b")])
        await parked(rt, 2)
        for key in keys:
            await rt.resolve(key, ok("the secret"))
        await person.sees()
        for _ in range(3):
            await rt.recovery.sweep()
        await person.says(Approved())
        await rt.recovery.sweep()
        await person.says(Approved())
        await stopped(rt, "a")
        await stopped(rt, "b")
        await rt.recovery.sweep()
        assert len(person.seen) == 2 and person.at_once == 1
