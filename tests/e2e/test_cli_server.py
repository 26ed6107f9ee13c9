"""Commands with `--server`: the same words and the same exit codes as on the store, by way of a `keephold serve` (L1).

Mostly the server has no tools of its own. What it is asked about, another process runs, and is reached through both.
"""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from click.testing import CliRunner
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from tests.e2e.agent import Agent
from tests.e2e.driver import until
from tests.e2e.panes import Pane
from tests.e2e.place import Place, Said, spawn
from tests.e2e.servers import Served, served
from tests.patience import PATIENCE
from tests.programs import needs

from keephold import KeepholdError
from keephold.cli import main
from keephold.control import remote
from keephold.control.remote import RemoteControl


class Remote(Place):
    """A place whose commands ask a server."""

    server: Served

    def there(self, *arguments: str, stdin: str = "") -> Said:
        return self.keephold(*arguments, "--server", self.server.url, stdin=stdin)

    def same(self, *arguments: str) -> Said:
        """What the server says, which is what the store says."""
        said = self.there(*arguments)
        here = self.keephold(*arguments)
        assert (said.code, _timeless(said.out)) == (here.code, _timeless(here.out))
        return said


def _timeless(text: str) -> list[str]:
    return re.sub(r"\b(\d+m )?\d+s\b", "…", text).split()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Remote]:
    with ExitStack() as stack:
        place = Remote(tmp_path, stack)
        place.server = stack.enter_context(served(tmp_path))
        yield place


def test_L1_ps_and_show_say_of_a_server_what_they_say_of_its_store(place: Remote) -> None:
    worker = place.worker()
    worker.run(spawn("gate", "g", name="g"), spawn("approve", "a", what="x"), spawn("asking", "q"), spawn("steps", "s"))
    for arguments in (("ps",), ("ps", "--state", "parked"), ("ps", "--limit", "2"), ("show", "q"), ("show", "s")):
        assert place.same(*arguments).code == 0
    facts = [json.loads(line) for line in place.there("ps", "--json").out.splitlines()]
    here = [json.loads(line) for line in place.keephold("ps", "--json").out.splitlines()]
    assert [{name: fact[name] for name in known} for fact, known in zip(facts, here, strict=True)] == here
    parked = place.there("show", "a", "--json").json
    assert parked["output"]["bytes"] == 18 and parked["output"]["tail"] == "asking for x\n"
    assert place.same("logs", "a", "-t").out.endswith("Z asking for x\n")
    assert "a server gives no keys away" in place.there("show", "a", "--keys").err
    missing = place.there("show", "nobody")
    assert missing.code == 2 and f"not found in the server {place.server.url}" in missing.err


