"""`keephold serve --replace`: a new server takes over; nothing is refused, lost or repeated (R6)."""

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from tests.durable.lives import ok
from tests.mcp.clients import ERAS, connected
from tests.patience import PATIENCE, until
from tests.serve.lasting import CONFIG as LASTING
from tests.serve.serving import TOKEN, Served, environment, serve, served
from tests.serve.streams import listening
from tests.soak import tries

from keephold.control.remote import RemoteControl
from keephold.errors import ConfigError
from keephold.private_file import HANDOVER
from keephold.serve.handover import Channel, Predecessor, _hello
from keephold.store.sqlite.processes import owners_of
from keephold.turn import attach_protocol as frames

CONFIG = (
    LASTING
    + """
[mcp]
answer_within_secs = 0

[conversation.tools.echo]
source = "local"
command = ["printf", "%s", "{{ tool.arguments.text }}"]
parameters = { text = { type = "string" } }
run = "unattended"

[conversation.tools.asks]
source = "local"
command = ["echo", "allowed"]
run = "ask"

[conversation.tools.counts]
source = "local"
command = ["sh", "-c", "while read line; do echo got $line; done; echo over"]
run = "unattended"
[conversation.tools.counts.spawn]
actions = ["spawn", "fetch", "apply", "abort"]
stdin = true
[conversation.tools.counts.spawn.lifecycle]
on_turn_end = "keep"

[conversation.tools.types]
source = "terminal"
command = ["sh", "-c", "while read line; do echo got $line; done"]
run = "unattended"
[conversation.tools.types.spawn]
actions = ["spawn", "fetch", "apply", "abort"]
[conversation.tools.types.spawn.lifecycle]
on_turn_end = "keep"

[conversation.tools.kept]
source = "terminal"
command = ["sh", "-c", "while read line; do echo got $line; done"]
run = "unattended"
on_crash = "keep"
[conversation.tools.kept.spawn]
actions = ["spawn", "fetch", "apply", "abort"]
[conversation.tools.kept.spawn.lifecycle]
on_turn_end = "keep"
"""
)


