"""A user types into a terminal that runs on another machine, with the store in PostgreSQL: in whispers, not in rows."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import msgspec
import pytest
from starlette.applications import Starlette
from tests.durable.lives import in_state
from tests.e2e.terminals import patient
from tests.patience import PATIENCE, until
from tests.postgres import everything
from tests.turn.calls import spawn

import keephold
from keephold import KeepholdError, Runtime
from keephold.control.control import Control
from keephold.control.stored_output import talking
from keephold.serve.attach_http import routes
from keephold.serve.screens import _View
from keephold.serve.watched_terminal import RemoteTerminal
from keephold.store.base import Record
from keephold.store.postgres.presence import Presence
from keephold.store.postgres.store import PostgresStore
from keephold.turn import attach_protocol as frames
from keephold.turn import relayed_streams
from keephold.turn.attach_protocol import Size, Want
from keephold.turn.owner_connection import running
from keephold.turn.prompts import Decision, Prompt

SECRET = "whisper-me-not"


class Typist:
    """A user of another machine, and the terminal's owner."""

    def __init__(self, owner: Runtime, other: Runtime, record: Record) -> None:
        self.owner, self.other, self.record = owner, other, record

    @property
    def ears(self) -> Presence:
        """How the owner hears."""
        store = self.owner.registry.store
        assert isinstance(store, PostgresStore)
        return store._presence

    @asynccontextmanager
    async def attached(self) -> AsyncIterator[frames.Talk]:
        want = Want(uid=self.record.uid, want="attach", rows=20, cols=60)
        async with talking(self.other.registry.store, self.record, want, self.other.relay) as talk:
            await talk.receive()
            yield talk


async def never(prompt: Prompt) -> Decision:
    """A person who is there and says nothing."""
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def at_work(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Typist]:
    """One process runs a shell; another one reaches no socket of it."""
    sh = patient(keephold.terminal(["sh"], name="shell", env={"PS1": "$ "}))
    async with Runtime([sh], store=url, prompter=never) as one, Runtime(store=url) as two, one.turn("main") as turn:
        monkeypatch.setattr(two.registry.store, "stream", lambda _: None)
        await turn.run([spawn("shell", "s")])
        (record,) = await one.registry.store.handles()
        yield Typist(one, two, record)


async def shows(talk: frames.Talk, text: bytes) -> None:
    seen = b""
    async with asyncio.timeout(PATIENCE):
        while text not in seen:
            kind, payload = await talk.receive()
            seen += payload if kind == frames.OUTPUT and isinstance(payload, bytes) else b""


async def lost(talk: frames.Talk) -> str:
    """Return what a user is told whose input may be lost."""
    with pytest.raises(KeepholdError) as told:
        async with asyncio.timeout(PATIENCE):
            while True:
                await talk.receive()
    assert told.value.code == "input_lost"
    return told.value.message


