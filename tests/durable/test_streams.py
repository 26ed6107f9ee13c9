"""People at the handles of a runtime, by its socket: following what is printed, and sending something (C5, C6, Q4)."""

import asyncio
import socket
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.durable.lives import in_state, stored_in
from tests.durable.streams import connected, path_of, wanting
from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL, TALKING, apply, reply, spawn

import keephold
from keephold import Call, Question, Runtime, ToolError
from keephold.policies import OutputPolicy, QuestionPolicy
from keephold.private_file import STREAM
from keephold.turn import attach_protocol as frames
from keephold.turn.attached import CHUNK, HandleFollower
from keephold.turn.owner_connection import OwnerAddress, OwnerConnection, linked
from keephold.turn.prompts import Decision, Prompt
from keephold.turn.relayed_streams import Poll


@keephold.tool(actions=TALKING)
async def talk(call: Call) -> str:
    """Says what it is told, until that is `bye`."""
    call.emit("hello\n")
    while (line := await call.input()) != "bye":
        call.emit(f"you said {line}\n")
    return "it was nice"


@keephold.tool(actions=STATEFUL)
async def gush(call: Call, size: int) -> str:
    """Prints a lot, and is never held up by who reads it."""
    for start in range(0, size, 1 << 16):
        call.emit(b"x" * min(1 << 16, size - start))
        await asyncio.sleep(0)
    return "done"


# Following


async def test_C5_a_client_gets_what_was_printed_then_what_is_and_at_last_how_it_ended(tmp_path: Path) -> None:
    async with Runtime([talk], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("talk", "t")])
        async with wanting(rt, "t", "follow") as client:
            assert await client.until(b"hello\n") == b"hello\n"
            await rt.send("t", "Ada", conversation="main")
            assert await client.until(b"Ada\n") == b"you said Ada\n"
            await rt.send("t", "bye", conversation="main")
            heard = await client.everything()
        assert heard.end.handle == await rt.handle("t", conversation="main")
        assert heard.end.handle.outcome == keephold.outcomes.Ok("it was nice")
        assert heard.end.offset == len("hello\nyou said Ada\n")


async def test_C5_a_client_may_begin_anywhere_and_may_leave_it_at_what_there_is(tmp_path: Path) -> None:
    async with Runtime([talk], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("talk", "t")])
        async with wanting(rt, "t", "read", since=2) as client:
            heard = await client.everything()
        assert (heard.data, heard.states, heard.end.handle.state) == (b"llo\n", ["running"], "running")


async def test_C5_any_number_of_clients_get_the_same(tmp_path: Path) -> None:
    async with Runtime([gush], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("gush", "g", size=3_000_000)])
        async with wanting(rt, "g", "follow") as one, wanting(rt, "g", "follow") as other:
            heard = await asyncio.gather(one.everything(), other.everything())
        assert [each.data for each in heard] == [b"x" * 3_000_000] * 2


async def test_O5_what_is_not_kept_is_told_as_a_gap(tmp_path: Path) -> None:
    small = replace(gush, output=OutputPolicy(max_output=1000))
    async with Runtime([small], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("gush", "g", size=5000)])
        await rt.wait(all=["g"], conversation="main")
        async with wanting(rt, "g", "follow") as client:
            heard = await client.everything()
        assert heard.gaps == [frames.Gap(4000, 4500)]
        assert len(heard.data) == 1000


async def test_O5_a_client_that_does_not_read_costs_one_frame_and_holds_nobody_up(tmp_path: Path) -> None:
    async with Runtime([gush], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("gush", "g", size=20_000_000)])
        async with wanting(rt, "g", "follow") as slow:
            await rt.wait(all=["g"], timeout=PATIENCE, conversation="main")
            (client,) = rt.streams._clients.values()
            assert isinstance(client.channel, frames.Socket)
            assert client.channel._writer.transport.get_write_buffer_size() <= 2 * CHUNK
            heard = await slow.everything()
        assert heard.size == 20_000_000
        assert heard.end.handle.state == "stopped"