class Load:
    """Clients that ask without a pause, and must always be answered."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self.answered: dict[str, int] = {}
        self._over = asyncio.Event()

    def _count(self, what: str) -> None:
        self.answered[what] = self.answered.get(what, 0) + 1

    async def pages(self) -> None:
        """One connection, kept open."""
        async with self._server.client() as http:
            while not self._over.is_set():
                assert (await http.get("/api/handles")).status_code == 200
                self._count("kept")

    async def connections(self) -> None:
        """A connection for each request."""
        while not self._over.is_set():
            async with self._server.client() as http:
                assert (await http.get("/healthz")).status_code == 200
                self._count("new")

    async def calls(self, era: str) -> None:
        """Calls of an MCP client, which has one session all the time."""
        async with connected(self._server.mcp, token=TOKEN, mode=era) as client:
            for number in itertools.count():
                if self._over.is_set():
                    return
                said: Any = (await client.call_tool("echo", {"text": str(number)})).content[0]
                assert said.text == str(number)
                self._count(era)

    async def completions(self) -> None:
        """Calls that wait for a webhook: each is completed once, and has the result that was sent."""
        notes = self._server.directory / "approve"
        async with connected(self._server.mcp, token=TOKEN) as client, self._server.client() as http:
            for number in itertools.count():
                if self._over.is_set():
                    return
                id, directory = f"approve-{number}", str(self._server.directory)
                await client.call_tool("approve", {"action": "spawn", "id": id, "directory": directory})
                await until(lambda count=number: notes.exists() and notes.read_text().count("\n") > count)  # type: ignore[misc]
                key = notes.read_text().splitlines()[number]
                completed = await http.post(f"/complete/{key}", json=ok(number), headers={"Authorization": ""})
                assert completed.status_code == 200, completed.text
                said: Any = (await client.call_tool("await", {"all": [id], "timeout_secs": 30})).content[0]
                assert [each["result"] for each in json.loads(said.text)["completed"]] == [str(number)], said.text
                self._count("completions")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        works = [self.pages(), self.connections(), self.completions(), *(self.calls(era) for era in ERAS)]
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
            yield
            self._over.set()

    async def goes_on(self) -> None:
        """Wait until every kind of client was answered some times more."""
        before = dict(self.answered)
        await until(lambda: all(self.answered.get(each, 0) >= before.get(each, 0) + 3 for each in self.kinds))

    kinds = ("kept", "new", "completions", *ERAS)


async def replaced(server: Served, *words: str) -> "subprocess.Popen[bytes]":
    return await asyncio.to_thread(server.replace, *words)


async def ended(process: "subprocess.Popen[bytes]") -> int:
    return await asyncio.to_thread(process.wait, PATIENCE)


async def test_R6_a_server_is_replaced_under_load_and_no_request_is_refused(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG) as server:
        load = Load(server)
        async with listening(server) as listener, load.running():
            for _ in range(tries(2, soak=20)):
                await load.goes_on()
                before = await replaced(server)
                assert await ended(before) == 0, "nothing is left there"
            await load.goes_on()
        assert listener.connections > 1 and listener.ids == list(range(1, len(listener.ids) + 1))


class Model:
    """An MCP client that uses tools with handles."""

    def __init__(self, server: Served) -> None:
        self._server = server

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        async with connected(self._server.mcp, token=TOKEN) as client:
            answered = await client.call_tool(tool, arguments)
            said: Any = answered.content[0]
            assert not answered.is_error, said.text
            return json.loads(said.text)


async def test_R6_a_command_of_a_replaced_server_runs_on_and_is_reached_through_the_new_one(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG) as server:
        model = Model(server)
        for id in ("one", "two"):
            await model("counts", action="spawn", id=id)
        before = await replaced(server)
        said = await model("counts", action="apply", id="one", input="a\n")
        assert "got a" in str(said) and said["state"] == "running", said
        assert (await model("counts", action="fetch", id="one"))["state"] == "running"
        aborted = await model("counts", action="abort", id="two")
        assert aborted["state"] == "stopped", aborted
        assert before.poll() is None, "it has a command"
        closed = await model("counts", action="apply", id="one", input=None)
        assert "over" in str(closed), closed
        assert await ended(before) == 0, "nothing is left"


async def test_R6_a_replaced_server_ends_what_still_runs_when_its_time_is_over(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG) as server:
        model = Model(server)
        await model("counts", action="spawn", id="one")
        before = await replaced(server, "--drain", "1")
        assert await ended(before) == 0
        over = await model("counts", action="fetch", id="one")
        assert (over["state"], over["ended_by"]) == ("stopped", "shutdown"), over


async def test_R6_calls_that_only_wait_move_at_once(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG) as server:
        model = Model(server)
        for tool in ("deploy", "approve", "work"):
            await model(tool, action="spawn", id=tool, directory=str(tmp_path))
        await until(lambda: (tmp_path / "deploy").exists() and (tmp_path / "approve").exists())
        before = await replaced(server)
        await until(lambda: len((tmp_path / "deploy").read_text().splitlines()) == 2)  # the new one has replayed it
        async with server.client() as http:
            assert before.poll() is None, "it still works"
            before.kill()
            await ended(before)
            for tool in ("deploy", "approve"):
                key = (tmp_path / tool).read_text().splitlines()[-1]
                completed = await http.post(f"/complete/{key}", json=ok("yes"), headers={"Authorization": ""})
                assert completed.status_code == 200, completed.text
            body = {"all": ["deploy", "approve"], "conversation": "mcp", "timeout": PATIENCE}
            done = (await http.post("/api/wait", json=body)).json()
            assert {each["id"]: each["result"] for each in done["completed"]} == {
                "deploy": ["created", "yes", 2], "approve": "yes"
            }  # fmt: skip
        assert (tmp_path / "created").read_text() == "attempt 1\n"


def start(server: Served, *words: str) -> "subprocess.Popen[str]":
    """Another server with the words of this one, which may not start."""
    command = serve(server.store, "--port", str(server.port), "--replace", *words)
    env = {**environment(server.directory), "KEEPHOLD_TOKEN": TOKEN}
    return subprocess.Popen(
        command, cwd=server.directory, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


async def refusal(server: Served, *words: str) -> str:
    """Return the refusal that a server prints if it cannot replace this one."""
    process = start(server, *words)
    _, said = await asyncio.to_thread(process.communicate, timeout=PATIENCE)
    assert process.returncode == 2, said
    return str(said)


async def test_R6_if_the_new_server_cannot_start_the_old_one_goes_on(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG) as server:
        note = server.store.with_name("store.db-server")
        known = note.read_text()
        async with server.client() as http:
            (tmp_path / "wrong.toml").write_text("[nonsense]")
            assert "nonsense" in await refusal(server, "--config", "wrong.toml")
            assert (await http.get("/healthz")).status_code == 200
            assert note.read_text() == known, "commands still find it"
        assert server.process.poll() is None
        await ended(await replaced(server))
        assert note.read_text() != known


async def test_R6_without_a_running_server_it_just_starts(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG, "--replace") as server:
        async with server.client() as http:
            assert (await http.get("/healthz")).status_code == 200


async def test_R6_a_program_at_the_address_that_is_not_ours_is_named(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG) as server, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = await refusal(server, "--port", str(taken.getsockname()[1]))
        assert "No server on" in said and "that can be replaced listens there" in said
        said = await refusal(server, "--host", "0.0.0.0")
        assert "it listens at 127.0.0.1, so give --host 127.0.0.1" in said
        assert "--replace needs a store" in await refusal(server, "--store", "memory:")


@pytest.mark.parametrize(
    ("field", "why"), [("handover", "hand over in different ways"), ("schema", "different schemas")]
)
async def test_R6_another_version_is_refused_in_words(tmp_path: Path, field: str, why: str) -> None:
    with served(tmp_path, CONFIG) as server:
        said = await asked(server, **{field: 1000, "release": "99.0"})
        assert why in said["refused"] and "99.0" in said["refused"] and "1000. Stop the running one" in said["refused"]
        assert await asked(server, drain="long") == {"refused": "`drain` must be a number of seconds"}
        async with server.client() as http:
            assert (await http.get("/healthz")).status_code == 200


async def asked(server: Served, **said: Any) -> dict[str, Any]:
    """Return the server's answer to the first packet of another one."""
    with handover_socket(server) as connection:
        connection.send(json.dumps(first_packet(server) | said).encode())
        return dict(json.loads(await asyncio.to_thread(connection.recv, 1 << 16)))


