"""A store that cannot write: nobody is told that an answer is taken which a crash would take back (R4)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.control.places import Needs
from tests.control.test_needs import TOOLS, open_now, say
from tests.durable.lives import power_cut
from tests.patience import PATIENCE
from tests.turn.calls import TALKING, reply, spawn, texts, wait_all

import keephold
from keephold import KeepholdError, Runtime
from keephold.control.control import Control
from keephold.store.sqlite import SqliteStore
from keephold.turn.prompt_queue import FromList


class Disk:
    """Full while it is said to be."""

    def __init__(self) -> None:
        self.full = False

    def __call__(self, when: str) -> None:
        if self.full and when == "before":
            raise apsw.FullError("database or disk is full")


async def mended(store: SqliteStore) -> None:
    async with asyncio.timeout(PATIENCE):
        while store.trouble is not None:  # noqa: ASYNC110 (the writer tries again by itself)
            await asyncio.sleep(0.01)


async def unavailable(doing: Any) -> str:
    with pytest.raises(KeepholdError) as caught:
        await doing
    assert caught.value.code == "store_unavailable"
    return caught.value.message


async def test_R4_an_answer_is_not_taken_while_it_cannot_be_written(tmp_path: Path) -> None:
    disk = Disk()
    store = SqliteStore(tmp_path / "work.db", fault=disk)
    async with Runtime(TOOLS, store=store, prompter=FromList()) as rt, rt.turn("main") as turn:
        control = Control(rt)
        await reply(turn, spawn("wonders", "w"))
        (need,) = await open_now(Needs(rt))
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
    disk = Disk()
    store = SqliteStore(tmp_path / "work.db", fault=disk)
    async with Runtime(TOOLS, store=store, prompter=FromList()) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("wonders", "w"))
        (need,) = await open_now(Needs(rt))
        disk.full = True
        control = Control(rt)
        said = await unavailable(control.decide(need["id"], say("answer", value=True)))
        assert "that was taken, and is written as soon as it can be" in said
        assert (await control.decide(need["id"], say("answer", value=False)))["status"] == "gone"
        disk.full = False
        await mended(store)
        (waited,) = await texts(turn, wait_all("w"))
        assert "answer true" in waited, "it is written when it can be"


async def _answer(control: Control, uid: str) -> None:
    await control.answer(uid, True)


async def _send(control: Control, uid: str) -> None:
    await control.apply(uid, "yes")


async def _apply(control: Control, uid: str) -> None:
    handle = control.runtime.registry.find("w", "main")
    reply = await control.runtime.actions.perform(handle, "apply", {"input": True}, by="principal")
    if reply.is_error:
        raise KeepholdError(reply.result, code=reply.code or "")


@pytest.mark.parametrize("how", [_answer, _send, _apply])
async def test_R4_the_first_answer_that_cannot_be_written_is_not_acknowledged(
    tmp_path: Path, how: Callable[[Control, str], Awaitable[None]]
) -> None:
    """Nobody has noticed the full disk before. The second answer is refused, and nothing fails but the two."""
    disk = Disk()
    store = SqliteStore(tmp_path / "work.db", fault=disk)
    async with Runtime(TOOLS, store=store, prompter=FromList()) as rt, rt.turn("main") as turn:
        control = Control(rt)
        await reply(turn, spawn("wonders", "w"))
        uid = (await rt.handle("w", conversation="main")).uid
        disk.full = True
        assert "that was taken, and is written as soon as it can be" in await unavailable(how(control, uid))
        assert "nothing was sent" in await unavailable(how(control, uid))
        disk.full = False
        await mended(store)
        (waited,) = await texts(turn, wait_all("w"))
        assert "answer true" in waited
        cut = power_cut(f"sqlite:///{tmp_path}/work.db")
    async with Runtime(TOOLS, store=cut) as rt:
        assert (await rt.handle("w", conversation="main")).state == "stopped"


async def test_R4_the_disk_of_the_owner_is_full_and_another_process_answers(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "work.db"
    owned = SqliteStore(path, fault=disk)
    async with (
        Runtime(TOOLS, store=owned, prompter=FromList()) as owner,
        owner.turn("main") as turn,
        Runtime(TOOLS, store=SqliteStore(path)) as rt,
    ):
        await reply(turn, spawn("wonders", "w"))
        uid = (await rt.handle("w", conversation="main")).uid
        control = Control(rt)
        disk.full = True
        assert "that was taken" in await unavailable(control.answer(uid, True))
        assert "nothing was sent" in await unavailable(control.answer(uid, False))
        disk.full = False
        await mended(owned)
        (waited,) = await texts(turn, wait_all("w"))
        assert "answer true" in waited


async def test_R4_input_that_is_stored_is_not_acknowledged_before_it_is_written(tmp_path: Path) -> None:
    """That of a `replay` call is; that of a terminal or a command is not stored, and works on a full disk."""

    @keephold.tool(actions=TALKING, on_crash="replay")
    async def stored(call: keephold.Call) -> str:
        return f"heard {await call.input()}"

    @keephold.tool(actions=TALKING)
    async def fleeting(call: keephold.Call) -> str:
        call.emit(f"heard {await call.input()}\n")
        await call.input()
        return "over"

    disk = Disk()
    store = SqliteStore(tmp_path / "work.db", fault=disk)
    async with Runtime([stored, fleeting], store=store) as rt, rt.turn("main") as turn:
        await turn.run([spawn("stored", "s"), spawn("fleeting", "f")])
        disk.full = True
        assert "that was taken" in await unavailable(rt.send("s", "a", conversation="main"))
        assert "nothing was sent" in await unavailable(rt.send("s", "b", conversation="main"))
        assert (await rt.send("f", "c", conversation="main"))["content"] == "heard c\n"
        disk.full = False
        await mended(store)
        (waited,) = await texts(turn, wait_all("s"))
        assert "heard a" in waited
