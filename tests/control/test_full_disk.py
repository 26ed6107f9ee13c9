"""A store that cannot write: nobody is told that an answer is taken which a crash would take back (R4)."""

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.control.test_needs import TOOLS, open_now, say
from tests.turn.calls import reply, spawn, texts, wait_all

from keephold import KeepholdError, Runtime
from keephold.control.control import Control
from keephold.control.open_requests import OpenRequests
from keephold.store.sqlite import SqliteStore


class Disk:
    """Full while it is said to be."""

    def __init__(self) -> None:
        self.full = False

    def __call__(self, when: str) -> None:
        if self.full and when == "before":
            raise apsw.FullError("database or disk is full")


async def mended(store: SqliteStore) -> None:
    async with asyncio.timeout(20):
        while store.trouble is not None:  # noqa: ASYNC110 (the writer tries again by itself)
            await asyncio.sleep(0.01)


async def unavailable(doing: Any) -> str:
    with pytest.raises(KeepholdError) as caught:
        await doing
    assert caught.value.code == "store_unavailable"
    return caught.value.message


async def test_R4_an_answer_is_not_taken_while_it_cannot_be_written(tmp_path: Path) -> None:
    disk, needs = Disk(), OpenRequests()
    store = SqliteStore(tmp_path / "work.db", fault=disk)
    async with Runtime(TOOLS, store=store, prompter=needs) as rt, rt.turn("main") as turn:
        control = Control(rt, needs)
        await reply(turn, spawn("wonders", "w"))
        (need,) = await open_now(needs)
        disk.full = True
        with pytest.raises(KeepholdError):
            await rt.revoke_keys("main")
        assert "stays open" in await unavailable(control.decide(need["id"], say("answer", value=True)))
        assert "stays open" in await unavailable(control.answer(need["handle"], True))
        assert [each["id"] for each in await control.requests.page()] == [need["id"]]
        disk.full = False
        await mended(store)
        assert (await control.decide(need["id"], say("answer", value=True)))["status"] == "taken"
        (waited,) = await texts(turn, wait_all("w"))
        assert "answer true" in waited


async def test_R4_an_answer_that_fills_the_disk_is_not_said_to_be_taken(tmp_path: Path) -> None:
    disk, needs = Disk(), OpenRequests()
    store = SqliteStore(tmp_path / "work.db", fault=disk)
    async with Runtime(TOOLS, store=store, prompter=needs) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("wonders", "w"))
        (need,) = await open_now(needs)
        disk.full = True
        control = Control(rt, needs)
        said = await unavailable(control.decide(need["id"], say("answer", value=True)))
        assert "that was taken, and is written as soon as it can be" in said
        assert (await control.decide(need["id"], say("answer", value=False)))["status"] == "gone"
        disk.full = False
        await mended(store)
        (waited,) = await texts(turn, wait_all("w"))
        assert "answer true" in waited, "it is written when it can be"
