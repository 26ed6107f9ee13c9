"""An answer that is none, at the end of a turn (T2): it counts as `abort`, and the assistant hears of it."""

import asyncio
from typing import Any

import pytest
from tests.turn.assistant import Assistant, saying, silent, work
from tests.turn.calls import spawn
from tests.turn.puppets import heard, nothing

from keephold import Runtime
from keephold.policies import OutputView
from keephold.testing import VirtualClock
from keephold.turn.budget import Projector
from keephold.turn.inquiry import Inquiry


def told_of(inquiry: Inquiry, **changed: Any) -> dict[str, Any]:
    return {"handles": [{"id": each["id"], "action": "wait", **changed} for each in inquiry.handles]}


def _raises(inquiry: Inquiry) -> Any:
    raise RuntimeError("no connection")


def _cancels(inquiry: Inquiry) -> Any:
    raise asyncio.CancelledError


NONSENSE: dict[str, Any] = {
    "nothing": None,
    "text": "wait for all of them",
    "a number": 3,
    "another object": {"answer": "wait"},
    "no list": {"handles": "all"},
    "an object in place of the list": {"handles": {"id": "w0", "action": "wait"}},
    "names": {"handles": ["w0", "w1"]},
    "an unknown id": lambda inquiry: told_of(inquiry, id="other"),
    "no id": {"handles": [{"action": "wait"}]},
    "an id that is a list": lambda inquiry: told_of(inquiry, id=["w0"]),
    "an id that is an object": lambda inquiry: told_of(inquiry, id={}),
    "an id that is null": lambda inquiry: told_of(inquiry, id=None),
    "a wrong action": lambda inquiry: told_of(inquiry, action="kill"),
    "an action that is a list": lambda inquiry: told_of(inquiry, action=["wait"]),
    "an action that is null": lambda inquiry: told_of(inquiry, action=None),
    "one good and one bad": {"handles": [{"id": "w0", "action": "wait"}, {"id": "w1", "action": "WAIT"}]},
    "a list of lists": [["w0", "wait"]],
    "an empty list": {"handles": []},
    "what is no JSON": {"handles": [object()]},
    "an endless list": lambda inquiry: _endless(),
    "an error": _raises,
    "a cancellation of its own": _cancels,
}


def _endless() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize("what", NONSENSE)
async def test_T2_nonsense_counts_as_abort_with_a_notification(clock: VirtualClock, what: str) -> None:
    async with Runtime([work, nothing], clock=clock, inquiry=saying(NONSENSE[what])) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("work", "w0"), spawn("work", "w1")])
            begun = clock.now()
            ending = await turn.end()
        assert clock.now() == begun and rt.live() == []
        assert [each["ended_by"] for each in ending.results] == ["turn_end"] * 2 and not ending.again
        async with rt.turn("main") as turn:
            (notification,) = await turn.notifications()
            assert (notification.kind, notification.level) == ("turn.aborted", "warning")
            assert "`w0`" in notification.message and "`w1`" in notification.message
            assert notification.message == ending.aborted


async def test_T2_those_it_does_not_name_are_aborted_and_named(clock: VirtualClock) -> None:
    choice = {"handles": [{"id": "b", "action": "wait"}]}
    async with Runtime([work, nothing], clock=clock, inquiry=saying(choice)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("work", id, secs=60) for id in ("a", "b", "c")])
        ending = await turn.end()
        assert [each["result"] == "done" for each in ending.results] == [False, True, False]
        assert "`a`, `c`" in ending.aborted and "`b`" not in ending.aborted
        assert [kind for kind, _ in await heard(turn)] == ["turn.aborted"]


async def test_T2_a_bare_list_is_as_good(clock: VirtualClock) -> None:
    assistant = saying([{"id": "w", "action": "wait"}])
    async with Runtime([work], clock=clock, inquiry=assistant) as rt, rt.turn("main") as turn:
        await turn.run([spawn("work", "w", secs=60)])
        assert (await turn.end()).results[0]["result"] == "done"


async def test_T2_an_assistant_that_hangs_is_given_two_minutes(clock: VirtualClock) -> None:
    async with Runtime([work, nothing], clock=clock, inquiry=silent) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("work", "w")])
            begun = clock.now()
            ending = await turn.end()
        assert clock.now() - begun == 120 and rt.live() == []
        assert "120 s" in ending.aborted
        async with rt.turn("main") as turn:
            assert [kind for kind, _ in await heard(turn)] == ["turn.aborted"]


async def test_T2_nobody_to_ask_counts_as_abort_with_a_notification(clock: VirtualClock) -> None:
    async with Runtime([work, nothing], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("work", "w")])
            await turn.end()
        async with rt.turn("main") as turn:
            assert [kind for kind, _ in await heard(turn)] == ["turn.aborted"]


async def test_T2_a_projector_that_cannot_show_the_output_does_not_keep_the_turn_from_ending(
    clock: VirtualClock,
) -> None:
    class Broken(Projector):
        def text(self, text: Any, view: OutputView, hint: str) -> str:
            raise ValueError("no view")

    async with Runtime([work], clock=clock, inquiry=Assistant("abort"), projector=Broken()) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("work", "w", says="x")])
        assert rt.live() == []
        async with rt.turn("main"):
            pass