async def test_a_client_that_leaves_leaves_nothing(tmp_path: Path) -> None:
    async with Runtime([talk], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("talk", "t")])
        handle = rt.registry.find("t", "main")
        assert handle.run is not None
        async with wanting(rt, "t", "follow") as client:
            await client.until(b"hello\n")
            assert handle.watchers
        await until(lambda: not rt.streams._clients)
        assert not handle.watchers


async def test_a_question_is_told_when_it_is_asked(tmp_path: Path) -> None:
    async with Runtime([choosing()], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("choose", "c")])
        async with wanting(rt, "c", "follow") as client:
            told = msgspec.json.decode(await client.expect(frames.STATE), type=frames.HandleStatus)
            assert told.handle.question is not None
            assert told.handle.question.id == "which"
            await rt.send("c", "red", conversation="main")
            assert (await client.everything()).end.handle.ok


async def test_B4_a_queued_handle_is_followed_from_its_start_on(tmp_path: Path) -> None:
    serial = replace(talk, scheduling="serial")
    async with Runtime([serial], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("talk", "first"), spawn("talk", "second")])
        async with wanting(rt, "second", "follow") as client:
            await client.expect(frames.STATE)
            await rt.send("first", "bye", conversation="main")
            assert await client.until(b"hello\n") == b"hello\n"
            await rt.send("second", "bye", conversation="main")
            assert (await client.everything()).end.handle.ok


# The socket


async def test_K1_the_socket_is_its_users_own_and_goes_with_the_runtime(tmp_path: Path) -> None:
    async with Runtime([talk], store=stored_in(tmp_path)) as rt:
        socket = Path(path_of(rt))
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    assert not socket.exists()


async def test_the_socket_of_a_process_that_died_goes_when_the_next_one_opens_the_store(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.durable.program", stored_in(tmp_path), str(tmp_path), "spawn", "session",
        cwd=Path(__file__).parents[2], stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    await process.stdout.readline()
    (lock,) = (tmp_path / "work.db-owners").iterdir()
    socket = Path(lock.read_text() + STREAM)
    assert socket.is_socket()
    process.kill()
    await process.wait()
    async with Runtime([talk], store=stored_in(tmp_path)):
        assert not socket.exists()


async def test_without_a_durable_store_there_is_no_socket() -> None:
    async with Runtime([talk]) as rt:
        assert rt.streams._server is None


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (frames.frame(frames.WANT, b"{}"), "invalid_arguments"),
        (frames.frame(frames.WANT, b'{"uid":"0","want":"steal"}'), "invalid_arguments"),
        (frames.frame(frames.WANT, b'{"uid":"0","want":"follow"}'), "handle_not_found"),
        (frames.frame(frames.INPUT, b'{"uid":"0","want":"follow"}'), "invalid_arguments"),
        (b"GET / HTTP/1.1\r\n\r\n", "limit_exceeded"),
    ],
)
async def test_who_does_not_say_what_it_wants_is_told_so(tmp_path: Path, said: bytes, code: str) -> None:
    async with Runtime([talk], store=stored_in(tmp_path)) as rt, connected(rt) as client:
        client.write(said)
        assert (await client.refusal()).code == code
        assert await client.receive() is None


async def test_R6_closing_the_runtime_tells_how_it_ended_or_that_it_goes_on(tmp_path: Path) -> None:
    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def patient(call: Call) -> str:
        """Goes on in the next runtime."""
        await asyncio.Event().wait()
        return "never"

    rt = Runtime([talk, patient], store=stored_in(tmp_path))
    async with rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([spawn("talk", "t"), spawn("patient", "p")])
        async with wanting(rt, "t", "follow") as ended, wanting(rt, "p", "follow") as kept, connected(rt) as silent:
            await ended.until(b"hello\n")
            await kept.expect(frames.STATE)
            await rt.close()
            assert (await ended.everything()).end.handle.ended_by == "shutdown"
            assert (await kept.refusal()).code == "runtime_closed"
            assert await silent.receive() is None


