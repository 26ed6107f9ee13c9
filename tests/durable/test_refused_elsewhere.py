"""A request to a process that does not answer is refused or carried out, never both (M3): refused is withdrawn."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.durable.lives import in_state, stored_in
from tests.durable.program import tools
from tests.durable.test_two_processes import program
from tests.patience import until
from tests.turn.calls import TALKING, reply, spawn
from tests.turn.people import Person

import keephold
from keephold import Call, KeepholdError, Question, Runtime
from keephold.store.base import Replied, Request
from keephold.turn import owner_connection, relay


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "SILENT_SECS", 0.2)
    monkeypatch.setattr(owner_connection, "SILENT_SECS", 0.2)


async def test_M3_input_that_a_stopped_process_did_not_take_is_never_given(tmp_path: Path) -> None:
    async with (
        program(tmp_path, "kept", "session") as running,
        Runtime(tools(tmp_path), store=stored_in(tmp_path)) as rt,
    ):
        await rt.registry.write(())
        running.stop(stored_in(tmp_path))
        with pytest.raises(KeepholdError, match="Nothing was sent") as refused:
            await rt.send("session", "refused", conversation="main")
        assert refused.value.code == "owner_not_answering"
        running.send(signal.SIGCONT)
        with pytest.MonkeyPatch.context() as patient:
            patient.setattr(owner_connection, "SILENT_SECS", 30)
            last = await rt.send("session", "again", conversation="main")
        assert last["content"].endswith("you said again\n") and "refused" not in last["content"]


@keephold.tool(actions=TALKING, on_turn_end="keep")
async def asks(call: Call) -> str:
    return f"answered {await call.ask(Question(id='q', text='?', answer_type='Text'))}"


class Busy:
    """A runtime that reads its requests, and is busy before it acts on them."""

    def __init__(self, owner: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        self._owner, self._patch = owner, monkeypatch
        self.read: Sequence[Request] = ()
        self._serve = owner.relay.serve
        monkeypatch.setattr(owner.relay, "serve", self._only_read)

    async def _only_read(self) -> None:
        self.read = self.read or await self._owner.registry.store.requests()

    async def continues(self) -> None:
        """Act on what was read."""

        async def stale() -> Sequence[Request]:
            return self.read

        with self._patch.context() as patched:
            patched.setattr(self._owner.registry.store, "requests", stale)
            await self._serve()
        await self._owner.registry.write(())


@asynccontextmanager
async def two(directory: Path, person: Person | None = None) -> AsyncIterator[tuple[Runtime, Runtime]]:
    """Two runtimes: the first runs handle `a`, which asks."""

    @keephold.tool(run="ask", actions=("spawn", "fetch", "abort"), on_turn_end="keep")
    async def careful(call: Call) -> str:
        return "permitted"

    store = stored_in(directory)
    async with Runtime([asks, careful], store=store, prompter=person) as first, Runtime([asks], store=store) as second:
        async with first.turn("main") as turn:
            await reply(turn, spawn("asks", "a"))
        yield first, second


async def answer(rt: Runtime, text: str) -> str | None:
    """Answer the question as the model does, by a request in the store."""
    await rt.registry.load("main", ("a",))
    handle = rt.registry.find("a", "main")
    return (await rt.actions.perform(handle, "apply", {"input": text}, by="model")).code


async def test_M3_an_answer_that_was_refused_does_not_count_when_the_owner_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path) as (first, second):
        busy = Busy(first, monkeypatch)
        assert await answer(second, "refused") == "owner_not_answering"
        assert busy.read
        await busy.continues()
        assert await in_state(first, "a", "waiting")
        monkeypatch.setattr(relay, "SILENT_SECS", 30)
        monkeypatch.setattr(first.relay, "serve", busy._serve)
        assert await answer(second, "yes") is None
        done = await first.wait(all=["a"], conversation="main")
        assert done["completed"][0]["result"] == "answered yes"


async def test_M3_an_answer_that_was_taken_is_not_refused_although_it_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path) as (first, second):
        busy = Busy(first, monkeypatch)
        monkeypatch.setattr("keephold.turn.relay._longest", lambda handle: 0.2)
        await second.registry.load("main", ("a",))
        handle = second.registry.find("a", "main")
        sent = asyncio.create_task(second.actions.perform(handle, "apply", {"input": "yes"}, by="model"))
        await until(lambda: bool(busy.read))
        await first.registry.write((Replied(busy.read[0].id, b""),))
        told = await sent
        assert told.code == "owner_not_answering" and "It will be carried out" in told.result


async def test_P6_a_decision_that_was_refused_does_not_count_when_the_owner_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = Person()
    async with two(tmp_path, person) as (first, second), first.turn("other") as turn:
        spawning = asyncio.create_task(turn.run([spawn("careful", "c")]))
        await person.sees()
        store = first.registry.store
        await until(lambda: _posted(first))
        (post,) = await store.posts("prompt")
        busy = Busy(first, monkeypatch)
        with pytest.raises(KeepholdError, match="Nothing was done"):
            await second.relay.decide(post.id, post.owner, {"decision": "allow"}, "Ann")
        assert busy.read
        await busy.continues()
        assert not spawning.done() and await _posted(first)
        turn.cancel()
        await spawning


async def _posted(rt: Runtime) -> bool:
    return bool(await rt.registry.store.posts("prompt"))
