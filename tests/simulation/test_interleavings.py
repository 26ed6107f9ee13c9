"""Random interleavings in virtual time: no difference from the model, over a store that commits at once and over one
that does not. `make soak` tries 10,000 and `KEEPHOLD_SEED=…` others; a failure prints the seed and the shortest script
that shows it."""

import os
import random
from collections.abc import Sequence

import pytest
from tests.simulation import ops
from tests.simulation.interleavings import run, shorten
from tests.simulation.play import play
from tests.simulation.rehearsal import rehearse
from tests.simulation.scripts import generate
from tests.simulation.stores import NextPassStore
from tests.simulation.world import Crew, Stage
from tests.soak import tries

from keephold.store.base import Changed, Done, Failed, Op
from keephold.store.memory import MemoryStore
from keephold.testing import VirtualClock

SEED = int(os.environ.get("KEEPHOLD_SEED", "20260101"))
CHUNK = tries(400, soak=2_500)


@pytest.mark.parametrize("chunk", range(4))
def test_A7_interleavings_are_as_the_model_says(chunk: int) -> None:
    report = run(CHUNK, SEED, first=chunk * CHUNK)
    print(report)
    assert report.count == CHUNK and report.answers > 3 * CHUNK
    assert not report.differences, str(report)


def test_A7_and_so_they_are_when_commits_take_a_while() -> None:
    report = run(tries(250, soak=1_000), SEED, store=NextPassStore, late=True)
    print(report)
    assert not report.differences, str(report)


@pytest.mark.parametrize(
    "rest",
    [
        (ops.Run(0, (ops.Abort("w1"),)), ops.Wait(0, all=("w1",))),
        (ops.End(0), ops.Ticks(1), ops.Run(0, (ops.Await(all=("w1",)),)), ops.Ticks(1), ops.Wait(0, all=("w1",))),
    ],
    ids=["before the commit of the abort or after it", "after an await that has shown the output"],
)
async def test_C5_a_wait_in_python_shows_what_no_batch_has_shown(clock: VirtualClock, rest: ops.Script) -> None:
    script = (ops.Run(0, (ops.Spawn("w1"),)), ops.Ticks(1), ops.Tell(0, "w1", "emit"), *rest)
    async with Stage(Crew(), clock) as stage:
        assert not await play(stage, "found", rehearse(script).steps)


def test_a_seed_gives_the_same_scripts_every_time() -> None:
    scripts = [generate(random.Random("7:1")).script for _ in range(2)]
    assert scripts[0] == scripts[1] != generate(random.Random("7:2")).script


class _Forgetful(MemoryStore):
    """A store that now and then forgets to say that a change was written."""

    def __init__(self) -> None:
        super().__init__()
        self._changes = 0

    def commit(self, ops: Sequence[Op], done: Done, failed: Failed, *, keep: bool = False) -> None:
        change = any(isinstance(op, Changed) for op in ops)
        self._changes += change
        if not change or self._changes % 5:
            super().commit(ops, done, failed, keep=keep)


def test_a_lost_wake_up_is_found_and_told_in_few_steps() -> None:
    report = run(20, 1, store=_Forgetful)
    assert report.differences
    assert "seed 1, made short" in report.differences[0] and "Run(" in report.differences[0]


def test_a_script_is_made_as_short_as_it_can_be() -> None:
    first, second = ops.Fetch("w1"), ops.Abort("w1")
    script = (ops.Ticks(1), ops.Run(0, (first, second)), ops.Passes(2), ops.Run(1, (second,)), ops.Ticks(8))

    def fails(script: ops.Script) -> bool:
        return any(isinstance(op, ops.Run) and first in op.calls for op in script)

    assert shorten(script, fails) == (ops.Run(0, (first,)),)