def first_packet(server: Served) -> dict[str, Any]:
    return {**_hello(), "at": ["127.0.0.1", server.port], "drain": 60}


@contextlib.contextmanager
def handover_socket(server: Served) -> Iterator[socket.socket]:
    (bell,) = owners_of(server.store).bells()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(bell + HANDOVER)
        yield connection


async def test_R6_of_two_that_replace_it_one_does_and_the_other_says_so(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG) as server, handover_socket(server) as first:
        first.send(json.dumps(first_packet(server)).encode())
        _, sockets, _, _ = socket.recv_fds(first, 1 << 16, 10)
        said = await refusal(server)
        assert f"another `keephold serve --replace` (pid {os.getpid()}) is replacing it" in said
        for each in sockets:
            os.close(each)
        first.close()
        await until(lambda: "was about to replace this server and has ended or stopped" in server.said.read_text())
        await ended(await replaced(server))


async def test_R6_if_the_new_server_is_stopped_before_it_serves_the_old_one_answers_and_the_new_one_does_not(
    tmp_path: Path,
) -> None:
    with served(tmp_path, CONFIG) as server:
        with handover_socket(server) as other:
            other.send(json.dumps(first_packet(server)).encode())
            _, sockets, _, _ = socket.recv_fds(other, 1 << 16, 10)
            other.send(b'{"ready":true}')
            async with server.client() as http:
                assert (await http.get("/healthz")).status_code == 200
            assert [json.loads(other.recv(1 << 16)) for _ in range(2)] == [{"go": True}, {"back": True}]
            with pytest.raises(BrokenPipeError):
                other.send(b'{"serving":true}')
            for each in sockets:
                os.close(each)
        await ended(await replaced(server))


async def test_R6_a_new_server_whose_address_was_taken_back_does_not_serve() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, socket.create_server(("127.0.0.1", 0)) as listening:
        predecessor = Predecessor(Channel(ours), [listening], 1)
        with contextlib.closing(predecessor):
            gone = asyncio.create_task(predecessor.gone())
            assert await asyncio.to_thread(theirs.recv, 1 << 16) == b'{"ready": true}'
            theirs.shutdown(socket.SHUT_RD)
            theirs.send(b'{"go":true}')
            theirs.send(b'{"back":true}')
            with pytest.raises(ConfigError, match="has waited 5 s for this one"):
                await gone