async def test_K5_a_password_is_typed_on_another_machine_and_is_in_no_table(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at after each whisper."""
    looks = list[asyncio.Task[str]]()
    whisper = PostgresStore.whisper

    async def looking(store: PostgresStore, ear: str, message: str) -> None:
        await whisper(store, ear, message)
        looks.append(asyncio.create_task(everything(*postgres.split("?schema="))))

    monkeypatch.setattr(PostgresStore, "whisper", looking)
    async with at_work(postgres, monkeypatch) as typist:
        async with typist.attached() as talk:
            assert typist.owner.live()[0].driver == "person"
            talk.send(frames.INPUT, b"stty -echo; echo rea'dy'; read word; stty echo; echo ${#word} characters\n")
            await shows(talk, b"ready")
            talk.send(frames.INPUT, SECRET.encode() + b"\n")
            await shows(talk, f"{len(SECRET)} characters".encode())
        await until(lambda: typist.owner.live()[0].driver is None)
        asks = "stty -echo; printf 'Password: '; read word; stty echo; echo ${#word} of them\n"
        await typist.other.send("s", asks, conversation="main")
        await until(lambda: in_state(typist.other, "s", "waiting"))
        handle, perform = typist.other.registry.find("s", "main"), typist.other.actions.perform
        sent = await perform(handle, "apply", {"input": SECRET}, by="person", secret=True)
        assert f"{len(SECRET)} of them" in sent.result
        await typist.owner.send("s", "exit\n", conversation="main")
        await typist.owner.wait(all=["s"], conversation="main")
        written = [*await asyncio.gather(*looks), await everything(*postgres.split("?schema="))]
    assert len(written) == 6 and b"characters".hex() in written[-1], "what it has printed is there"
    assert not any(SECRET in rows or SECRET.encode().hex() in rows for rows in written)


async def test_M3_a_long_paste_arrives_whole_and_once(
    tmp_path: Path, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(f"{secrets.token_hex(20)}\n" for _ in range(1000)).encode()
    async with at_work(postgres, monkeypatch) as typist, typist.attached() as talk:
        talk.send(frames.RESIZE, Size(30, 90))
        talk.send(frames.INPUT, f"stty -echo; stty size; cat > {tmp_path}/pasted; md5sum {tmp_path}/pasted\n".encode())
        await shows(talk, b"30 90")
        talk.send(frames.INPUT, lines)
        talk.send(frames.INPUT, b"\x04")
        await shows(talk, hashlib.md5(lines).hexdigest().encode())


async def test_M3_the_typist_is_told_if_the_owner_no_longer_listens(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection has been cut, and nobody knows."""
    async with at_work(postgres, monkeypatch) as typist:
        async with typist.attached() as talk:
            monkeypatch.setattr(relayed_streams, "_LATE_SECS", 0.1)
            monkeypatch.setattr(relayed_streams, "_TYPING_POLL_SECS", 0.1)
            assert typist.ears._session is not None
            await typist.ears._session.run(f'UNLISTEN "{typist.ears.ear}"')
            talk.send(frames.INPUT, b"touch nothing\n")
            assert "attach or send again" in await lost(talk)
        with pytest.raises(KeepholdError, match="may not have reached"):
            await typist.other.send("s", "touch nothing\n", conversation="main")
        with pytest.raises(KeepholdError) as told:
            async with typist.attached() as talk:
                talk.send(frames.INPUT, b"touch nothing\n")
        assert told.value.code == "input_lost"


async def test_M3_the_typist_is_told_if_the_owner_loses_its_connection_and_can_attach_again(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_work(postgres, monkeypatch) as typist:
        async with typist.attached() as talk:
            assert typist.ears._session is not None
            typist.ears._session.connection.terminate()
            await lost(talk)
        await until(lambda: typist.ears.ear)
        async with typist.attached() as talk:
            talk.send(frames.INPUT, b"echo $((6 * 7))\n")
            await shows(talk, b"42")
        typist.ears.ear = ""
        with pytest.raises(KeepholdError, match="hears no input from other machines at present"):
            async with typist.attached():
                raise AssertionError("nobody hears")


async def test_M3_the_typist_is_told_if_input_cannot_be_sent(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with at_work(postgres, monkeypatch) as typist, typist.attached() as talk:
        mine = typist.other.registry.store
        assert isinstance(mine, PostgresStore) and mine._presence._session is not None
        mine._presence._session.connection.terminate()
        talk.send(frames.INPUT, b"touch nothing\n")
        assert "cannot be reached" in await lost(talk)


async def test_M3_nothing_is_typed_twice_and_nothing_after_a_gap(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_work(postgres, monkeypatch) as typist, typist.attached() as talk:
        (id,) = typist.owner.streams._sessions._open
        hear = typist.owner.streams._sessions.hear
        typed = frames.frame(frames.INPUT, b"echo $((6 * 7)).\n")

        def whispered(number: int) -> str:
            return msgspec.json.encode(relayed_streams.Whisper(id, number, typed)).decode()

        for hostile in ("", "null", "[" * 7000, '["x",0,"eA=="]', f'["{id}",0,"?"]', f'["{id}",-1,"eA=="]'):
            hear(hostile)
        talk.send(frames.INPUT, b"echo $((6 * 9)).\n")
        await shows(talk, b"54.")
        hear(whispered(0))
        hear(whispered(7))
        hear(whispered(1))
        await lost(talk)
        output = typist.owner.registry.find("s", "main").output
        assert output is not None and b"42" not in output.read(0, output.total).data


async def test_K6_a_typist_who_sends_more_than_is_read_loses_the_session_not_the_owner_its_memory() -> None:
    """As long as `send` waits for a program to settle, nobody reads what comes after its input."""
    session, piece = relayed_streams.RelayedStream("ear"), bytes(1 << 20)
    session.hear(0, frames.frame(frames.INPUT, bytes(frames.LONGEST)))
    for number in range(1, 64):
        session.hear(number, piece)
    session.lose()
    assert len(session._said) < 3 * frames.LONGEST
    assert await session.receive() == (frames.INPUT, bytes(frames.LONGEST))
    await session.close()
    kind, told = (await session.take()).frames[-1]
    assert session.closed and kind == frames.ERROR and b"input_lost" in told


class Scripted:
    """An owner that is asked through the store, and takes every whisper."""

    can_whisper = True

    def __init__(self, *answers: relayed_streams.PollAnswer) -> None:
        self.answers = iter(answers)

    async def poll(self, uid: str, owner: str, poll: relayed_streams.Poll) -> relayed_streams.PollAnswer:
        return next(self.answers)

    async def whisper(self, ear: str, message: str) -> None: ...


async def test_M3_a_session_that_ends_after_the_last_acknowledgement_has_lost_nothing() -> None:
    shown, closed = (frames.OUTPUT, b"$ "), (frames.ERROR, msgspec.json.encode(frames.Refused("closed", "over")))
    owner = Scripted(
        *(relayed_streams.PollAnswer([shown], heard, "ear") for heard in (0, 1)), relayed_streams.PollAnswer([closed])
    )
    link = relayed_streams.RelayedLink(owner, "owner", Want(uid="u", want="attach"))
    await link.receive()
    link.send(frames.INPUT, b"exit\n")
    await link.receive()
    with pytest.raises(KeepholdError) as told:
        await link.receive()
    assert told.value.code == "over"


async def test_M3_one_user_drives_until_they_leave_or_ask_no_more(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_work(postgres, monkeypatch) as typist:
        async with typist.attached():
            with pytest.raises(KeepholdError, match="only one can"):
                async with typist.attached():
                    raise AssertionError("somebody else drives")
        with monkeypatch.context() as soon:
            soon.setattr(relayed_streams, "_TYPING_KEPT_SECS", 1.0)
            async with typist.attached():  # as one who has been killed, it asks for nothing
                await until(lambda: typist.owner.live()[0].driver is None)
        async with typist.attached() as talk:
            talk.send(frames.INPUT, b"echo $((6 * 7))\n")
            await shows(talk, b"42")


async def test_a_browser_drives_a_terminal_of_another_machine_and_is_told_of_lost_input(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_work(postgres, monkeypatch) as typist:
        to = running(typist.other.registry.store, typist.record)
        assert to is not None and to.path is None
        view = _View(RemoteTerminal(to, typist.other.relay), lambda: None)
        await view.watched.drive(Size(20, 60), view.fail)
        view.watched.type(b"echo $((6 * 7))\n")
        await until(lambda: any(line.strip() == "42" for line in view.watched.shown().screen.lines))
        await view.hand_back()
        await until(lambda: typist.owner.live()[0].driver is None)
        await view.watched.drive(Size(20, 60), view.fail)
        assert typist.ears._session is not None
        typist.ears._session.connection.terminate()
        await until(lambda: view.over)
        assert view.why is not None and "may not have reached" in view.why
        await view.close()


async def test_a_server_sends_input_to_a_handle_of_another_machine(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `keephold send --server` asks it to."""
    async with at_work(postgres, monkeypatch) as typist:
        transport = httpx2.ASGITransport(Starlette(routes=routes(Control(typist.other))))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=PATIENCE) as client:
            want = {"want": "send", "input": "echo $((6 * 7))\n"}
            said = await client.post(f"/api/handles/{typist.record.uid}/talk", json=want)
        assert said.status_code == 200, said.text
        content = bytearray(said.content)
        assert frames.take(content) is not None
        kind, reply = frames.take(content) or ("", b"")
        assert kind == frames.REPLY and b"42" in reply and not content
