"""The news of the memory store against a model of it: any commits, some of them refused in the middle (N3, N6)."""

import asyncio
import copy
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from tests.simulation.journal_draws import carries, conversations, notices, shows
from tests.simulation.notification_model import LIMIT, NotificationModel
from tests.soak import tries
from tests.unit.sqlite_stores import NOON, registered

from keephold.store.base import CARRIERS, Delivered, Notified, Op, Responded, Store, TakenBack
from keephold.store.memory import MemoryStore, notification_queue

uids = st.sampled_from(("a", "b", "c"))
shown = st.lists(st.tuples(uids, shows), max_size=3).map(tuple)
tells = st.builds(
    lambda conversation, told, uid, at: Notified(
        conversation, told.kind, told.level, told.message, NOON + at, uid, told.carriers
    ),
    conversations,
    notices,
    st.none() | uids,
    st.integers(0, 9),
)
operations: st.SearchStrategy[Op] = st.one_of(
    tells,
    tells,
    tells,
    st.builds(TakenBack, conversations, shown),
    st.builds(Delivered, conversations, st.sampled_from(CARRIERS)),
    st.builds(Responded, conversations, st.just("t"), st.just(1), st.just(()), st.just(()), shown, carries),
)
commits = st.lists(st.tuples(st.lists(operations, min_size=1, max_size=6), st.booleans()), min_size=1, max_size=20)


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notification_queue, "NOTIFICATION_LIMIT", LIMIT)


@settings(deadline=None, max_examples=tries(120, soak=300))
@given(commits, st.booleans())
def test_N6_the_queue_is_what_the_model_says(commits: list[tuple[list[Op], bool]], look: bool) -> None:
    asyncio.run(_compare(commits, look))


async def _compare(commits: list[tuple[list[Op], bool]], look: bool) -> None:
    """`look`: after every commit, not only at the end, as looking sorts in what was told."""
    store, model = MemoryStore(), NotificationModel()
    store.commit([registered(1)], lambda _: None, lambda error: pytest.fail(str(error)))
    for ops, refused in commits:
        before, expected = copy.deepcopy(model), [_modelled(model, op) for op in ops]
        told: list[Any] = []
        store.commit([*ops, registered(1)] if refused else ops, told.extend, told.append)
        if refused:
            model = before
        else:
            assert [_words(result) for result in told] == [_words(result) for result in expected]
        if look:
            await _same(store, model)
    await _same(store, model)


async def _same(store: Store, model: NotificationModel) -> None:
    for conversation in ("main", "other"):
        queued = await store.notifications(conversation)
        assert _words(queued) == _words(model.of(conversation))
        assert [news.number for news in queued] == sorted(news.number for news in queued)


def _modelled(model: NotificationModel, op: Op) -> Any:
    match op:
        case Notified():
            return model.tell(op.conversation, op, op.at, op.uid)
        case TakenBack():
            return model.take_back(op.conversation, op.shown)
        case Delivered():
            return model.deliver(op.conversation, (op.carrier,))
        case Responded():
            model.take_back(op.conversation, op.shown)
            return model.deliver(op.conversation, op.carry)
    raise AssertionError(op)


def _words(result: Any) -> Any:
    """Without the numbers: a refused commit uses some up."""
    return None if result is None else [replace(news, number=0) for news in result]
