"""Sessions in several projects: directories, configurations, MCP servers, models (X6)."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import acp
import pytest
from acp import schema
from tests.acp.editor import CONFIG, Editor, editor, shown, statuses
from tests.trusting import write_trusted

SERVER = str(Path(__file__).parent / "agents" / "notes.py")
PROJECT = """
[conversation.tools.where]
source = "local"
run = "unattended"
command = ["sh", "-c", "echo {name}: $PWD, {{{{ context.cwd }}}}, {{{{ context.root }}}}"]

[conversation.tools.fixed]
source = "local"
run = "unattended"
cwd = "."
command = ["pwd"]

[conversation.tools.work]
source = "local"
run = "unattended"
command = ["sh", "-c", "echo {name} | tee -a {log}; while ! test -e {flag}; do sleep 0.02; done"]
spawn.stateful = true
spawn.lifecycle.on_turn_end = "keep"
retry.policy = "idempotent"

[acp]
models = ["python:tests.acp.agents.playing:measured"]
"""


class Desk:
    """Two projects, `one` and `two`, and an editor that is started elsewhere."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log, self.flag = directory / "log", directory / "flag"
        for name in ("one", "two"):
            (directory / name / "sub").mkdir(parents=True)
            text = CONFIG + PROJECT.format(name=name, log=self.log, flag=self.flag)
            write_trusted(directory / name / "keephold.toml", text, directory / "state")

    def editor(self, *options: str, **more: Any) -> Any:
        return editor(self.directory, *options, found={"XDG_STATE_HOME": str(self.directory / "state")}, **more)

    def path(self, name: str) -> str:
        return str(self.directory / name)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def notes(*words: str, name: str = "notes") -> schema.McpServerStdio:
    return schema.McpServerStdio(name=name, command=sys.executable, args=["-I", "-S", SERVER, *words], env=[])


async def new(person: Editor, cwd: str, *servers: schema.McpServerStdio, **more: Any) -> str:
    made = await person.connection.new_session(cwd=cwd, mcp_servers=list(servers), **more)
    return str(made.session_id)


async def call(person: Editor, session: str, tool: str, label: str = "1") -> str:
    """What a call of the tool shows."""
    since = len(person.messages)
    await person.prompt(session, {"calls": [[label, tool, {}]]})
    return shown(person.calls(session, since)[label][-1])


async def test_X6_tools_run_in_the_directory_of_their_session_with_its_configuration(desk: Desk) -> None:
    async with desk.editor() as person:
        one, sub, two = [await new(person, desk.path(each)) for each in ("one", "one/sub", "two")]
        places = {one: "one", sub: "one/sub", two: "two"}
        for session, place in places.items():
            root = place.partition("/")[0]
            said = f"{root}: {desk.path(place)}, {desk.path(place)}, {desk.path(root)}"
            assert said in await call(person, session, "where")
            assert desk.path(root) in await call(person, session, "fixed", "2")


async def test_X6_the_model_sees_the_directories(desk: Desk) -> None:
    async with desk.editor() as person:
        session = await new(person, desk.path("one"), additional_directories=[desk.path("two")])
        await person.prompt(session, {"instructions": True})
        assert f"The working directory is `{desk.path('one')}`. Tools run there." in person.text(session)
        assert f"these directories, too: `{desk.path('two')}`" in person.text(session)
        (listed,) = (await person.connection.list_sessions()).sessions
        assert listed.additional_directories == [desk.path("two")]


async def test_X6_each_session_has_the_server_that_it_brought_also_after_load_and_resume(desk: Desk) -> None:
    allow = {"permission": lambda _: "allow_once"}
    sessions: dict[str, str] = {}
    async with desk.editor() as person:
        vars(person).update(allow)
        for name in ("one", "two"):
            sessions[name] = await new(person, desk.path(name), notes(name))
        bare = await new(person, desk.path("one"))
        for name, session in sessions.items():
            assert await call(person, session, "whoami") == f"{name} in {desk.path(name)}"
        assert "unknown tool `whoami`" in await call(person, bare, "whoami")
        for how in ("load_session", "resume_session"):
            for name, session in sessions.items():
                await getattr(person.connection, how)(
                    cwd=desk.path(name), session_id=session, mcp_servers=[notes(f"{name} again")]
                )
            for name, session in sessions.items():
                assert await call(person, session, "whoami", how) == f"{name} again in {desk.path(name)}"
        await person.connection.close_session(session_id=sessions["one"])
        assert await call(person, sessions["two"], "whoami", "3") == f"two again in {desk.path('two')}"
    async with desk.editor() as person:  # in another process, the other way round
        vars(person).update(allow)
        for name, session in reversed(sessions.items()):
            await person.connection.load_session(cwd=desk.path(name), session_id=session, mcp_servers=[notes(name)])
        for name, session in sessions.items():
            assert await call(person, session, "whoami", "4") == f"{name} in {desk.path(name)}"


async def test_X6_servers_end_with_their_session(desk: Desk) -> None:
    async with desk.editor() as person:
        session = await new(person, desk.path("one"), notes("ends-with-its-session"))
        running = _programs("ends-with-its-session")
        assert len(running) == 1
        await person.connection.close_session(session_id=session)
        assert _programs("ends-with-its-session") == []


