"""How commands find handles and what they say of them, on a store in memory."""

import socket
from typing import Any

import pytest

import keephold
from keephold.cli.printing import state_words
from keephold.control.handle_json import as_json, glance
from keephold.control.resolve_handle import find
from keephold.errors import KeepholdError
from keephold.handles.state import PendingState, Running
from keephold.store.base import Parking, Record, Store
from keephold.testing import VirtualClock


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def echo(text: str) -> str:
    """Gives it back."""
    return text


async def run(rt: keephold.Runtime, conversation: str, *calls: dict[str, Any]) -> None:
    async with rt.turn(conversation) as turn:
        await turn.run([keephold.ToolCall(str(number), "echo", given) for number, given in enumerate(calls)])
        await rt.wait(all=[given["id"] for given in calls if "id" in given], conversation=conversation)


async def found(store: Store, id: str, conversation: str | None = None) -> str:
    (record,) = await find(store, (id,), conversation)
    return f"{record.conversation} {record.arguments['text']}"


async def test_a_handle_is_found_by_id_label_and_uid(clock: VirtualClock) -> None:
    async with keephold.Runtime([echo], clock=clock) as rt:
        store = rt.registry.store
        await run(rt, "one", {"action": "spawn", "id": "a", "text": "old"}, {"text": "one-shot"})
        await run(rt, "one", {"action": "spawn", "id": "a", "text": "new"})
        await run(rt, "two", {"action": "spawn", "id": "b", "text": "b"})
        assert await found(store, "a") == await found(store, "a", "one") == "one new"  # S6: the newest
        assert await found(store, "call:1") == await found(store, "call:1", "one") == "one one-shot"
        assert await found(store, "b") == "two b"
        oldest, *_ = await rt.handles(conversation="one")
        assert await found(store, oldest.uid) == "one old"
        for id, conversation in (("b", "one"), ("c", None), (oldest.uid, "two")):
            with pytest.raises(KeepholdError, match="not found"):
                await find(store, (id,), conversation)


async def test_S5_an_expired_handle_is_told_from_one_that_never_was(clock: VirtualClock) -> None:
    async with keephold.Runtime([echo], clock=clock) as rt:
        await run(rt, "main", {"action": "spawn", "id": "a", "text": "a"})
        await clock.advance(3601)
        await rt.registry.collect()
        with pytest.raises(KeepholdError) as told:
            await find(rt.registry.store, ("a",), "main")
        assert told.value.code == "handle_expired"


def record(**changes: Any) -> Record:
    usual: dict[str, Any] = {
        "uid": "u", "id": "a", "tool": "echo", "conversation": "main", "turn": "t", "batch": 1, "position": 0,
        "call_id": "1", "stateful": True, "state": Running(0.0, 0.0), "arguments": {}, "owner": "me",
    }  # fmt: skip
    return Record(**usual | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "running"),
        ({"state": PendingState(0.0)}, "pending"),
        ({"attempt": 3}, "running, attempt 3"),
        ({"attempt": 2, "next_attempt_at": 65.0}, "running, attempt 2, next in 1m 5s"),
        ({"owner": "another"}, "running, owner gone"),
        ({"owner": None, "parking": Parking()}, "running, parked"),
        ({"parking": Parking()}, "running"),  # `external`: it counts as parked when its owner has died, not before
    ],
)
async def test_R5_D9_what_is_said_of_a_state(changes: dict[str, Any], said: str) -> None:
    async with keephold.Runtime() as rt:
        store = rt.registry.store
        me = {"owner": store.owner} if "owner" not in changes else {}
        assert state_words(as_json(glance(store, record(**me | changes))), 0.0) == said


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({"host": socket.gethostname(), "since": None, "until": None}, "running, kept"),
        ({"host": socket.gethostname(), "since": 0.0, "until": 65.0}, "running, kept, ends in 1m 5s"),
        ({"host": "box", "since": 0.0, "until": 65.0}, "running, kept on box, ends in 1m 5s"),
    ],
)
async def test_R7_what_is_said_of_a_process_that_is_kept(kept: dict[str, Any], said: str) -> None:
    async with keephold.Runtime() as rt:
        fact = as_json(glance(rt.registry.store, record(owner="another")))
        assert state_words({**fact, "kept": kept}, 0.0) == said
