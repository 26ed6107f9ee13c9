"""The API is as its description says, whatever it is sent: Schemathesis makes requests from `/api/openapi.json`.

Good and bad ones, with ids that are made up and ids of handles that there are. No answer may be an error of the
server's; each must have a status, a type and a body that the description has for it. Event streams do not end, so they
are left to other tests.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS
from schemathesis.core.failures import FailureGroup
from tests.browser.workshop import CONFIG
from tests.mcp.clients import connected, read
from tests.patience import PATIENCE
from tests.serve.serving import TOKEN, Served, served
from tests.soak import tries

EXAMPLES = tries(5, soak=25)
"""Requests of each kind, for each operation."""
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
WANTED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, CONFIG) as server:
        yield server


async def furnished(server: Served) -> dict[str, list[str]]:
    """What there is to be found, by the name of the parameter that finds it."""
    async with connected(server.mcp, token=TOKEN) as client:
        await client.call_tool("shout", {"action": "spawn", "id": "said", "text": "hello\nworld"})
        await client.call_tool("publish", {"action": "spawn", "id": "asks", "version": "1.0"})
        await client.call_tool("shell", {"action": "spawn", "id": "sh"})
        hook = await client.call_tool("create_wait_handle", {"handleId": "hook", "type": "hook"})
        await client.call_tool("release", {"action": "spawn", "id": "r", "gate": server.path("never")})
        await client.call_tool("build", {"action": "spawn", "id": "b", "target": "a"})
    async with server.client() as http:
        handles = (await http.get("/api/handles")).json()["handles"]
        needs = (await http.get("/api/requests")).json()
        conversations = (await http.get("/api/conversations")).json()["conversations"]
    return {
        "uid": [handle["uid"] for handle in handles],
        "id": [*(need["id"] for need in needs), *(each["id"] for each in conversations)],
        "conversation": [each["id"] for each in conversations],
        "key": [read(hook)["key"]],
    }


def operations(schema: Any) -> list[Any]:
    """All that end."""
    found = [result.ok() for result in schema.get_all_operations()]
    return [operation for operation in found if "text/event-stream" not in str(operation.definition.raw)]


async def test_K4_the_API_does_what_it_says_whatever_it_is_sent(server: Served) -> None:
    known = await furnished(server)
    schema = schemathesis.openapi.from_url(f"{server.base}/api/openapi.json", headers=HEADERS)
    checks = [CHECKS.get_one(name) for name in WANTED]
    tried = operations(schema)
    assert len(tried) > 15
    told = [
        problem
        for operation in tried
        for mode in schemathesis.GenerationMode
        for problem in _problems(operation, mode, known, checks)
    ]
    assert not told, "\n\n".join(told)
    assert server.process.poll() is None


def _problems(operation: Any, mode: Any, known: dict[str, list[str]], checks: list[Any]) -> list[str]:
    """What is wrong with an operation, each with a request that shows it."""

    @given(case=operation.as_strategy(generation_mode=mode), choice=st.integers(0, 5))
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    def answers(case: Any, choice: int) -> None:
        for name in case.path_parameters or {}:
            if choice and name in known:
                case.path_parameters[name] = known[name][choice % len(known[name])]
        response = case.call(headers=HEADERS, timeout=PATIENCE)
        case.validate_response(response, checks=checks)

    try:
        answers()
    except FailureGroup as found:
        return [str(found)]
    return []
