"""The one mechanism of waiting (W3's modes included): all, any, first success, first settled."""

from typing import Any

import pytest

from keephold.handles.clock import SystemClock
from keephold.handles.handle import Handle, OnStop
from keephold.handles.registry import Registry
from keephold.handles.spool import Spool
from keephold.handles.state import Failure, Ok, Outcome, PendingState
from keephold.handles.waits import Group, Wait, all_of, any_of, first_success
from keephold.store.base import Record
from keephold.store.memory import MemoryStore
from keephold.tools.base import Invocation, Live, Sink, Tool


class NeverStarted:
    def start(self, invocation: Invocation, sink: Sink) -> Live:
        raise NotImplementedError


TOOL = Tool(name="t", runtime=NeverStarted())
OK, FAILED = Ok("fine"), Failure("broken")


class World:
    """Three running handles and a wait for some of them."""

    def __init__(self) -> None:
        self.registry = Registry(MemoryStore(), SystemClock(), Spool(), lambda *_: TOOL)
        records = [
            Record(
                uid=self.registry.new_uid(), id=id, tool="t", conversation="c", turn="t", batch=1, position=0,
                call_id="1", stateful=True, state=PendingState(0.0), arguments={}, owner=self.registry.store.owner,
            )
            for id in "abc"
        ]  # fmt: skip
        self.handles = [Handle(record, TOOL) for record in records]
        self.registry.register(list(zip(self.handles, records, strict=True)), lambda: None, print)
        for handle in self.handles:
            self.registry.start(handle, lambda: None)
        self.done = 0

    def wait(self, *groups: Group) -> Wait:
        wait = Wait(groups, self._count)
        wait.begin()
        return wait

    def _count(self, wait: Wait) -> None:
        self.done += 1

    def stop(self, id: str, outcome: Outcome) -> None:
        self.registry.end(self.handles["abc".index(id)], outcome)

    def ids(self, handles: list[Handle]) -> str:
        return "".join(handle.id for handle in handles)


@pytest.mark.parametrize(
    ("mode", "stops", "until"),
    [
        (all_of, [("a", OK), ("b", FAILED), ("c", OK)], 3),
        (any_of, [("b", FAILED)], 1),
        (first_success, [("a", FAILED), ("b", FAILED), ("c", OK)], 3),
        (first_success, [("a", FAILED), ("b", OK)], 2),
        (first_success, [("a", FAILED), ("b", FAILED), ("c", FAILED)], 3),
    ],
)
def test_W3_a_wait_is_over_when_its_mode_says_so_and_not_before(mode: Any, stops: list[Any], until: int) -> None:
    world = World()
    wait = world.wait(mode(world.handles))
    for count, (id, outcome) in enumerate(stops, 1):
        assert world.done == 0
        world.stop(id, outcome)
        assert (world.done, wait.reason) == ((1, "satisfied") if count == until else (0, None))


def test_W3_who_settled_first_is_told_by_time_not_by_order_of_naming() -> None:
    world = World()
    wait = world.wait(all_of(world.handles))
    for id in "cab":
        world.stop(id, OK)
    assert world.ids(wait.settled) == "cab"


def test_A2_what_has_stopped_before_counts_in_the_order_it_stopped() -> None:
    world = World()
    world.stop("b", FAILED)
    world.stop("a", OK)
    wait = world.wait(any_of(world.handles))
    assert (world.done, wait.reason) == (1, "satisfied")
    assert world.ids(wait.settled) == "ba"


def test_A2_a_handle_named_twice_counts_once() -> None:
    world = World()
    world.wait(all_of([*world.handles, *world.handles]))
    for id in "abc":
        world.stop(id, OK)
    assert world.done == 1


def test_A7_a_wait_that_is_over_watches_nothing() -> None:
    world = World()
    world.wait(any_of(world.handles))
    world.stop("a", OK)
    assert all(not handle.watchers for handle in world.handles)
    world.stop("b", OK)
    assert world.done == 1


def test_S2_who_watches_a_stopped_handle_is_told_at_once() -> None:
    world = World()
    world.stop("a", OK)
    told = []

    world.handles[0].watch(OnStop(lambda handle: told.append(handle.id)))
    assert told == ["a"]