async def test_X6_servers_end_if_their_session_cannot_be_opened(desk: Desk) -> None:
    (desk.directory / "three").mkdir()  # without a configuration there is no model
    async with desk.editor() as person:
        with pytest.raises(acp.RequestError, match="no model is configured"):
            await new(person, desk.path("three"), notes("of-no-session"))
        assert _programs("of-no-session") == []


def _programs(word: str) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words and SERVER.encode() in words:
            found.append(file.parent.name)
    return found


async def test_X6_failures_and_collisions_of_servers_are_said_in_the_session_once(desk: Desk) -> None:
    broken = schema.McpServerStdio(name="broken", command="no-such-program", args=[], env=[])
    async with desk.editor() as person:
        session = await new(person, desk.path("one"), notes("a", "where"), notes("b", name="more"), broken)
        for _ in range(2):
            await person.prompt(session, {"text": ["hi"]})
        said = person.text(session)
        assert said.count("MCP server `broken` cannot be reached: ") == 1
        assert said.count("MCP server `notes`: its tool `where` is left out: there is another tool of that name") == 1
        assert said.count("MCP server `more`: its tool `whoami` is left out") == 1


async def test_X6_a_call_that_a_dead_process_left_is_resumed_in_its_own_project(desk: Desk) -> None:
    async with desk.editor() as person:
        session = await new(person, desk.path("one"))
        await person.prompt(session, {"calls": [["1", "work", {"action": "spawn", "id": "w"}]]})
        await person.until(lambda: desk.log.exists())
        os.kill(person.process.pid, signal.SIGKILL)
        await person.process.wait()
    async with desk.editor() as person:
        other = await new(person, desk.path("two"))
        assert await person.prompt(other, {"text": ["hi"]}) == "end_turn"
        assert desk.log.read_text() == "one\n"
        await person.connection.load_session(cwd=desk.path("one"), session_id=session, mcp_servers=[])
        desk.flag.touch()
        await person.until(lambda: "completed" in statuses(person.calls(session)["1"]))
        assert desk.log.read_text() == "one\none\n"


async def test_X6_the_model_and_the_mode_are_chosen_in_the_session_and_kept(desk: Desk) -> None:
    async with desk.editor() as person:
        made = await person.connection.new_session(cwd=desk.path("one"), mcp_servers=[])
        usual, measured = (f"python:tests.acp.agents.playing:{name}" for name in ("model", "measured"))
        assert _chosen(made.config_options) == {"mode": "ask", "model": usual}
        session = made.session_id
        told = await person.connection.set_config_option(session_id=session, config_id="model", value=measured)
        assert told is not None and _chosen(told.config_options) == {"mode": "ask", "model": measured}
        await person.prompt(session, {"text": ["hi"]})
        (usage,) = [each for each in person.updates(session) if each["sessionUpdate"] == "usage_update"]
        assert usage["size"] == 1000  # only that model knows its window
        await person.connection.set_config_option(session_id=session, config_id="mode", value="unattended")
        modes = [each for each in person.updates(session) if each["sessionUpdate"] == "current_mode_update"]
        assert [each["currentModeId"] for each in modes] == ["unattended"]
        for option, value, words in (("model", "other:x", "no model `other:x`"), ("speed", "1", "no option `speed`")):
            with pytest.raises(acp.RequestError, match=words):
                await person.connection.set_config_option(session_id=session, config_id=option, value=value)
        again = await person.connection.load_session(cwd=desk.path("one"), session_id=session, mcp_servers=[])
        assert _chosen(again.config_options) == {"mode": "ask", "model": measured}


def _chosen(options: Any) -> dict[str, str]:
    return {each.id: each.current_value for each in options}


async def test_X6_a_message_has_one_id_which_is_the_same_when_it_is_shown_again(desk: Desk) -> None:
    async with desk.editor() as person:
        session = await new(person, desk.path("one"))
        steps: list[dict[str, Any]] = [{"think": "so", "text": ["a", "b"], "calls": [["1", "fixed", {}]]}]
        await person.prompt(session, *steps, {"text": ["c"]})
        ids = _ids(person.updates(session))
        assert len(ids) == len(set(ids.values())) == 3  # its thoughts, "ab" and "c"
        since = len(person.messages)
        await person.connection.load_session(cwd=desk.path("one"), session_id=session, mcp_servers=[])
        again = _ids(person.updates(session, since))
        assert {text: id for text, id in again.items() if "[{" not in text} == ids


def _ids(updates: list[dict[str, Any]]) -> dict[str, str]:
    """The ids of messages by their texts."""
    texts: dict[str, str] = {}
    for update in updates:
        if "messageId" in update:
            texts[update["messageId"]] = texts.get(update["messageId"], "") + update["content"]["text"]
    return {text: id for id, text in texts.items()}


async def test_X6_output_in_a_terminal_is_not_sent_as_text_when_it_ends(desk: Desk) -> None:
    async with desk.editor(capabilities={"terminal": True}) as person:
        session = await new(person, desk.path("one"))
        spawn = {"action": "spawn", "id": "w"}
        await person.prompt(session, {"calls": [["1", "work", spawn]]})
        await person.until(lambda: "terminalId" in str(person.updates(session)))
        desk.flag.touch()
        await person.until(lambda: "completed" in statuses(person.calls(session)["1"]))
        assert shown(person.calls(session)["1"][-1]) == ""
