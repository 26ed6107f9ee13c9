"""Letting go by hand: what was said beforehand is what goes."""

from pathlib import Path

import pytest
from tests.durable.lives import START, stored_in

from keephold import Runtime
from keephold.control.control import Control
from keephold.store.base import Emitted, Registered, browsable
from keephold.testing.conformance.suite import record, uid


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_S5_as_many_events_go_as_a_dry_run_said(kind: str, tmp_path: Path) -> None:
    async with Runtime(store="memory:" if kind == "memory" else stored_in(tmp_path)) as rt:
        await rt.registry.write((Registered(record(1)),))
        for _ in range(3 if kind == "memory" else 25):  # a pass lets go of ten thousand
            await rt.registry.write(tuple(Emitted(uid(1), "built", {}, START) for _ in range(1000)))
        control, store = Control(rt), browsable(rt.registry.store)
        first, last = await store.events_range()
        said = await control.collect(older_than=0.0, dry_run=True, vacuum=False)
        assert said["events"] == last - first, "the newest one stays"
        assert await store.events_range() == (first, last)
        done = await control.collect(older_than=0.0, dry_run=False, vacuum=False)
        assert done["events"] == said["events"] and await store.events_range() == (last, last)
        assert (await control.collect(older_than=0.0, dry_run=True, vacuum=False))["events"] == 0
