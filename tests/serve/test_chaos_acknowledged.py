"""What a server says it has taken is written by then (R4), and one that closes says so."""

import logging
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from tests.durable.lives import stored_in
from tests.mcp.clients import ERAS, Person, ask, connected, read
from tests.patience import until
from tests.serve.application import TOKEN, application
from tests.turn.calls import TALKING
from tests.unit.sqlite_stores import opened

import keephold
from keephold import Call, Question


@keephold.tool(actions=TALKING, on_crash="replay")
async def asks(call: Call) -> str:
    first = await call.ask(Question(id="first", text="First?"))
    second = await call.ask(Question(id="second", text="Second?"))
    return f"{first}, {second}"


@pytest.mark.parametrize("elicits", [False, True], ids=["here alone", "at its client, too"])
async def test_R4_an_answer_is_taken_when_it_is_written(tmp_path: Path, elicits: bool) -> None:
    options: dict[str, Any] = {"elicitation_callback": Person()} if elicits else {}
    async with (
        application([asks], stored_in(tmp_path)) as served,
        connected(f"{served.base}/mcp", token=TOKEN, **options) as client,
        opened(Path(served.runtime.registry.store.path)) as beside,  # type: ignore[attr-defined]
    ):
        assert read(await client.call_tool("asks", {"action": "spawn", "id": "a"}))["state"] == "waiting"
        await until(lambda: len(served.needs) == 1)
        (need,) = served.needs.listed()
        assert (await served.control.decide(need["id"], {"decision": "answer", "value": "one"}))["status"] == "taken"
        # A process that dies in this moment has lost nothing.
        (answer,) = await beside.journal(need["handle"])
        assert (answer.kind, answer.value) == ("ask", b'"one"')


@pytest.mark.parametrize("path", ["/", "/handles", "/handles/x", "/stats", "/conversations/x", "/api/stats", "/keys"])
async def test_R6_a_server_whose_store_is_closed_says_that_it_cannot(tmp_path: Path, path: str) -> None:
    async with application([asks], stored_in(tmp_path)) as served, served.client() as http:
        await served.runtime.close()
        answered = await http.get(path)
        assert answered.status_code == 503, answered.text


@pytest.mark.parametrize("mode", ERAS)
async def test_R6_a_client_of_a_server_that_is_closed_is_told_so(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        application([asks], stored_in(tmp_path)) as served,
        connected(f"{served.base}/mcp", mode, token=TOKEN) as client,
    ):
        await served.runtime.close()
        for method in ("tools/list", "resources/read"):
            with pytest.raises(MCPError, match=r"is closed|not open"):
                await ask(client, method, uri="keephold://handles")
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
