"""`keephold acp` as a process: how it ends, and what it writes where (X1, R6)."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.acp.editor import ROOT, config, editor, script, shown, statuses
from tests.patience import PATIENCE

NOISY = """
[conversation.tools.noisy]
source = "python"
run = "unattended"
function = "tests.acp.agents.playing:noisy"
"""


async def started(directory: Path, *options: str) -> asyncio.subprocess.Process:
    words = ("--config", str(config(directory)), "--store", f"sqlite:///{directory}/store.db")
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "keephold", "acp", *words, *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


class Wire:
    """Messages by hand."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._out, self._in = process.stdin, process.stdout

    def send(self, method: str, id: Any = None, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if id is None else {"id": id})
        self._out.write(json.dumps(message).encode() + b"\n")

    async def until(self, key: str, value: Any) -> dict[str, Any]:
        """The next message with that value; those before are passed over."""
        async with asyncio.timeout(PATIENCE):
            while line := await self._in.readline():
                message: dict[str, Any] = json.loads(line)
                if message.get(key) == value:
                    return message
        raise AssertionError("it has ended")

    def close(self) -> None:
        self._out.close()


@pytest.mark.parametrize("how", ["end of input", "SIGTERM"])
async def test_R6_a_turn_that_is_left_goes_on_with_the_next_prompt(tmp_path: Path, how: str) -> None:
    process = await started(tmp_path)
    wire = Wire(process)
    wire.send("initialize", 0, protocolVersion=7)
    assert (await wire.until("id", 0))["result"]["protocolVersion"] == 1
    wire.send("session/new", "new", cwd="/tmp", mcpServers=[])
    session = (await wire.until("id", "new"))["result"]["sessionId"]
    steps = script({"text": ["begun"], "calls": [["1", "hangs", {}]]})
    wire.send("session/prompt", "p", sessionId=session, prompt=[{"type": "text", "text": steps}])
    while "hanging" not in str(await wire.until("method", "session/update")):
        pass
    if how == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    else:
        wire.close()
    assert await asyncio.wait_for(process.wait(), PATIENCE) == (0 if how == "end of input" else 143)
    wire.close()
    async with editor(tmp_path) as person:
        await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
        assert statuses(person.calls(session)["1"]) == ["pending", "failed"]  # functions end with their process
        assert person.text(session) == "begun"
        assert await person.prompt(session, {"text": ["on we go"]}) == "end_turn"
        assert "on we go" in person.text(session)


async def test_R6_a_client_that_goes_in_the_middle_of_a_stream_waits_for_nothing(tmp_path: Path) -> None:
    process = await started(tmp_path)
    wire = Wire(process)
    wire.send("initialize", 0, protocolVersion=1)
    wire.send("session/new", 1, cwd="/tmp", mcpServers=[])
    session = (await wire.until("id", 1))["result"]["sessionId"]
    steps = script({"text": ["so far"], "hang": True})
    wire.send("session/prompt", 2, sessionId=session, prompt=[{"type": "text", "text": steps}])
    while "so far" not in str(await wire.until("method", "session/update")):
        pass
    wire.close()
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    async with editor(tmp_path) as person:
        await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
        assert await person.prompt(session, {"text": ["and on"]}) == "end_turn"
        assert person.text(session).endswith("and on")


async def test_X1_nothing_comes_before_initialize(tmp_path: Path) -> None:
    process = await started(tmp_path)
    wire = Wire(process)
    wire.send("session/new", 1, cwd="/tmp", mcpServers=[])
    assert (await wire.until("id", 1))["error"]["code"] == -32600
    wire.close()
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


async def test_X1_what_a_tool_prints_does_not_get_into_the_protocol(tmp_path: Path) -> None:
    async with editor(tmp_path, more=NOISY) as person:
        session = await person.new()
        await person.prompt(session, {"calls": [["1", "noisy", {}]]})
        assert shown(person.calls(session)["1"][-1]) == "read ''"
    assert "from Python" in (tmp_path / "stderr").read_text() and "from a program" in (tmp_path / "stderr").read_text()


async def test_X1_images_and_resources_reach_the_model_and_are_shown_again(tmp_path: Path) -> None:
    image = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
    link = {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"}
    embedded = {"type": "resource", "resource": {"uri": "file:///b.txt", "text": "inside b"}}
    async with editor(tmp_path) as person:
        session = await person.new()
        blocks = [{"type": "text", "text": script({"text": ["seen"]})}, image, link, embedded]
        answer = await person.connection._conn.send_request("session/prompt", {"sessionId": session, "prompt": blocks})
        assert answer == {"stopReason": "end_turn"} and person.text(session) == "seen"
        since = len(person.messages)
        await person.connection.load_session(cwd="/tmp", session_id=session, mcp_servers=[])
        said = [u["content"] for u in person.updates(session, since) if u["sessionUpdate"] == "user_message_chunk"]
        assert said[1] == image and said[2]["text"] == "[a.txt](file:///a.txt)" and "inside b" in said[3]["text"]


async def test_X1_how_full_the_context_is(tmp_path: Path) -> None:
    async with editor(tmp_path, "--model", "python:tests.acp.agents.playing:measured") as person:
        session = await person.new()
        await person.prompt(session, {"text": ["hello"]})
        (usage,) = [u for u in person.updates(session) if u["sessionUpdate"] == "usage_update"]
        assert usage["size"] == 1000 and 0 < usage["used"] < 1000
