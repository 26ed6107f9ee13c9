"""Random interleavings: many small scripts, each played to a real runtime in virtual time and compared with the model.

    python -m tests.simulation.interleavings COUNT SEED [FIRST]

runs `COUNT` scripts, from number `FIRST` on. A script depends on the seed and its number alone. A script that differs
from the model is made as short as it can be and printed with what differs.
"""

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tests.simulation import ops
from tests.simulation.model import Undecided
from tests.simulation.play import play
from tests.simulation.rehearsal import Rehearsal, Step, rehearse
from tests.simulation.scripts import generate
from tests.simulation.world import Crew, Stage

from keephold.store.base import Store
from keephold.store.memory import MemoryStore
from keephold.testing import VirtualClock
from keephold.testing.clock import VirtualDeadlock

MakeStage = Callable[[VirtualClock], Stage]

_TOGETHER = 50
"""Scripts that share a runtime and a loop: building one costs more than a script."""
_SHOWN = 3
"""Differences that are made short and printed."""


@dataclass
class Report:
    """What came of it."""

    seed: int
    count: int = 0
    answers: int = 0
    """Responses and waits that were compared."""
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = f"{self.count} interleavings with seed {self.seed}, {self.answers} answers compared"
        return "\n\n".join([f"{told}: {len(self.differences)} different from the model", *self.differences])


def run(
    count: int, seed: int, *, first: int = 0, store: Callable[[], Store] = MemoryStore, late: bool = False
) -> Report:
    """Run `count` scripts. `late` says that the store commits after a while, so waits may time out in between."""
    report, crew = Report(seed), Crew()
    stage = partial(_stage, crew, store)
    for start in range(first, first + count, _TOGETHER):
        numbers = range(start, min(start + _TOGETHER, first + count))
        plans = {number: _plan(seed, number, late) for number in numbers}
        report.count += len(plans)
        report.answers += sum(len(_answers(plan)) for plan in plans.values())
        for number, found in _different(plans, stage).items():
            if len(report.differences) < _SHOWN:
                report.differences.append(_explain(seed, number, plans[number], found, stage, late))
            else:
                report.differences.append(f"script {number} too")
    return report


def _plan(seed: int, number: int, late: bool) -> Rehearsal:
    return generate(random.Random(f"{seed}:{number}"), late=late)


def _answers(plan: Rehearsal) -> list[Step]:
    return [step for step in plan.steps if step.expect is not None]


def _stage(crew: Crew, store: Callable[[], Store], clock: VirtualClock) -> Stage:
    return Stage(crew, clock, store())


def _different(plans: dict[int, Rehearsal], stage: MakeStage) -> dict[int, list[str]]:
    """How scripts differ, by number. If one hangs, all are tried again one by one."""
    try:
        found = _play({number: plan.steps for number, plan in plans.items()}, stage)
    except VirtualDeadlock:
        found = {number: _play_one(plan.steps, stage) for number, plan in plans.items()}
    return {number: differences for number, differences in found.items() if differences}


def _play(plans: dict[int, list[Step]], make: MakeStage) -> dict[int, list[str]]:
    clock = VirtualClock()

    async def all_of_them() -> dict[int, list[str]]:
        async with make(clock) as stage:
            return {number: await play(stage, f"s{number}", steps) for number, steps in plans.items()}

    return clock.run(all_of_them())


def _play_one(steps: list[Step], stage: MakeStage) -> list[str]:
    try:
        return _play({0: steps}, stage)[0]
    except VirtualDeadlock as hang:
        return [f"it hangs: {hang}"]


def _explain(seed: int, number: int, plan: Rehearsal, found: list[str], stage: MakeStage, late: bool) -> str:
    """The shortest script found that still differs, and how it does."""

    def differences(script: ops.Script) -> list[str]:
        try:
            return _play_one(rehearse(script, late=late).steps, stage)
        except Undecided:
            return []

    if not differences(plan.script):
        return _told(f"script {number} of seed {seed}, only after those before it", plan, found)
    script = shorten(plan.script, lambda shorter: bool(differences(shorter)))
    return _told(f"script {number} of seed {seed}, made short", rehearse(script, late=late), differences(script))


def _told(title: str, plan: Rehearsal, differences: list[str]) -> str:
    return "\n".join([f"{title}:", *(f"  {at:2} {step.op}" for at, step in enumerate(plan.steps)), *differences])


def shorten(script: ops.Script, fails: Callable[[ops.Script], bool]) -> ops.Script:
    """Leave out what can be left out: whole steps first, then calls of a batch."""
    smaller = True
    while smaller:
        smaller = False
        for shorter in _shorter(script):
            if fails(shorter):
                script, smaller = shorter, True
                break
    return script


def _shorter(script: ops.Script) -> list[ops.Script]:
    found = [script[:at] + script[at + size :] for size in (4, 1) for at in range(len(script) - size, -1, -1)]
    for at, op in enumerate(script):
        if isinstance(op, ops.Run):
            for left_out in range(len(op.calls)):
                calls = op.calls[:left_out] + op.calls[left_out + 1 :]
                found.append((*script[:at], ops.Run(op.conversation, calls), *script[at + 1 :]))
    return found


if __name__ == "__main__":
    print(run(int(sys.argv[1]), int(sys.argv[2]), first=int(sys.argv[3]) if len(sys.argv) > 3 else 0))