@pytest.mark.parametrize("says", [(), ("ready",)])
async def test_R6_if_the_new_server_dies_before_it_serves_the_old_one_answers(
    tmp_path: Path, says: tuple[str, ...]
) -> None:
    """Also if it has the sockets, and the old one has stopped to accept."""
    with served(tmp_path, CONFIG) as server:
        with handover_socket(server) as other:
            other.send(json.dumps(first_packet(server)).encode())
            _, sockets, _, _ = socket.recv_fds(other, 1 << 16, 10)
            for word in says:
                other.send(json.dumps({word: True}).encode())
                assert json.loads(other.recv(1 << 16)) == {"go": True}
            async with server.client() as http:
                answer = asyncio.create_task(http.get("/healthz"))
                if not says:
                    assert (await answer).status_code == 200, "until then nothing changes"
                other.close()
                for each in sockets:
                    os.close(each)
                assert (await answer).status_code == 200
                assert (await http.get("/api/handles")).status_code == 200
        await ended(await replaced(server))


@pytest.mark.parametrize("tool", ["types", "kept"])
async def test_R6_an_attached_user_and_a_reader_stay_through_replacements(tmp_path: Path, tool: str) -> None:
    """Each line that is typed arrives once, and each line that is printed is shown once, in order. A kept process (R7)
    moves to the new server, another one stays in the first."""
    with served(tmp_path, CONFIG) as server:
        await Model(server)(tool, action="spawn", id="t")
        async with RemoteControl(server.base, TOKEN) as user, RemoteControl(server.base, TOKEN) as reader:
            (fact,) = await user.find(("t",), None)
            attach = frames.Want(uid=fact["uid"], want="attach", rows=24, cols=80)
            async with user.talk(fact, attach) as driving, reader.talk(fact, follow(fact)) as reading:
                shown = bytearray()
                showing = [asyncio.create_task(read(driving)), asyncio.create_task(read(reading, shown))]
                lines = itertools.count()
                for _ in range(tries(2, soak=20)):
                    await type_lines(driving, lines, shown)
                    replacing = asyncio.create_task(replaced(server))
                    while not replacing.done():
                        await type_lines(driving, lines, shown)
                    before = await replacing
                    if tool == "kept":
                        assert await ended(before) == 0
                await type_lines(driving, lines, shown)
                last = next(lines)
                printed = [line for line in shown.decode().splitlines() if line.startswith("got")]
                assert printed == [f"got {number}" for number in range(last)]
                for task in showing:
                    task.cancel()
                await asyncio.wait(showing)
            await user.abort(fact["uid"])  # a kept process would run on


def follow(fact: dict[str, Any]) -> frames.Want:
    return frames.Want(uid=fact["uid"], want="follow")


async def read(talk: frames.Talk, shown: bytearray | None = None) -> None:
    """Read frames for ever, and keep the output."""
    while True:
        kind, payload = await talk.receive()
        if kind == frames.OUTPUT and shown is not None and isinstance(payload, bytes):
            shown += payload


async def type_lines(talk: frames.Talk, lines: Iterator[int], shown: bytearray) -> None:
    """Type some lines one by one, and wait until the last one is shown."""
    for number in itertools.islice(lines, 3):
        talk.send(frames.INPUT, f"{number}\n".encode())
    await until(lambda: f"got {number}\r\n".encode() in shown)


@pytest.mark.parametrize("replacements", [1, 2])
async def test_R6_a_user_who_is_asked_by_a_replaced_server_answers_through_the_new_one(
    tmp_path: Path, replacements: int
) -> None:
    """A 2025 client waits for its call at the server that asks, and sends its answer to the new one."""
    with served(tmp_path, CONFIG) as server:
        asked, answer = asyncio.Event(), asyncio.Event()

        async def person(context: Any, params: Any) -> mcp_types.ElicitResult:
            asked.set()
            await answer.wait()
            return mcp_types.ElicitResult(action="accept", content={"approve": True})

        async with connected(server.mcp, token=TOKEN, mode="legacy", elicitation_callback=person) as client:
            calling = asyncio.create_task(client.call_tool("asks", {}))
            await until(asked.is_set)
            for _ in range(replacements):
                await replaced(server)
            answer.set()
            said: Any = (await calling).content[0]
            assert said.text == "allowed\n", said
