"""A real runtime and the model, side by side, driven by Hypothesis (S1, S2, S6, B1–B7, C3–C7, A1–A8, T).

Whenever a step comes to rest, every handle's visible state is the model's; every batch and every wait that the model
says is answered has its answer, given at that time and no other; none has one that the model does not know of. That is:
no lost wake-up, no await that outlives its condition, `needs_input` exactly when all needed handles are blocked on the
caller, one response for each call, in request order. What has stopped never changes again.
"""

import asyncio
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, reject, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.simulation import ops
from tests.simulation.model import Handle, Undecided
from tests.simulation.ops import KINDS, Abort, Apply, Await, Call, Fetch, Once, Spawn, kind_of
from tests.simulation.play import Player
from tests.simulation.rehearsal import Rehearsal
from tests.simulation.world import Crew, Stage, World
from tests.soak import tries

from keephold.handles.handle import HandleInfo
from keephold.testing import VirtualClock
from keephold.testing.clock import _Loop

_CREW = Crew()

resources = st.sampled_from((("r",), ("s",), ("r", "s")))
orders = st.sampled_from(("ok", "fail", "emit", "ask", "read", "deaf"))


@st.composite
def calls(draw: st.DrawFn, kinds: list[str], known: list[str]) -> tuple[Call, ...]:
    """A batch. Most of its calls are about handles that exist."""
    ids = st.sampled_from([f"{kind}{number}" for kind in kinds for number in (1, 2)])
    old = st.sampled_from(known) if known else ids
    some = st.lists(st.one_of(old, old, ids), max_size=3).map(tuple)
    talkative = [id for id in known if kind_of(id).apply]
    choices: list[st.SearchStrategy[Any]] = [
        st.builds(Spawn, ids, resources),
        st.builds(Spawn, ids, resources, st.sampled_from((False, False, False, True))),
        st.builds(Await, some, some, st.sampled_from((None, None, 0, 1, 2)), some | st.just(())),
        st.builds(Fetch, old),
        st.builds(Abort, old),
        st.builds(Once, st.sampled_from([f"{kind}8" for kind in kinds]), resources),
    ]
    if talkative:
        choices.append(st.builds(Apply, st.sampled_from(talkative), st.sampled_from((True, False, "text"))))
    batch = draw(st.lists(st.one_of(choices), min_size=1, max_size=4))
    once = {call.id: call for call in batch if isinstance(call, Once)}
    return tuple(call for call in batch if not isinstance(call, Once) or once[call.id] is call)