async def test_closing_does_not_wait_for_a_client_that_does_not_read(tmp_path: Path) -> None:
    async with Runtime([gush], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("gush", "g", size=5_000_000)])
        async with wanting(rt, "g", "follow"):
            await rt.wait(all=["g"], conversation="main")
            async with asyncio.timeout(PATIENCE):
                await rt.close()


async def test_a_client_that_connects_while_the_runtime_closes_is_disconnected(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    async with Runtime([talk], store=stored_in(tmp_path)) as rt:
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        rt.streams._connected(reader, writer)
        await rt.streams.close()
    assert writer.transport.is_closing()
    theirs.close()


async def test_a_client_that_is_cancelled_while_it_leaves_is_disconnected(tmp_path: Path) -> None:
    """Or its connection stays open until it is garbage."""
    leaving, connections = asyncio.Event(), list[asyncio.StreamWriter]()

    async def busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        socket = frames.Socket(reader, writer)
        while (received := await socket.receive()) is not None:
            if received[0] == frames.DETACH:
                leaving.set()
        writer.close()

    async def attach() -> None:
        async with linked(OwnerAddress("u", "h", "talk", f"{tmp_path}/s"), frames.Want(uid="u", want="attach")) as link:
            assert isinstance(link, OwnerConnection)
            opened.append(link._socket._writer)

    opened = list[asyncio.StreamWriter]()
    async with await asyncio.start_unix_server(busy, f"{tmp_path}/s"):
        attached = asyncio.create_task(attach())
        await leaving.wait()
        attached.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attached
        assert opened[0].transport.is_closing()
        await until(lambda: connections[0].is_closing())


# Sending


def choosing(exclusive: bool = False) -> keephold.Tool:
    @keephold.tool(actions=TALKING, questions={"which": QuestionPolicy(exclusive=exclusive)})
    async def choose(call: Call) -> str:
        """Asks for a colour."""
        kind = {"Select": {"options": ["red", "green"]}}
        return f"painted {await call.ask(Question(id='which', text='Which colour?', answer_type=kind))}"

    return choose


async def test_C6_what_a_client_sends_is_input_for_a_running_handle(tmp_path: Path) -> None:
    async with Runtime([talk], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("talk", "t"))
        async with wanting(rt, "t", "send", input="Ada") as client:
            shown = msgspec.json.decode(await client.expect(frames.REPLY))
        assert shown == {"id": "t", "state": "running", "content": "you said Ada\n"}


@pytest.mark.parametrize(("typed", "answer"), [("green", "green"), ("2", "green"), (" 1\n", "red")])
async def test_Q1_an_option_is_chosen_by_name_or_number(tmp_path: Path, typed: str, answer: str) -> None:
    async with Runtime([choosing()], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("choose", "c")])
        async with wanting(rt, "c", "send", input=typed) as client:
            assert msgspec.json.decode(await client.expect(frames.REPLY))["result"] == f"painted {answer}"


@pytest.mark.parametrize("typed", ["3", "blue", "0", ""])
async def test_C6_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open(
    tmp_path: Path, typed: str
) -> None:
    async with Runtime([choosing()], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("choose", "c")])
        async with wanting(rt, "c", "send", input=typed) as client:
            refused = await client.refusal()
        assert refused.code == "bad_answer"
        assert '"red", "green"' in refused.message
        assert await in_state(rt, "c", "waiting")


@pytest.mark.parametrize(("typed", "answer"), [("yes", True), ("No", False), ("true", True), ("n", False)])
async def test_Q1_yes_and_no_are_answers(tmp_path: Path, typed: str, answer: bool) -> None:
    @keephold.tool(actions=TALKING)
    async def sure(call: Call) -> bool:
        """Asks."""
        return bool(await call.ask(Question(id="sure", text="Sure?", answer_type="Boolean")))

    async with Runtime([sure], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("sure", "s")])
        assert (await rt.send("s", typed, conversation="main"))["result"] == str(answer).lower()


