"""From a script to a plan: the model does every step, and says what the world is to do and what must come of it."""

from dataclasses import dataclass
from typing import Any

from tests.simulation import ops
from tests.simulation.batches import Batch
from tests.simulation.expect import Reply
from tests.simulation.model import Handle, Wait
from tests.simulation.ops import MOMENT, TICK
from tests.simulation.turns import Turns


@dataclass(frozen=True)
class Step:
    """One thing to do, with all that the world needs for it."""

    op: ops.Op
    time: float = 0.0
    """Of `Ticks` and `Calm`: when to go on."""
    look: Any = None
    """The states that must be seen then; None where a timer fires in that very instant."""
    numbers: tuple[int, ...] = ()
    """Of the puppets concerned."""
    text: str = ""
    expect: Batch | Wait | Reply | None = None


class Rehearsal:
    """A script in the making. `late`: over a store that commits later, a wait that is due cannot know of the rest."""

    def __init__(self, *, late: bool = False) -> None:
        self.model = Turns(late=late)
        self.steps: list[Step] = []
        self._late = late

    @property
    def script(self) -> ops.Script:
        """The steps that were allowed."""
        return tuple(step.op for step in self.steps if not isinstance(step.op, ops.Calm))

    def do(self, op: ops.Op) -> bool:
        """Do it, if the model allows it."""
        if not self.model.allows(op):
            return False
        match op:
            case ops.Ticks(count):
                self.calm()
                self._go_on(op, (self.model.now // TICK + count) * TICK)
            case ops.Calm():
                self.calm()
            case ops.Passes(count):
                self._go_round(count)
            case _:
                self.steps.append(self._act(op))
                if self._late or isinstance(op, ops.End):
                    self.calm()
        # A turn needs some passes to end. What may happen in between is nobody's business here.
        if any(conversation.told for conversation in self.model.conversations):
            self.calm()
        return True

    def _go_round(self, count: int) -> None:
        for done in range(1, count + 1):
            self.model.go_round()
            if done == count or any(conversation.told for conversation in self.model.conversations):
                self.steps.append(Step(ops.Passes(done)))
                return

    def _act(self, op: ops.Op) -> Step:
        model = self.model
        match op:
            case ops.Run(conversation, calls):
                batch = model.run(conversation, calls)
                numbers = tuple(slot.made.number if slot.made is not None else -1 for slot in batch.slots)
                return Step(op, numbers=numbers, expect=batch)
            case ops.Wait(conversation, any, all, timeout):
                return Step(op, expect=model.wait(conversation, any, all, timeout))
            case ops.End(conversation, cancel):
                cancel = cancel or model.conversations[conversation].batch is not None
                model.time_out()  # it takes a turn some passes to end, so what is due now need not know of it
                return Step(ops.End(conversation, cancel), expect=model.end_turn(conversation, cancel))
            case ops.Tell(conversation, id, order):
                handle = model.find(conversation, id)
                assert handle is not None
                return self._tell(handle, order)
        raise AssertionError(op)

    def _tell(self, handle: Handle, order: ops.Order) -> Step:
        text = f"{handle.id}.{len(self.steps)};"
        self.model.order(handle, order, text)
        return Step(ops.Tell(handle.conversation, handle.id, order), numbers=(handle.number,), text=text)

    def calm(self) -> None:
        """Everything comes to rest, until a moment at which no timer fires."""
        self._go_on(ops.Calm(), self.model.now + MOMENT)
        if self.model.stirring:
            self.calm()

    def _go_on(self, op: ops.Op, to: float) -> None:
        model = self.model
        model.rest_until(to)
        before = model.states()
        rough = model.fire(to)
        self.steps.append(Step(op, time=to, look=before if before == model.states() else None))
        if self._late:
            model.time_out()
            model.settle()
        if rough:
            self.calm()

    def finish(self) -> list[Step]:
        """Bring everything to its end: let go of the deaf, end both turns."""
        self.calm()
        for handle in self.model.handles:
            if handle.deaf and not handle.released:
                self.steps.append(self._tell(handle, "ok"))
        self.do(ops.Ticks(1))
        for conversation in (0, 1):
            while not self.do(ops.End(conversation)):
                self.calm()
        self.do(ops.Ticks(1))
        return self.steps


def rehearse(script: ops.Script, *, late: bool = False) -> Rehearsal:
    """The whole script, as far as it is allowed, and its end."""
    rehearsal = Rehearsal(late=late)
    for op in script:
        rehearsal.do(op)
    rehearsal.finish()
    return rehearsal
