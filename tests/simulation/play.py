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
        player = _Player(world, steps)
        player.go_on()
        await player.over
        return [
            *player.differences,
            *(line for at, step in enumerate(steps) for line in compare(at, step, player.answers.get(at))),
            *(f"raised {error!r}" for error in world.raised),
        ]


class _Player:
    """Takes the steps from callbacks of the loop, so that those of one pass happen in one pass."""

    def __init__(self, world: World, steps: Sequence[Step]) -> None:
        self._world = world
        self._steps = steps
        self._at = 0
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self.answers: dict[int, Answer] = {}
        self.differences: list[str] = []

    def go_on(self) -> None:
        try:
            while self._at < len(self._steps):
                at, step = self._at, self._steps[self._at]
                self._at += 1
                match step.op:
                    case ops.Passes(count):
                        self._pass(count)
                        return
                    case ops.Ticks() | ops.Calm():
                        self._world.at(step.time, lambda: self._look(at, step))
                        return
                    case _:
                        take(self._world, step, at, self.answers)
            self.over.set_result(None)
        except BaseException as error:
            self.over.set_exception(error)

    def _pass(self, count: int) -> None:
        self._loop.call_soon(*((self.go_on,) if count <= 1 else (self._pass, count - 1)))

    def _look(self, at: int, step: Step) -> None:
        if step.look is not None and (seen := self._world.states()) != step.look:
            self.differences.append(f"before step {at} seen:     {seen}\n               expected: {step.look}")
        self.go_on()


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


def compare(at: int, step: Step, answer: Answer | None) -> list[str]:
    """What is different about the answer to a step."""
    expect = step.expect
    if expect is None or answer is None:
        return []
    match expect:
        case Batch():
            replies, time, values = [slot.reply for slot in expect.slots], expect.closed_at, answer.value or []
        case Wait():
            replies, time, values = [expect.reply], expect.reply.at if expect.reply else None, [answer.value]
        case Reply():
            replies, time, values = [expect], expect.at, [answer.value]
    found = []
    if time is None or abs(answer.at - time) > 1e-7:
        found.append(f"step {at} was answered at {answer.at}, expected {time}")
    if len(values) != len(replies):
        return [*found, f"step {at} has {len(values)} answers, expected {len(replies)}"]
    for position, (reply, value) in enumerate(zip(replies, values, strict=True)):
        if reply is None or value not in reply.accept:
            found.append(f"step {at}, answer {position}: {value}\n  expected {_words(reply)}")
    return found


def _words(reply: Reply | None) -> Any:
    return "none yet" if reply is None else "\n        or ".join(map(repr, reply.accept))
