"""A 2025 client that goes while something of it is on its way: nobody has to know."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.durable.lives import stored_in
from tests.serve.application import TOKEN, application

HEADERS = {"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-11-25"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}},
}
NOTE = {"jsonrpc": "2.0", "method": "notifications/initialized"}


async def test_M3_a_session_that_is_ended_while_it_is_spoken_to_leaves_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with application([], stored_in(tmp_path)) as served, served.client(TOKEN) as http:
        for _ in range(20):
            hello = await http.post("/mcp", json=HELLO, headers=HEADERS)
            headers = HEADERS | {"Mcp-Session-Id": hello.headers["mcp-session-id"]}
            notes = [http.post("/mcp", json=NOTE, headers=headers) for _ in range(3)]
            told = await asyncio.gather(*notes, http.delete("/mcp", headers=headers))
            assert {answered.status_code for answered in told} <= {200, 202, 404}, told
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
