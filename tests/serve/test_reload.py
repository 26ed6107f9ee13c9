"""Reading the configuration again: what it says counts from now on, what runs goes on, a wrong one changes nothing."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import stored_in
from tests.mcp.clients import connected
from tests.patience import PATIENCE, until
from tests.serve.application import TOKEN, application
from tests.turn.calls import STATEFUL, abort, call, fetch, reply, settings, spawn, texts

import keephold
from keephold import Call, ConfigError, Runtime, ToolError
from keephold.config import Config, load_config
from keephold.tools.waiting.agents import AgentRequest

WORDS = """
[conversation.tools.say]
source = "local"
command = ["echo", "{word}"]
run = "unattended"

[conversation.tools.doze]
source = "local"
command = ["sleep", "300"]
run = "unattended"
spawn = {{ stateful = true }}
"""


@keephold.tool(actions=STATEFUL)
async def own(call: Call) -> str:
    """A tool of the program, not of its configuration."""
    return "own"


def config(directory: Path, text: str) -> Config:
    return load_config(settings(directory, text))


async def test_L4_tools_are_those_of_the_new_configuration(tmp_path: Path) -> None:
    told: list[set[str]] = []
    async with Runtime([own], config=config(tmp_path, WORDS.format(word="one"))) as rt, rt.turn("main") as turn:
        rt.on_tools.add(lambda: told.append({tool.name for tool in rt.toolbox}))
        assert await texts(turn, call("say")) == ["one\n"]
        more = WORDS.format(word="two") + '[conversation.tools.more]\nsource = "local"\ncommand = ["echo", "more"]\n'
        assert rt.reload(config(tmp_path, more + 'run = "unattended"\n')) == []
        assert await texts(turn, call("say"), call("more"), call("own")) == ["two\n", "more\n", "own"]
        assert rt.reload(config(tmp_path, "")) == []
        assert "unknown tool `say`" in (await texts(turn, call("say")))[0]
        assert await texts(turn, call("own")) == ["own"]
        assert [names & {"say", "more", "own"} for names in told] == [{"say", "more", "own"}, {"own"}]
        assert {tool["name"] for tool in rt.tools("canonical")} == told[-1]


async def test_R6_what_runs_goes_on_as_it_was_begun(tmp_path: Path) -> None:
    async with (
        Runtime(config=config(tmp_path, WORDS.format(word="one")), store=stored_in(tmp_path)) as rt,
        rt.turn("main") as turn,
    ):
        await turn.run([spawn("doze", "d"), spawn("doze", "e")])
        rt.reload(config(tmp_path, WORDS.format(word="two").replace("sleep", "true")))
        assert (await reply(turn, fetch("doze", "d")))["state"] == "running"
        assert (await reply(turn, abort("doze", "d")))["ended_by"] == "abort"
        rt.reload(config(tmp_path, ""))
        info = await rt.handle("e", conversation="main")
        assert info.state == "running"
        from keephold.control.control import Control

        assert (await Control(rt).abort(info.uid))["ended_by"] == "abort", "a person ends what no tool names any more"


BROKEN: list[tuple[str, str]] = [
    ("[conversation", "TOML"),
    ("[conversation.tools.x]\nsource = 'nonsense'\n", "source"),
    ("[nonsense]\n", "nonsense"),
    ("[conversation.tools.x]\nsource = 'python'\nfunction = 'no.such:thing'\nrun = 'unattended'\n", "no"),
    ("[conversation.tools.own]\nsource = 'local'\ncommand = ['true']\n", "two tools are named `own`"),
    ("[conversation.tools.x]\nsource = 'local'\ncommand = ['true']\nresources = ['{{ 1 +']\n", "resources"),
]


@pytest.mark.parametrize(("text", "why"), BROKEN)
async def test_L4_a_wrong_configuration_changes_nothing(text: str, why: str, tmp_path: Path) -> None:
    told: list[bool] = []
    async with Runtime([own], config=config(tmp_path, WORDS.format(word="one"))) as rt, rt.turn("main") as turn:
        rt.on_tools.add(lambda: told.append(True))
        before = rt.tools()
        with pytest.raises(ConfigError, match=why):
            rt.reload(config(tmp_path, text))
        assert rt.tools() == before and not told
        assert await texts(turn, call("say")) == ["one\n"]


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("[store]\nretention_secs = 60\n", ["store"]),
        ("[limits]\nbatch_calls = 7\n", ["limits"]),
        ("[wait_handles.retention_secs]\nfailed = 9\n", ["wait_handles"]),
        ("[workflows]\nprivate_addresses = true\n", ["workflows"]),
        ("[mcp]\ntask_after_ms = 9\n", ["mcp"]),
        ("[acp]\nterminals = false\n", ["acp"]),
        ("[serve]\nport = 9\n", ["serve"]),
        ("[conversation]\ndetached = 'auto'\n", ["conversation.detached"]),
        ("[conversation.inquiry]\ntimeout_secs = 9\n", ["conversation.inquiry"]),
        ("[runtime]\nmax_running = 1\n", []),
        ("[conversation]\ninstructions = 'be brief'\nmax_requests = 3\n", []),
    ],
)
async def test_L4_what_needs_a_restart_is_said_as_long_as_it_does(text: str, tables: list[str], tmp_path: Path) -> None:
    async with Runtime([own], config=config(tmp_path, "")) as rt:
        for _ in range(2):
            assert rt.reload(config(tmp_path, text)) == tables
        assert rt.reload(config(tmp_path, "")) == []


def test_every_table_is_reloaded_or_said_to_need_a_restart() -> None:
    """A new table has to be thought about."""
    fixed = {"store", "limits", "wait_handles", "workflows", "engines", "mcp", "acp", "serve"}
    assert set(Config.model_fields) == fixed | {"conversation", "runtime", "agents"}


async def test_W11_how_many_run_at_once_counts_for_what_comes(tmp_path: Path) -> None:
    gate, running = asyncio.Event(), list[str]()

    @keephold.tool(actions=STATEFUL)
    async def works(call: Call) -> str:
        running.append(call.id)
        await gate.wait()
        return "done"

    async with Runtime([works], config=config(tmp_path, "[runtime]\nmax_running = 1\n")) as rt, rt.turn("m") as turn:
        await turn.run([spawn("works", "a"), spawn("works", "b")])
        assert len(running) == 1
        rt.reload(config(tmp_path, "[runtime]\nmax_running = 3\n"))
        await turn.run([spawn("works", "c")])  # those who wait already get room with it
        await until(lambda: len(running) == 3)
        rt.reload(config(tmp_path, "[runtime]\nmax_running = 2\n"))
        assert (await reply(turn, spawn("works", "d")))["state"] == "pending"
        gate.set()
        await rt.wait(all=["a", "b", "c", "d"], conversation="m")
        assert len(running) == 4


async def test_G2_agents_come_and_go_and_those_of_the_program_stay(tmp_path: Path) -> None:
    agents = "[agents.{id}]\ncommand = ['true']\nrun = 'unattended'\n"
    async with Runtime([own], config=config(tmp_path, agents.format(id="one"))) as rt:

        @rt.agent("mine")
        async def mine(call: Call, request: AgentRequest) -> str:
            return "mine"

        known: Callable[[], set[str]] = lambda: set(rt.agent_functions.ids)  # noqa: E731
        assert known() == {"one", "mine"}
        rt.reload(config(tmp_path, agents.format(id="two")))
        assert known() == {"two", "mine"} and rt.toolbox.get("one") is None and rt.toolbox.get("two") is not None
        rt.reload(config(tmp_path, ""))
        assert known() == {"mine"}
        with pytest.raises(ToolError):
            rt.agent_functions.find("two")


async def test_M1_clients_are_told_that_the_tools_are_others(tmp_path: Path) -> None:
    async with application([own]) as served:
        heard = asyncio.Event()

        async def message(received: Any) -> None:
            if "ToolListChanged" in type(getattr(received, "root", received)).__name__:
                heard.set()

        async with connected(f"{served.base}/mcp", "legacy", token=TOKEN, message_handler=message) as client:
            before = {tool.name for tool in (await client.list_tools()).tools}
            served.runtime.reload(config(tmp_path, WORDS.format(word="one")))
            async with asyncio.timeout(PATIENCE):
                await heard.wait()
            assert {tool.name for tool in (await client.list_tools()).tools} - before == {"say", "doze"}