async def test_rt_send_reaches_a_handle_wherever_it_runs(tmp_path: Path) -> None:
    async with (
        Runtime([talk], store=stored_in(tmp_path)) as rt,
        Runtime([talk], store=stored_in(tmp_path)) as other,
        rt.turn("main") as turn,
    ):
        await turn.run([spawn("talk", "t")])
        assert (await other.send("t", "hi", conversation="main"))["content"].endswith("you said hi\n")
        for each in (rt, other):
            with pytest.raises(ToolError, match="nothing to send"):
                await each.send("t", conversation="main")
            with pytest.raises(ToolError, match="takes no keys"):
                await each.send("t", keys=["ENTER"], conversation="main")
            with pytest.raises(ToolError, match="not found"):
                await each.send("u", "bye", conversation="main")
        await rt.send("t", "bye", conversation="main")
        for each in (rt, other):
            with pytest.raises(ToolError, match="is stopped"):
                await each.send("t", "bye", conversation="main")


async def test_attach_is_for_terminals(tmp_path: Path) -> None:
    async with Runtime([talk], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("talk", "t")])
        async with wanting(rt, "t", "attach", rows=24, cols=80) as client:
            refused = await client.refusal()
        assert "`keephold logs -f t`" in refused.message and "`keephold send t`" in refused.message


async def never(prompt: Prompt) -> Decision:
    """A person who is there and says nothing."""
    await asyncio.Event().wait()
    raise AssertionError


async def test_Q4_an_exclusive_question_is_answered_by_whoever_sends_as_a_person(tmp_path: Path) -> None:
    async with (
        Runtime([choosing(exclusive=True)], store=stored_in(tmp_path), prompter=never) as rt,
        rt.turn("main") as turn,
    ):
        await turn.run([spawn("choose", "c")])
        (refused,) = await turn.run([apply("choose", "c", "red")])
        assert refused.code == "question_exclusive"
        async with wanting(rt, "c", "send", input="red") as client:
            assert msgspec.json.decode(await client.expect(frames.REPLY))["result"] == "painted red"


async def test_K5_a_secret_is_taken_from_who_typed_it_unseen_and_is_nowhere_in_the_store(tmp_path: Path) -> None:
    @keephold.tool(actions=TALKING)
    async def log_in(call: Call) -> str:
        """Asks for a password."""
        word = await call.ask(Question(id="password", text="Password:", secret=True))
        return f"{len(str(word))} characters"

    async with Runtime([log_in], store=stored_in(tmp_path), prompter=never) as rt, rt.turn("main") as turn:
        await turn.run([spawn("log_in", "l")])
        async with wanting(rt, "l", "send", input="open-sesame") as client:
            assert "--password" in (await client.refusal()).message
        async with wanting(rt, "l", "send", input="open-sesame", secret=True) as client:
            assert msgspec.json.decode(await client.expect(frames.REPLY))["result"] == "11 characters"
    assert not any(b"open-sesame" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


async def test_M3_a_relayed_stream_that_fails_ends_for_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: HandleFollower) -> Iterator[frames.Frame]:
        yield frames.OUTPUT, b"x"
        raise RuntimeError("no")

    monkeypatch.setattr(HandleFollower, "so_far", failing)
    received = list[tuple[str, bytes]]()
    async with Runtime([talk], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("talk", "t")])
        poll = Poll("s", frames.Want(uid=rt.registry.find("t", "main").uid, want="read"))
        async with asyncio.timeout(PATIENCE):
            while not received or received[-1][0] != frames.ERROR:
                received += (await rt.streams.polled(poll)).frames
                poll = Poll("s")
        await rt.send("t", "bye", conversation="main")
    assert [kind for kind, _ in received] == [frames.OUTPUT, frames.ERROR]
