"""The answer to a secret question is never stored, so a replay asks for it again (Q4, E10)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import power_cut, stopped, stored_in
from tests.patience import until
from tests.turn.calls import STATEFUL, TALKING, call, reply, spawn
from tests.turn.people import Model, Person, attended

import keephold
from keephold import Call, Question, Runtime
from keephold.outcomes import Ok
from keephold.turn.prompts import Answer

SECRET = "correct horse battery staple"


def files_of(directory: Path) -> Iterator[Path]:
    return (each for each in directory.rglob("*") if each.is_file())


def stored(directory: Path, text: str) -> list[str]:
    """The files in which the text is found."""
    return [each.name for each in files_of(directory) if text.encode() in each.read_bytes()]


@pytest.mark.parametrize("on_crash", ["fail", "replay"])
@pytest.mark.parametrize("how", ["prompt", "send", "one-shot"])
async def test_Q4_a_secret_is_never_stored(tmp_path: Path, on_crash: Any, how: str) -> None:
    store, person, got = stored_in(tmp_path), Person(), list[str]()

    @keephold.tool(actions=TALKING, on_crash=on_crash)
    async def login(call: Call) -> str:
        got.append(await call.ask(Question(id="password", text="Password?", answer_type="Text", secret=True)))
        return "logged in"

    async with attended(None, [login], person=person, model=Model(), store=store) as (rt, turn):
        batch = asyncio.create_task(turn.run([call("login") if how == "one-shot" else spawn("login", "l")]))
        await person.sees()
        if how == "send":
            await batch
            await rt.send("l", SECRET, conversation="main")
        else:
            await person.says(Answer(SECRET, remember=True))
        await batch
        await until(lambda: got == [SECRET])
        await rt.registry.write(())
        assert stored(tmp_path, SECRET) == []
    assert stored(tmp_path, SECRET) == []


async def test_Q4_E10_a_secret_is_asked_again_after_a_crash(tmp_path: Path) -> None:
    """It is not recorded, so a replay cannot know it."""
    store, got = stored_in(tmp_path), list[str]()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def login(call: Call) -> str:
        name = await call.ask(Question(id="name", text="Name?", answer_type="Text"))
        got.append(await call.ask(Question(id="password", text="Password?", answer_type="Text", secret=True)))
        if call.attempt == 1:
            await asyncio.Event().wait()
        return str(name)

    async with Runtime([login], store=store, prompter=Person(Answer("Ann"), Answer(SECRET))) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("login", "l"))
        await until(lambda: got == [SECRET])
        cut = power_cut(store)
    person = Person()
    async with attended(None, [login], person=person, store=cut) as (rt, turn):
        await until(lambda: bool(person.open) or len(got) > 1)
        assert person.open, "it was told the secret from the store"
        assert (await person.says(Answer("another"))).question.id == "password"
        assert (await stopped(rt, "l")).outcome == Ok("Ann")
