"""The client library: sessions, permission, cancelling, iteration, and agents that die (X3, X4)."""

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.patience import PATIENCE

from keephold.acp import Connection, ConnectionLost, PermissionRequest, RpcError, connect
from keephold.acp.client.connection import capabilities
from keephold.acp.client.session import reject
from keephold.errors import KeepholdError

AGENT = str(Path(__file__).parent / "agents" / "scripted.py")
COMMAND = [sys.executable, AGENT]
BOTH = ["allow_once", "reject_once"]


def text(update: dict[str, Any]) -> str:
    found: str = update["content"]["text"]
    return found


def order(**what: Any) -> str:
    return json.dumps(what)


async def test_the_agent_is_known_after_the_handshake() -> None:
    async with connect(COMMAND, client_capabilities={"_meta": {"x": 1}}) as agent:
        assert agent.agent_info["name"] == "scripted"
        assert agent.agent_capabilities["loadSession"] is True
        assert agent.offers_turn_complete


def test_what_there_are_handlers_for_is_offered() -> None:
    async def nothing(params: dict[str, Any]) -> None: ...

    assert capabilities({}) == {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
    terminals = {f"terminal/{verb}": nothing for verb in ("create", "output", "wait_for_exit", "kill", "release")}
    offered = capabilities({"fs/read_text_file": nothing, "elicitation/create": nothing, **terminals})
    assert offered == {
        "fs": {"readTextFile": True, "writeTextFile": False},
        "terminal": True,
        "elicitation": {"form": {}},
    }


async def test_an_agent_of_another_version_is_refused() -> None:
    with pytest.raises(KeepholdError, match="speaks version 2"):
        async with connect([*COMMAND, "--version-2"]):
            pass


async def test_updates_that_belong_to_no_turn_go_to_on_background(tmp_path: Path) -> None:
    background: list[str] = []
    seen: list[str] = []
    async with connect(COMMAND) as agent:
        session = await agent.new_session(tmp_path, on_background=lambda update: background.append(text(update)))
        assert session.info["_meta"]["cwd"] == str(tmp_path)
        turn = session.prompt(order(updates=1, background=True), on_update=lambda update: seen.append(text(update)))
        await turn.drained()
        assert (background, seen) == (["early", "welcome", "meanwhile"], ["0"])


async def test_what_comes_after_the_end_of_a_turn_is_background() -> None:
    background: list[str] = []
    async with connect(COMMAND) as agent:
        session = await agent.new_session("/")
        session.on_background = lambda update: background.append(text(update))
        await session.prompt(order(late=2))
        await agent.list_sessions()  # by now it has been read what was written before
        await session.prompt(order()).drained()
        assert background[-2:] == ["late 0", "late 1"]


async def test_sessions_are_loaded_listed_resumed_and_closed() -> None:
    history: list[str] = []

    async def slowly(update: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        history.append(text(update))

    async with connect(COMMAND) as agent:
        loaded = await agent.load_session("old", ".", on_update=slowly)
        assert history == ["then 0", "then 1", "then 2"]
        assert (await loaded.prompt(order())).stop_reason == "end_turn"
        assert [each["sessionId"] for each in await agent.list_sessions()] == ["p0", "p1", "p2"]
        resumed = await agent.resume_session("older", ".")
        turn = resumed.prompt(order(updates=2))
        assert [text(update) async for update in turn] == ["0", "1"]
        await resumed.close()


async def test_updates_can_be_iterated_over() -> None:
    async with connect(COMMAND) as agent:
        session = await agent.new_session("/")
        turn = session.prompt(order(updates=5))
        seen = []
        async for update in turn:
            await asyncio.sleep(0)
            seen.append(text(update))
        assert seen == ["0", "1", "2", "3", "4"]
        assert (await turn).stop_reason == "end_turn"
        with pytest.raises(KeepholdError, match="go to its on_update"):
            aiter(session.prompt(order(), on_update=lambda update: None))


async def test_a_handler_that_raises_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def broken(update: dict[str, Any]) -> None:
        seen.append(text(update))
        raise RuntimeError("no such colour")

    async with connect(COMMAND) as agent:
        session = await agent.new_session("/")
        with caplog.at_level(logging.ERROR):
            await session.prompt(order(updates=3), on_update=broken).drained()
    assert seen == ["0", "1", "2"]
    assert len([each for each in caplog.records if each.exc_text and "no such colour" in each.exc_text]) == 3


async def test_an_error_answer_is_raised_and_the_turn_is_drained_all_the_same() -> None:
    async with connect(COMMAND) as agent:
        session = await agent.new_session("/")
        turn = session.prompt(order(updates=2, error=True))
        with pytest.raises(RpcError, match="the model is away"):
            await turn
        assert await turn.drained() == "turn_complete"


async def said(prompt: str, **options: Any) -> str:
    """The last thing the agent said in a turn: what it was answered."""
    async with connect(COMMAND, **options) as agent:
        session = await agent.new_session("/")
        turn = session.prompt(prompt)
        return [text(update) async for update in turn][-1]


async def test_permission_is_given_by_the_option_that_is_chosen() -> None:
    asked: list[PermissionRequest] = []

    async def allow(permission: PermissionRequest) -> str | None:
        asked.append(permission)
        await asyncio.sleep(0)
        return permission.option("allow_always", "allow_once")

    answer = json.loads(await said(order(ask=BOTH), on_permission=allow))
    assert answer == {"outcome": {"outcome": "selected", "optionId": "allow_once"}}
    assert asked[0].tool_call["title"] == "Remove everything"


async def test_permission_is_refused_where_nobody_is_asked() -> None:
    refused = json.loads(await said(order(ask=BOTH)))
    assert refused == {"outcome": {"outcome": "selected", "optionId": "reject_once"}}
    assert json.loads(await said(order(ask=["allow_once"]))) == {"outcome": {"outcome": "cancelled"}}


async def test_an_option_that_there_is_not_is_an_error_of_ours() -> None:
    answer = json.loads(await said(order(ask=BOTH), on_permission=lambda permission: "maybe"))
    assert answer["code"] == -32603 and "none of the options" in answer["message"]


async def test_permission_is_asked_when_what_came_before_has_been_handled() -> None:
    log: list[str] = []

    async def slowly(update: dict[str, Any]) -> None:
        await asyncio.sleep(0.001)
        log.append(text(update)[:1])

    def ask(permission: PermissionRequest) -> None:
        log.append("asked")

    async with connect(COMMAND, on_permission=ask) as agent:
        session = await agent.new_session("/")
        await session.prompt(order(updates=3, ask=BOTH), on_update=slowly).drained()
    assert log == ["0", "1", "2", "asked", "{"]


async def test_X4_cancelling_withdraws_the_question_and_is_drained() -> None:
    asked = asyncio.Event()
    withdrawn: list[bool] = []

    async def ponder(permission: PermissionRequest) -> str | None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.append(True)
        return None

    seen: list[str] = []
    async with connect(COMMAND, on_permission=ponder) as agent:
        session = await agent.new_session("/")
        turn = session.prompt(order(ask=BOTH), on_update=lambda update: seen.append(text(update)))
        await asked.wait()
        turn.cancel()
        assert await turn.drained() == "turn_complete"
        assert seen == ['cancel, then {"outcome": {"outcome": "cancelled"}}']
        assert withdrawn == [True]


async def test_X4_who_asks_after_the_cancel_is_answered_cancelled() -> None:
    async with connect(COMMAND, on_permission=lambda permission: "allow_once") as agent:
        session = await agent.new_session("/")
        turn = session.prompt(order(ask=BOTH))
        turn.cancel()
        assert "cancelled" in [text(update) async for update in turn][-1]


async def test_X4_a_turn_that_hangs_is_cancelled() -> None:
    async with connect(COMMAND) as agent:
        session = await agent.new_session("/")
        turn = session.prompt(order(hang=True))
        turn.cancel()
        assert (await turn).stop_reason == "cancelled"
        assert [text(update) async for update in turn] == ["stopping"]
        assert (await session.prompt(order())).stop_reason == "end_turn"


async def test_what_else_the_agent_asks_is_answered_by_handlers() -> None:
    async def read(params: dict[str, Any]) -> dict[str, str]:
        return {"content": f"of {params['path']}"}

    files = {"fs/read_text_file": read}
    asking = order(request="fs/read_text_file", params={"path": "a.txt"})
    assert json.loads(await said(asking, handlers=files)) == {"content": "of a.txt"}
    assert json.loads(await said(asking))["code"] == -32601

    async def decline(params: dict[str, Any]) -> dict[str, str]:
        return {"action": "decline"}

    assert json.loads(await said(order(request="elicitation/create"), on_elicitation=decline)) == {"action": "decline"}


async def test_an_agent_that_dies_fails_everything_at_once_and_its_last_words_are_told() -> None:
    async with connect(COMMAND) as agent:
        session, other = await agent.new_session("/"), await agent.new_session("/")
        turn, waiting = session.prompt(order(updates=3, die=True)), other.prompt(order())
        iterating = asyncio.ensure_future(_take(turn))
        signal = asyncio.ensure_future(session.turn_complete(turn.id))
        for pending in (turn, waiting, turn.drained(), waiting.drained(), signal, agent.new_session("/"), iterating):
            with pytest.raises(ConnectionLost, match=r"(?s)exit code 7; it printed:.out of cheese"):
                await pending
        with pytest.raises(ConnectionLost, match="was not sent"):
            await session.prompt(order())
        with pytest.raises(ConnectionLost, match="was not sent"):
            await session.prompt(order()).drained()


async def _take(turn: Any) -> list[Any]:
    return [update async for update in turn]


async def test_a_program_that_is_no_agent_is_named() -> None:
    with pytest.raises(ConnectionLost, match=r"(?s)`sh -c .* ended with exit code 3; it printed:.who are you"):
        async with connect("sh -c 'echo who are you >&2; exit 3'"):
            pass


@pytest.mark.parametrize("command", [["no-such-program-anywhere"], [], "", ["a\0b"]])
async def test_a_program_that_is_not_there_is_named(command: Any) -> None:
    with pytest.raises(KeepholdError) as caught:
        async with connect(command):
            pass
    assert caught.value.code == "command_not_started"


async def test_only_the_end_of_standard_error_is_kept() -> None:
    program = "import sys; sys.stderr.write('x' * 300_000 + 'the end')"
    agent = Connection([sys.executable, "-c", program], None, None, reject, {})
    with pytest.raises(ConnectionLost, match="the end") as caught:
        await agent.request("initialize", {})
    assert len(caught.value.message) < 3000
    assert len(agent.stderr) == 64 * 1024
    await agent.close()
    assert agent.stderr.endswith("the end")


async def test_the_environment_is_inherited_and_added_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    script = 'echo "$OURS $THEIRS $(pwd)" >&2; exit 1'
    with pytest.raises(ConnectionLost, match="1 2 /"):
        async with connect(["sh", "-c", script], env={"THEIRS": "2"}, cwd="/"):
            pass


async def test_an_agent_that_will_not_go_is_killed_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keephold.acp.client.process._EOF_SECS", 0.01)
    monkeypatch.setattr("keephold.acp.client.process._TERM_SECS", 0.01)
    stubborn = f"trap '' TERM; sleep 1000 & {sys.executable} {AGENT}; while :; do wait; sleep 0.05; done"
    async with connect(["sh", "-c", stubborn]) as agent:
        await agent.new_session("/")
        started = psutil.Process(agent.process.pid).children(recursive=True)
        assert len(started) == 2
    assert agent.process.returncode == -9
    _, alive = psutil.wait_procs(started, timeout=PATIENCE)  # they have their signal; the kernel takes its time
    assert alive == []


async def test_an_agent_whose_output_is_held_open_by_another_is_still_seen_to_die() -> None:
    held = f"setsid sleep 1000 & echo $! >&2; {sys.executable} {AGENT}; exit 5"
    async with connect(["sh", "-c", held]) as agent:
        session = await agent.new_session("/")
        sleeper = int(agent.stderr)
        with pytest.raises(ConnectionLost, match="exit code 5"):
            await session.prompt(order(die=True))
    os.kill(sleeper, 9)