class RegistryMachine(RuleBasedStateMachine):
    """Steps are rehearsed with the model first. With `rest` they are played, come to rest, and are compared; without it
    the next step belongs to the same instant."""

    def __init__(self) -> None:
        super().__init__()
        clock = VirtualClock()
        self._runner = asyncio.Runner(loop_factory=lambda: _Loop(clock))
        self._clock = clock
        self._rehearsal = Rehearsal()
        self._played = 0
        self._stopped: dict[str, HandleInfo] = {}
        self._undecided = False

    @initialize(kinds=st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3, unique=True))
    def open(self, kinds: list[str]) -> None:
        """With a few kinds of tools, so that handles meet."""
        self._kinds = kinds

        async def open() -> None:
            self._stage = await Stage(_CREW, self._clock).__aenter__()
            self._world = await World(self._stage, "machine").__aenter__()
            self._player = Player(self._world)

        self._runner.run(open())

    # Steps

    @precondition(lambda self: bool(self._free()))
    @rule(data=st.data(), rest=st.booleans())
    def run_a_batch(self, data: st.DataObject, rest: bool) -> None:
        conversation = data.draw(st.sampled_from(self._free()))
        known = sorted(self._rehearsal.model.conversations[conversation].names)
        self._do(ops.Run(conversation, data.draw(calls(self._kinds, known))), rest)

    def _free(self) -> list[int]:
        """Conversations in which a batch may begin."""
        return [number for number in (0, 1) if self._rehearsal.model.allows(ops.Run(number, (Fetch("w1"),)))]

    @precondition(lambda self: bool(self._able()))
    @rule(data=st.data(), order=orders, rest=st.booleans())
    def tell_a_tool(self, data: st.DataObject, order: ops.Order, rest: bool) -> None:
        handle = data.draw(st.sampled_from(self._able()))
        self._do(ops.Tell(handle.conversation, handle.id, order), rest)

    @precondition(lambda self: any(handle.kind.apply and handle.stateful for handle in self._able()))
    @rule(data=st.data(), order=st.sampled_from(("ask", "read")), rest=st.booleans())
    def let_a_tool_wait_for_the_caller(self, data: st.DataObject, order: ops.Order, rest: bool) -> None:
        handle = data.draw(st.sampled_from([handle for handle in self._able() if handle.kind.apply]))
        self._do(ops.Tell(handle.conversation, handle.id, order), rest)

    def _able(self) -> list[Handle]:
        model = self._rehearsal.model
        return [handle for handle in model.handles if model.takes(handle, "ok")]

    @precondition(lambda self: any(conversation.names for conversation in self._rehearsal.model.conversations))
    @rule(data=st.data(), timeout=st.sampled_from((None, 0.0, ops.TICK, 1.0)), rest=st.booleans())
    def wait_in_python(self, data: st.DataObject, timeout: float | None, rest: bool) -> None:
        known = [sorted(conversation.names) for conversation in self._rehearsal.model.conversations]
        conversation = data.draw(st.sampled_from([number for number, names in enumerate(known) if names]))
        some = st.lists(st.sampled_from(known[conversation]), max_size=2).map(tuple)
        self._do(ops.Wait(conversation, data.draw(some), data.draw(some), timeout), rest)

    @precondition(lambda self: bool(self._rehearsal.model.handles))
    @rule(ticks=st.sampled_from((1, 1, 2, 8, 40)))
    def let_time_pass(self, ticks: int) -> None:
        self._do(ops.Ticks(ticks), True)

    @precondition(lambda self: self._played < len(self._rehearsal.steps))
    @rule(count=st.integers(1, 3))
    def let_the_loop_go_round(self, count: int) -> None:
        self._do(ops.Passes(count), False)

    @precondition(lambda self: sum(isinstance(step.op, ops.Run) for step in self._rehearsal.steps) % 4 == 3)
    @rule(conversation=st.sampled_from((0, 1)), cancel=st.booleans())
    def end_the_turn(self, conversation: int, cancel: bool) -> None:
        self._do(ops.End(conversation, cancel), True)

    def _do(self, op: ops.Op, rest: bool) -> None:
        try:
            self._rehearsal.do(op)
            if rest:
                self._rehearsal.calm()
        except Undecided:
            self._undecided = True
            reject()
        if rest:
            self._play()

    def _play(self) -> None:
        steps = self._rehearsal.steps[self._played :]
        self._played += len(steps)
        self._runner.run(self._player.play(steps))

    # What must be so

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        if self._played == len(self._rehearsal.steps):
            assert not (differences := self._player.differences()), "\n".join(differences)

    @invariant()
    def what_has_stopped_never_changes(self) -> None:
        for info in self._world.infos():
            if info.uid in self._stopped:
                assert info == self._stopped[info.uid]
            elif info.state == "stopped" and not info.lingering:
                self._stopped[info.uid] = info

    def teardown(self) -> None:
        if not hasattr(self, "_world"):
            self._runner.close()
            return
        try:
            if not self._undecided:
                self._rehearsal.finish()
                self._play()
                self.everything_is_as_the_model_says()
                assert all(info.state == "stopped" for info in self._world.infos())
        except Undecided:
            pass
        finally:
            self._runner.run(self._close())
            self._runner.close()

    async def _close(self) -> None:
        self._world.let_go()
        await self._world.__aexit__()
        await self._stage.__aexit__(None, None, None)


RegistryMachine.TestCase.settings = settings(
    max_examples=tries(30, soak=60),
    stateful_step_count=50,
    deadline=None,
    # Without `explain`, which traces every line of the runtime.
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
TestRegistry = pytest.mark.timeout(300)(RegistryMachine.TestCase)  # a failure takes a while to be made short