def test_requests_over_a_server_say_how_many_are_not_listed(place: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    place.worker().run(spawn("asking", "first"), spawn("asking", "second"))
    whole = place.there("requests", "--json")
    assert len(whole.out.splitlines()) == 2 and whole.err == ""
    monkeypatch.setattr(remote, "_PAGE", 1)
    monkeypatch.setenv("KEEPHOLD_TOKEN", place.server.token)
    cut = CliRunner().invoke(main, ["requests", "--json", "--server", place.server.url])
    assert json.loads(cut.stdout)["handle_id"] == "first"
    assert cut.stderr == "These are the oldest 1; there are 1 more. Decide some to see them.\n"


def test_B9_ps_over_a_server_names_the_same_calls_that_wait_for_their_turn(place: Remote) -> None:
    """A one-shot call of an unanswered batch is recovered by its tool; only a built-in is left to the turn."""
    worker = place.worker()
    worker.run(spawn("gate", "g", name="g"))
    worker.begin(("gate", {"name": "once"}), ("await", {"all": ["g"]}))
    until(lambda: len(place.keephold("ps").rows) == 3)
    worker.process.kill()
    worker.process.wait()
    notes = [line for line in place.same("ps").out.splitlines() if line.startswith("note: ")]
    assert notes[0].startswith("note: 2 calls of `gate`:") and "1 call of a batch of `main`" in notes[1]


def test_an_id_that_two_conversations_have_is_asked_about_over_a_server_too(place: Remote) -> None:
    worker = place.worker()
    for name in ("one", "two"):
        worker.run(spawn("gate", "g", name=name), conversation=name)
    several = place.there("show", "g")
    assert several.code == 2
    assert "is in 2 conversations" in several.err and "name one by --conversation" in several.err
    found = place.there("show", "g", "--conversation", "two", "--json").json
    assert found["arguments"] == {"name": "two"}
    assert place.there("show", found["uid"], "--json").json["uid"] == found["uid"]


def test_L3_wait_over_a_server_ends_when_the_handle_does(place: Remote) -> None:
    worker = place.worker()
    worker.run(spawn("gate", "good", name="good"), spawn("gate", "bad", name="bad"), spawn("asking", "q"))
    waiting = place.start("wait", "good", "--server", place.server.url)
    worker.end("good")
    assert waiting.communicate(timeout=PATIENCE) == ("good: ok: good is open\n", "")
    assert waiting.returncode == 0
    worker.end("bad", "fail")
    assert place.there("wait", "bad") == (1, "bad: error: the gate is broken\n", "")
    assert place.there("wait", "--any", "q", "good").code == 0
    begin = time.monotonic()
    assert place.there("wait", "q", "--timeout", "0.5") == (124, "q: waiting\n", "")  # somebody else is asked
    assert time.monotonic() - begin >= 0.5


def test_D5_complete_and_revoke_over_a_server(place: Remote) -> None:
    worker = place.worker()
    first, second = worker.run(spawn("approve", "a", what="x"), spawn("approve", "b", what="y"))
    assert place.there("complete", first, "--ok", '{"by":"Ada"}') == (0, "accepted\n", "")
    late = place.there("complete", first, "--cancelled", "--json")
    assert (late.code, late.json["terminal"]) == (3, {"status": "ok", "payload": {"by": "Ada"}})
    assert place.there("revoke", "main") == (0, "1 key of main revoked\n", "")
    gone = place.there("complete", second, "--ok", "1")
    assert (gone.code, gone.out) == (4, "unknown_or_revoked\n") and place.server.url in gone.err


def test_C7_abort_over_a_server(place: Remote) -> None:
    worker = place.worker()
    worker.run(spawn("gate", "g", name="g"), spawn("approve", "a", what="x"), spawn("gate", "h", name="h"))
    assert place.there("abort", "g") == (0, "g: aborted\n", "")
    assert place.there("abort", "g") == (0, "g: had stopped already\n", "")
    assert sorted(place.there("abort", "--all-in", "main").out.splitlines()) == ["a: aborted", "h: aborted"]
    assert "(no live call in" in place.keephold("ps").out


def test_C7_abort_of_all_in_a_conversation_without_a_name_ends_nothing(place: Remote) -> None:
    place.worker().run(spawn("gate", "g", name="g"))
    for name in ("", " "):
        refused = place.there("abort", "--all-in", name)
        assert refused.code == 2 and "Invalid value for '--all-in': it is empty" in refused.err
        listed = place.there("ps", "--conversation", name)
        assert (listed.code, listed.out) == (2, "")
    assert place.keephold("ps").rows[0][:3] == ["g", "gate", "running"]


def test_conversations_gc_and_forget_over_a_server(place: Remote) -> None:
    worker = place.worker()
    worker.run(spawn("gate", "g", name="g"), conversation="one/two")
    (row,) = place.same("conversations").rows
    assert row[:1] + row[2:5] == ["one/two", "1", "1", "open"]
    assert place.there("gc", "--dry-run", "--json").json["handles"] == 0
    assert place.there("forget", "one/two", "--yes") == (0, "0 lines of one/two forgotten\n", "")
    asked = place.there("forget", "one/two", stdin="n\n")
    assert asked.code == 1 and "Aborted!" in asked.err


def test_K5_the_token_is_that_of_the_environment_the_option_or_the_store_beside(place: Remote, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("x" * 20)
    refused = place.there("ps", "--token-file", "wrong")
    assert refused.code == 2 and "does not know that token" in refused.err and "x" * 20 not in refused.err
    (tmp_path / "right").write_text(f"{place.server.token}\n")
    assert place.there("ps", "--token-file", "right").code == 0
    unread = place.there("ps", "--token-file", "none")
    assert unread.code == 2 and "cannot be read: No such file" in unread.err
    assert place.there("ps", "--token-file", "work.db").err.endswith("cannot be read: it is not text\n")
    for held in ("secret-one\nsecret-two", "secret-oné", ""):
        (tmp_path / "other").write_text(held)
        refused = place.there("ps", "--token-file", "other")
        assert refused.code == 2 and "`other` holds no token: a token is one line" in refused.err
        assert "secret" not in refused.err
    (tmp_path / "work.db-token").rename(tmp_path / "elsewhere")
    assert "needs a token" in place.there("ps").err


def test_a_server_that_is_not_there_and_one_that_is_none_are_told_apart(place: Remote) -> None:
    nobody = place.keephold("ps", "--server", "http://127.0.0.1:1")
    assert nobody.code == 2 and "no server answers at http://127.0.0.1:1" in nobody.err
    assert "is not the address of a server" in place.keephold("ps", "--server", "work.db").err
    assert "is the address right?" in place.keephold("ps", "--server", f"{place.server.url}/nowhere").err


def test_K5_a_terminal_gets_an_address_that_opens_the_server_whatever_its_token_is_made_of(tmp_path: Path) -> None:
    token = "aaaaaaaa&b=c#d +e%41/?\"'"
    with served(tmp_path, terminal=True, KEEPHOLD_TOKEN=token) as server:
        opened = httpx2.get(f"{server.url}/?token={server.token}", timeout=PATIENCE)
        assert opened.status_code == 303 and ".localhost" in opened.headers["location"]
        assert (
            httpx2.get(
                f"{server.url}/api/stats", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE
            ).status_code
            == 200
        )
    with served(tmp_path, KEEPHOLD_TOKEN=token) as server:
        assert server.token == "$KEEPHOLD_TOKEN"


# What the server itself runs

TOOLS = """
[conversation.tools.shell]
source = "terminal"
command = ["bash", "--norc", "--noprofile"]
env = { PS1 = "$ " }
run = "unattended"

[conversation.tools.count]
source = "local"
command = ["wc", "-l"]
run = "unattended"
spawn = { stateful = true, stdin = true }
"""


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Remote]:
    """A place whose server has tools."""
    with ExitStack() as stack:
        place = Remote(tmp_path, stack)
        place.server = stack.enter_context(served(tmp_path, TOOLS))
        yield place


async def call(server: Served, tool: str, arguments: dict[str, Any]) -> None:
    """A call, as an MCP client makes it."""
    headers = {"authorization": f"Bearer {server.token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http)) as client,
    ):
        assert not (await client.call_tool(tool, arguments)).is_error


@pytest.mark.parametrize("over", ["server", "store"])
def test_C6_the_stdin_of_a_command_is_closed(serving: Remote, over: str) -> None:
    asyncio.run(call(serving.server, "count", {"action": "spawn", "id": "c"}))
    keephold = serving.there if over == "server" else serving.keephold
    assert keephold("send", "c", "a line").out == "c: running\n"
    closed = keephold("send", "c", "--close")
    assert closed.out.endswith("\n1\n") and keephold("wait", "c").code == 0


async def test_C6_over_the_api_null_closes_and_nothing_is_nothing(serving: Remote) -> None:
    await call(serving.server, "count", {"action": "spawn", "id": "c"})
    async with RemoteControl(serving.server.url, serving.server.token) as remote:
        (fact,) = await remote.find(("c",), None)
        with pytest.raises(KeepholdError, match="there is nothing to send"):
            await remote.post(f"/api/handles/{fact['uid']}/apply", {})
        await remote.post(f"/api/handles/{fact['uid']}/apply", {"input": None})
        await asyncio.to_thread(serving.there, "wait", "c")


def test_S5_what_has_expired_is_told_as_expired_and_what_never_was_as_not_found(serving: Remote) -> None:
    asyncio.run(call(serving.server, "count", {"action": "spawn", "id": "c"}))
    uid = serving.there("show", "c", "--json").json["uid"]
    serving.there("send", "c", "--close")
    serving.there("wait", "c")
    assert serving.there("gc", "--before", "0s", "--json").json["handles"] == 1
    here = ("--conversation", "mcp")
    for command in (
        *(("show", uid), ("show", uid, *here), ("show", "c", *here)),  # all commands find a handle in the same way
        *(("logs", uid), ("abort", uid, *here), ("wait", "c", *here)),
    ):
        said = serving.there(*command)
        assert (said.code, said.out) == (2, "") and "expired" in said.err, (command, said)
    assert serving.there("send", uid, "text").code == 2
    for never in (("d",), ("d", "--conversation", "mcp"), ("c/d",), (".",), ("..",), (f"{uid}/output",), ("",)):
        said = serving.there("show", *never)
        assert said.code == 2 and f"`{never[0]}` not found in the server" in said.err, said


def test_a_terminal_of_the_server_is_followed_and_driven_and_lost_with_it(tmp_path: Path) -> None:
    needs("tmux", "bash")
    with ExitStack() as stack:
        place = Remote(tmp_path, stack)
        place.server = stack.enter_context(served(tmp_path, TOOLS))
        asyncio.run(call(place.server, "shell", {"action": "spawn", "id": "sh"}))
        following = place.start("logs", "-f", "sh", "--server", place.server.url)
        pane = stack.enter_context(Pane(tmp_path, {**os.environ, "KEEPHOLD_STORE": "sqlite:///work.db"}, cols=120))
        pane.type(f"{sys.executable} -m keephold attach sh --server {place.server.url}")
        pane.until("detaches")
        pane.type("echo from the person: $((6 * 9))")
        pane.until("from the person: 54")
        fact = place.there("ps", "--json").json
        assert (fact["driver"], fact["terminal"], fact["here"]) == ("person", True, True)
        assert following.stdout is not None
        while "from the person: 54" not in following.stdout.readline():
            pass
        place.server.process.kill()
        pane.until("is lost; ask again when it is there")
        pane.back()
        assert following.wait(PATIENCE) == 2
        assert "the connection to the server" in (following.stderr.read() if following.stderr else "")


# Output and terminals: what an agent of its own process runs


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    needs("tmux", "bash")
    with Agent(tmp_path) as agent:
        agent.spawn("shell", "sh")
        store = Path(agent.environment["KEEPHOLD_STORE"].removeprefix("sqlite:///"))
        with served(tmp_path, store=str(store)) as server:
            agent.environment["KEEPHOLD_SERVER"] = server.url
            yield agent


def test_logs_and_send_over_a_server(agent: Agent) -> None:
    agent.spawn("talk", "t")
    assert agent.keephold("send", "t", "hello").code == 0
    until(lambda: "hello" in agent.keephold("logs", "t").out)
    raw = agent.keephold("logs", "sh", "--raw")
    assert "\x1b" in raw.out
    cast = agent.keephold("logs", "sh", "--cast", "-").out.splitlines()
    assert json.loads(cast[0])["version"] == 2
    assert agent.keephold("logs", "nobody").code == 2
    refused = agent.keephold("send", "sh", "--key", "NO_SUCH_KEY")
    assert refused.code == 1 and "NO_SUCH_KEY" in refused.err


def test_a_person_attaches_over_a_server_and_hands_back_by_leaving(agent: Agent) -> None:
    with Pane(agent.directory, agent.environment) as pane:
        pane.type(f"{sys.executable} -m keephold attach sh")
        pane.until("detaches")
        pane.type("echo from the person: $((6 * 9)); stty size")
        pane.until("from the person: 54")
        pane.until("15 60")
        assert agent.apply("shell", "sh", "\r")[1] == "driven_by_person"
        pane.resize(12, 50)
        pane.until("$")
        pane.type("clear; stty size")
        pane.until("12 50")
        with Pane(agent.directory, agent.environment, cols=100) as other:
            other.type(f"{sys.executable} -m keephold attach sh; echo exit code $?")
            other.until("exit code 2")
            assert "somebody has been driving terminal `sh`" in other.screen
        pane.press("C-]")
        pane.until("detached from sh, which keeps running")
    until(lambda: agent.apply("shell", "sh", "\r")[1] != "driven_by_person")


def test_a_client_that_is_killed_hands_the_terminal_back_through_the_server(agent: Agent) -> None:
    with Pane(agent.directory, agent.environment) as pane:
        pane.type(f"{sys.executable} -m keephold attach sh")
        pane.until("detaches")
        assert agent.apply("shell", "sh", "\r")[1] == "driven_by_person"
        assert agent.keephold("ps").rows[0][0] == "sh"  # others are served meanwhile
        (client,) = (
            process
            for process in psutil.process_iter(["cmdline", "environ"])
            if (process.info["cmdline"] or [])[1:4] == ["-m", "keephold", "attach"]
            and (process.info["environ"] or {}).get("KEEPHOLD_STORE") == agent.environment["KEEPHOLD_STORE"]
        )
        client.kill()
        until(lambda: agent.apply("shell", "sh", "\r")[1] != "driven_by_person")
