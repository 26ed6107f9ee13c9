"""The time of day is set while a runtime works: waits last as long as they should, and nothing expires early."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.durable.lives import stored_in
from tests.turn.calls import STATEFUL, call, spawn

import keephold
from keephold import upkeep
from keephold.handles.clock import TOLERATED_SECS, SystemClock
from keephold.testing import VirtualClock

HOUR, DAY = 3600.0, 86_400.0


class Watch:
    """The clock of a machine whose time of day can be set."""

    def __init__(self, clock: VirtualClock) -> None:
        self.set_by = 0.0
        self.clock = SystemClock(lambda: clock.now() + self.set_by, clock.now)


@keephold.tool(actions=STATEFUL, on_crash="replay", timeout_secs=None)
async def nap(call: keephold.Call) -> str:
    """Sleep for two hours."""
    await call.durable().sleep(2 * HOUR)
    return "awake"


@keephold.tool(actions=STATEFUL, timeout_secs=None)
async def approve(call: keephold.Call) -> keephold.Pending:
    """Wait for two hours for an answer that never comes."""
    await call.completion_key()
    return keephold.Pending(deadline=2 * HOUR)


@keephold.tool(actions=STATEFUL)
async def quick() -> str:
    """Return at once."""
    return "a fresh result"


@pytest.mark.parametrize("set_by", [-HOUR, 8 * DAY])
@pytest.mark.parametrize("tool", [nap, approve])
async def test_a_wait_lasts_as_long_as_it_should(tool: keephold.Tool, set_by: float, clock: VirtualClock) -> None:
    watch = Watch(clock)
    async with keephold.Runtime([tool], clock=watch.clock) as rt, rt.turn("main") as turn:
        began = clock.now()
        await turn.run([spawn(tool.name, "w")])
        await clock.advance(HOUR)
        watch.set_by = set_by
        await turn.run([call("await", all=["w"])])
        assert clock.now() - began == pytest.approx(2 * HOUR, abs=10)


async def test_S5_fresh_results_do_not_expire_when_the_time_of_day_is_set_forward(clock: VirtualClock) -> None:
    watch = Watch(clock)
    async with keephold.Runtime([quick], clock=watch.clock) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("quick", "q"), call("await", all=["q"])])
        watch.set_by = 8 * DAY
        assert rt.registry.retention == HOUR
        async with rt.turn("main"):  # retention is looked after
            await clock.advance(HOUR / 2)
        assert [each.id for each in await rt.handles()] == ["q"]
        await clock.advance(HOUR)
        async with rt.turn("main"):
            await clock.advance(60)
        assert await rt.handles() == []


async def test_a_jump_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "SWEEP_SECS", 0.001)
    set_by, told = [0.0], asyncio.Event()
    clock = SystemClock(lambda: time.time() + set_by[0])
    monkeypatch.setattr(logging.getLogger("keephold.runtime"), "warning", _telling(told))
    async with keephold.Runtime([quick], store=stored_in(tmp_path), clock=clock) as rt:
        said = []
        for jump in (-HOUR, 0.0):
            set_by[0] = jump
            await told.wait()
            told.clear()
            said.append(caplog.messages[-1])
            assert rt.upkeep.jump == jump
    assert len(caplog.messages) == 2
    assert "was set back by 3600 s" in said[0] and "agrees" in said[1]


def _telling(told: asyncio.Event) -> Callable[..., None]:
    """A way to log that says when it did."""

    def warning(*message: object) -> None:
        logging.getLogger("keephold.runtime").error(*message)
        told.set()

    return warning


def test_small_corrections_are_followed_and_jumps_are_not() -> None:
    wall, steady = [1000.0], [5.0]
    clock = SystemClock(lambda: wall[0], lambda: steady[0])
    for _ in range(4):  # more than is tolerated, but in small steps
        wall[0] += TOLERATED_SECS / 2
        assert clock.now() == wall[0] and clock.jump == 0
    before = clock.now()
    wall[0] += 8 * DAY
    steady[0] += 1
    wall[0] += 1
    assert clock.now() == pytest.approx(before + 1)
    assert clock.jump == pytest.approx(8 * DAY)
    assert SystemClock(lambda: wall[0], lambda: steady[0]).now() == wall[0], "another process has the new time"
