"""Stores of every version since 0.1 are opened by this one (D7): nothing in them is lost, and everything goes on.

What is in them, and how they were made: `tests/fixtures/make.py`.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import HandClock, ok, stopped
from tests.fixtures.make import HERE, LINES, OPEN_BATCH, Tools
from tests.patience import until
from tests.turn.calls import abort, call, reply

from keephold import KeepholdError, Runtime
from keephold.outcomes import Failure, Ok
from keephold.store.base import Expired, HandleQuery, Store

VERSIONS = sorted(facts.parent.name for facts in HERE.glob("*/facts.json"))


@dataclass
class Left:
    """A copy of what a version left, some time later."""

    url: str
    facts: dict[str, Any]
    clock: HandClock
    tools: Tools = field(default_factory=Tools)

    def runtime(self, *, tools: bool = True) -> Runtime:
        """The next process. Without the tools it finds the calls and leaves them alone."""
        return Runtime(self.tools.all() if tools else (), store=self.url, clock=self.clock)


@pytest.fixture(params=VERSIONS)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Left:
    copy = shutil.copytree(HERE / request.param, tmp_path / "copy")
    facts = json.loads((copy / "facts.json").read_text())
    return Left(f"sqlite:///{copy}/store.db", facts, HandClock(facts["at"] + 60))


def test_there_is_a_store_of_the_first_version() -> None:
    assert "0.1" in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_at_rest_is_small_and_has_no_wal(version: str) -> None:
    files = [file for file in (HERE / version).rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 200 * 1024
    assert not [file for file in files if file.name.endswith(("-wal", "-shm", "-journal"))]


async def test_D7_everything_is_found(left: Left) -> None:
    uids = left.facts["uids"]
    async with left.runtime(tools=False) as rt:
        store: Store = rt.registry.store
        states = {each.id: each.state for each in await rt.handles()}
        live, over = ("deploy", "order", "parked"), ("short", "long", "told", "revoked")
        assert states == {**dict.fromkeys(live, "running"), **dict.fromkeys(over, "stopped")}
        assert {each.id for each in await store.handles(HandleQuery(parked=True))} == {"order", "parked"}
        due, following = await store.due(left.clock.at)
        assert due == [] and following == left.facts["at"] + 3600

        journal = [(entry.kind, entry.name, entry.ok) for entry in await store.journal(uids["deploy"])]
        steps = [("step", "build", True), ("step", "push", False), ("sleep", "1", True), ("event", "1", True)]
        assert journal == [*steps, ("ask", "sure:1", True), ("input", "1", True)]
        (event,) = await rt.process_events(uids["deploy"])
        assert (event.sequence, event.type, event.payload) == (1, "built", {"n": 1})

        assert isinstance(await store.named("old", "gone"), Expired)
        with pytest.raises(KeepholdError) as caught:
            await rt.handle("gone", conversation="old")
        assert caught.value.code == "handle_expired"
        first, second = left.facts["secrets"]
        newest = await store.secret()
        assert newest is not None and newest[0] == second and await store.secret(first) is not None


async def test_D7_what_has_stopped_is_as_it_was(left: Left) -> None:
    async with left.runtime(tools=False) as rt:
        outcomes = {each.id: each.outcome for each in await rt.handles(state="stopped")}
        assert (outcomes["short"], outcomes["long"], outcomes["told"]) == (Ok(3), Ok(len(LINES)), Ok("yes"))
        revoked = outcomes["revoked"]
        assert isinstance(revoked, Failure) and revoked.code == "await_event_unknown_or_revoked"
        for name, kind in (("news", "tool.stopped"), ("revoked", "tool.failed")):
            assert [news.kind for news in await rt.registry.store.notifications(name)] == [kind]
    async with left.runtime() as rt, rt.turn("main", resume=True) as turn:
        await rt.resolve(left.facts["keys"]["fetched"], ok(None))
        await turn.resume()
        for id, lines in (("short", LINES[:3]), ("long", LINES)):
            printed = await reply(turn, call("read_output", id=id))
            assert printed["content"].splitlines()[: len(lines)] == lines


async def test_D7_an_answered_turn_goes_on(left: Left) -> None:
    async with left.runtime() as rt, rt.turn("answered", resume=True) as turn:
        assert turn.unfinished is None and turn.answered is not None
        assert [(response.id, response.result) for response in turn.answered] == [("a1", "2")]


async def test_E2_the_call_goes_on_with_its_journal(left: Left) -> None:
    async with left.runtime() as rt:
        assert str(await rt.resolve(left.facts["keys"]["go"], ok("now"))) == "accepted"
        info = await stopped(rt, "deploy")
        pushed = ["the registry is closed", "closed", True]
        assert info.outcome == Ok([{"made": {"env": "production"}}, pushed, True, "to the north", "now", 2])
        assert "build" not in left.tools.did and "push" not in left.tools.did
        assert left.tools.keys["go"] == left.facts["keys"]["go"]
        assert len(await rt.process_events(info.uid)) == 1


async def test_D5_keys_of_both_secrets_resolve(left: Left) -> None:
    keys = left.facts["keys"]
    async with left.runtime(tools=False) as rt:
        told = {name: str(await rt.resolve(keys[name], ok(name))) for name in ("order", "parked", "told", "revoked")}
        assert told == {
            "order": "accepted", "parked": "accepted", "told": "already_resolved", "revoked": "unknown_or_revoked",
        }  # fmt: skip
        assert (await stopped(rt, "order")).outcome == Ok("order")
        assert (await stopped(rt, "parked")).outcome == Ok("parked")


async def test_D7_a_deadline_that_has_passed_ends_its_call(left: Left) -> None:
    left.clock.at += 3600
    async with left.runtime(tools=False) as rt:
        assert (await stopped(rt, "parked")).ended_by == "timeout"


async def test_D2_the_hook_of_a_cancelled_call_is_called(left: Left) -> None:
    async with left.runtime() as rt, rt.turn("main") as turn:
        await reply(turn, abort("order", "order"))
        await until(lambda: "cancelled order" in left.tools.did)
        assert (await stopped(rt, "order")).ended_by == "abort"


async def test_B9_the_open_batch_is_answered(left: Left) -> None:
    async with left.runtime() as rt, rt.turn("main", resume=True) as turn:
        assert turn.unfinished is not None and list(turn.unfinished.calls) == OPEN_BATCH
        assert str(await rt.resolve(left.facts["keys"]["fetched"], ok("at last"))) == "accepted"
        first, second = await turn.resume()
        assert json.loads(first.result) == [{"made": 1}, "at last"]
        assert second.result == "1" and "fetch" not in left.tools.did
