"""A plan is played to a real runtime, and what came of it compared with what the model said."""

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.simulation import ops
from tests.simulation.batches import Batch
from tests.simulation.expect import Reply
from tests.simulation.model import Wait
from tests.simulation.rehearsal import Step
from tests.simulation.world import Answer, Stage, World


async def play(stage: Stage, label: str, steps: Sequence[Step]) -> list[str]:
    """Play it. Returns every difference from the model, in words."""
    async with World(stage, label) as world:
        player = Player(world)
        await player.play(steps)
        return player.differences()


class Player:
    """Takes steps from callbacks of the loop, so that those of one pass happen in one pass."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps: list[Step] = []
        self._at = 0
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._answers: dict[int, Answer] = {}
        self._seen: list[str] = []

    async def play(self, steps: Sequence[Step]) -> None:
        """Take these steps too."""
        self._steps += steps
        self._over = self._loop.create_future()
        self._go_on()
        await self._over

    def differences(self) -> list[str]:
        """Everything that is not as the model says, so far."""
        answers = (compare(at, self._steps[at], answer) for at, answer in self._answers.items())
        raised = [f"raised {error!r}" for error in self._world.raised]
        return [*self._seen, *(line for lines in answers for line in lines), *raised]

    def _go_on(self) -> None:
        try:
            while self._at < len(self._steps):
                step = self._steps[self._at]
                match step.op:
                    case ops.Passes(count):
                        self._at += 1
                        self._pass(count)
                        return
                    case ops.Ticks() | ops.Calm():
                        self._world.at(step.time, self._look)
                        return
                    case _:
                        take(self._world, step, self._at, self._answers)
                        self._at += 1
            self._over.set_result(None)
        except BaseException as error:
            self._over.set_exception(error)

    def _pass(self, count: int) -> None:
        self._loop.call_soon(*((self._go_on,) if count <= 1 else (self._pass, count - 1)))

    def _look(self) -> None:
        look = self._steps[self._at].look
        if look is not None and (seen := self._world.states()) != look:
            self._seen.append(f"before step {self._at} seen:     {seen}\n               expected: {look}")
        self._at += 1
        self._go_on()


def take(world: World, step: Step, at: int, answers: dict[int, Answer]) -> None:
    """Take one step. What it is answered with, sooner or later, will be in `answers`."""
    match step.op:
        case ops.Run(conversation, calls):
            answers[at] = world.run(conversation, calls, step.numbers)
        case ops.Wait(conversation, any, all, timeout):
            answers[at] = world.wait(conversation, any, all, timeout)
        case ops.End(conversation, cancel):
            answers[at] = world.end_turn(conversation, cancel)
        case ops.Tell(order=order):
            world.tell(step.numbers[0], order, step.text)


def compare(at: int, step: Step, answer: Answer) -> list[str]:
    """What is different about the answer to a step."""
    match step.expect:
        case Batch(slots, closed_at=time):
            replies = [slot.reply for slot in slots]
        case Wait(reply=reply):
            replies, time = [reply], reply.at if reply is not None else None
        case Reply() as reply:
            replies, time = [reply], reply.at if reply.at >= 0 else None
        case None:
            return []
    if time is None or answer.at is None:
        return [] if time is answer.at else [f"step {at} was answered at {answer.at}, expected {time}: {answer.values}"]
    found = []
    if abs(answer.at - time) > 1e-7:
        found.append(f"step {at} was answered at {answer.at}, expected {time}")
    if len(answer.values) != len(replies):
        return [*found, f"step {at} has {len(answer.values)} answers, expected {len(replies)}"]
    for position, (reply, value) in enumerate(zip(replies, answer.values, strict=True)):
        if reply is None or value not in reply.accept:
            found.append(f"step {at}, answer {position}: {value}\n  expected {_words(reply)}")
    return found


def _words(reply: Reply | None) -> Any:
    return "none yet" if reply is None else "\n        or ".join(map(repr, reply.accept))
