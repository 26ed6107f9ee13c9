"""Work beside the calls: it ends with the runtime, and a store that cannot be read is no bug."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.durable.lives import stored_in
from tests.turn.calls import spawn

import keephold
from keephold import Call, KeepholdError, Runtime


@keephold.tool(actions=("spawn", "abort"))
async def counts(call: Call) -> str:
    """Reports progress, and waits."""
    call.progress(1, 10)
    await asyncio.Event().wait()
    return "never"


async def test_M3_progress_that_is_not_posted_yet_is_not_posted_by_a_closed_runtime(tmp_path: Path) -> None:
    async with Runtime([counts], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("counts", "c")])
        timer = rt.registry.facts._timer
    assert timer is not None and timer.cancelled()


async def test_R4_a_read_that_is_cut_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Runtime(store=stored_in(tmp_path)) as rt:
        asked = asyncio.Event()

        async def cut() -> None:
            asked.set()
            raise KeepholdError("the store cannot be read at present: gone", code="store_unavailable")

        monkeypatch.setattr(rt.registry.store, "requests", cut)
        with caplog.at_level(logging.WARNING):
            rt.upkeep.heard(frozenset({"x"}))
            await asked.wait()
            monkeypatch.undo()
    assert caplog.records == []
