"""With tokens, whoever is not the owner of a thing sees exactly what they would see if it did not exist (M5, M2)."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, cast

import httpx2
import mcp_types
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from tests.mcp.clients import (
    ERAS,
    MODERN,
    TASKS,
    KnowsTasks,
    Person,
    ask,
    ask_for_task,
    connected,
    read,
    start_task,
    task_is,
    texts,
)
from tests.mcp.serving import Here, serving
from tests.patience import PATIENCE, until

from keephold.mcp.sessions import Sessions

TOKENS = {"alice": "a" * 32, "bob": "b" * 32}
NEVER = "0123456789abcdef0123456789abcdef"


async def refused(client: Client, method: str, **params: Any) -> tuple[int, str, Any]:
    """The error of a request."""
    with pytest.raises(MCPError) as raised:
        await ask(client, method, **params)
    error = raised.value.error
    return error.code, error.message, error.data


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_M2_the_task_of_another_is_none(method: str, tmp_path: Path) -> None:
    async with (
        serving(tokens=TOKENS) as here,
        connected(here.url, token=TOKENS["alice"], tasks=KnowsTasks()) as alice,
    ):
        task = await start_task(alice, "fragile", gate=str(tmp_path / "gate"))
        async with connected(here.url, token=TOKENS["bob"], tasks=KnowsTasks()) as bob:
            more = {"inputResponses": {"sure.1": {"action": "accept", "content": {}}}} if "update" in method else {}
            theirs = await refused(bob, method, taskId=task, **more)
            assert theirs == await refused(bob, method, taskId=NEVER, **more)
        assert (await task_is(alice, task, "working"))["status"] == "working"
        (tmp_path / "gate").touch()
        await task_is(alice, task, "completed")


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_M2_so_it_is_for_a_2025_client(method: str, tmp_path: Path) -> None:
    async with (
        serving(tokens=TOKENS) as here,
        connected(here.url, "legacy", token=TOKENS["alice"]) as alice,
        connected(here.url, "legacy", token=TOKENS["bob"]) as bob,
    ):
        task = await ask_for_task(alice, "wait_at", gate=str(tmp_path / "gate"))
        assert await refused(bob, method, taskId=task) == await refused(bob, method, taskId=NEVER)
        assert (await ask(bob, "tasks/list"))["tasks"] == []
        assert [each["taskId"] for each in (await ask(alice, "tasks/list"))["tasks"]] == [task]
        (tmp_path / "gate").touch()
        assert (await ask(alice, "tasks/result", taskId=task))["content"][0]["text"] == "through gate"


async def test_M2_a_2025_client_that_asks_for_a_task_gets_one_also_of_a_spawn(tmp_path: Path) -> None:
    async with (
        serving(tokens=TOKENS) as here,
        connected(here.url, "legacy", token=TOKENS["alice"]) as alice,
        connected(here.url, "legacy", token=TOKENS["bob"]) as bob,
    ):
        task = await ask_for_task(alice, "work", spawn="w", gate=str(tmp_path / "gate"))
        assert (await ask(alice, "tasks/get", taskId=task))["status"] == "completed"
        said = await ask(alice, "tasks/result", taskId=task)
        assert json.loads(said["content"][0]["text"]).items() >= {"id": "w", "state": "running"}.items()
        assert "completed already" in str(await refused(alice, "tasks/cancel", taskId=task))
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert await refused(bob, method, taskId=task) == await refused(bob, method, taskId=NEVER)


async def test_M2_nobody_listens_to_the_task_of_another(tmp_path: Path) -> None:
    async with (
        serving(tokens=TOKENS) as here,
        connected(here.url, token=TOKENS["alice"], tasks=KnowsTasks()) as alice,
    ):
        task = await start_task(alice, "fragile", gate=str(tmp_path / "gate"))
        honored = await acknowledged(here, TOKENS["bob"], taskIds=[task, NEVER])
        assert honored == await acknowledged(here, TOKENS["bob"], taskIds=[NEVER])
        assert honored.get("taskIds", []) == []
        assert (await acknowledged(here, TOKENS["alice"], taskIds=[task, NEVER]))["taskIds"] == [task]
        (tmp_path / "gate").touch()
        await task_is(alice, task, "completed")


async def acknowledged(here: Here, token: str, **wanted: Any) -> dict[str, Any]:
    """What a server says that it will tell."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
    }
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "subscriptions/listen",
        "params": {"notifications": wanted, "_meta": meta},
    }
    headers = {
        "Authorization": f"Bearer {token}",
        "Accept": "application/json, text/event-stream",
        "Mcp-Protocol-Version": MODERN,
        "Mcp-Method": "subscriptions/listen",
    }
    async with (
        httpx2.AsyncClient(timeout=PATIENCE) as http,
        http.stream("POST", here.url, json=message, headers=headers) as response,
        asyncio.timeout(PATIENCE),
    ):
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                told = mcp_types.JSONRPCNotification.model_validate_json(line.removeprefix("data:"))
                assert told.method == "notifications/subscriptions/acknowledged"
                return dict((told.params or {})["notifications"])
    raise AssertionError("nothing was acknowledged")


@pytest.mark.parametrize("era", ERAS)
async def test_M5_the_handle_of_another_is_none_for_every_tool(era: str, tmp_path: Path) -> None:
    """Each of these is asked of a handle that another has, and of one that nobody has."""
    async with (
        serving(tokens=TOKENS) as here,
        connected(here.url, era, token=TOKENS["alice"]) as alice,
        connected(here.url, era, token=TOKENS["bob"]) as bob,
    ):
        await alice.call_tool("create_wait_handle", {"handleId": "theirs1", "type": "hook"})
        await alice.call_tool("work", {"action": "spawn", "id": "theirs2", "gate": str(tmp_path / "gate")})
        for id in ("theirs1", "theirs2"):
            asked: list[tuple[str, dict[str, Any]]] = [
                ("wait_for", {"handleId": id}),
                ("wait_for_multiple", {"handleIds": [id], "mode": "all"}),
                ("await", {"any": [id]}),
                ("complete_wait_handle", {"handleId": id}),
                ("update_wait_handle", {"handleId": id, "progress": 1}),
                ("cancel_wait_handle", {"handleId": id}),
                ("read_output", {"id": id}),
                ("work", {"action": "fetch", "id": id}),
                ("work", {"action": "apply", "id": id, "input": "x"}),
                ("work", {"action": "abort", "id": id}),
            ]
            for tool, arguments in asked:
                assert await seen(bob, tool, arguments, id) == await seen(bob, tool, arguments, "nobody", id)
        assert read(await bob.call_tool("list_wait_handles", {}))["stats"]["total"] == 0
        assert read(await alice.call_tool("list_wait_handles", {}))["stats"]["total"] == 2
        # the ids are free for others
        made = await bob.call_tool("create_wait_handle", {"handleId": "theirs1", "type": "custom"})
        assert read(made)["success"] is True
        (tmp_path / "gate").touch()
        await alice.call_tool("await", {"all": ["theirs2"]})


async def seen(client: Client, tool: str, arguments: dict[str, Any], id: str, instead_of: str = "") -> tuple[bool, str]:
    """What a call says, with its id taken out."""
    named = {
        key: id if value == instead_of else [id] if value == [instead_of] else value for key, value in arguments.items()
    }
    result = await client.call_tool(tool, named)
    assert result.is_error, (tool, texts(result))
    return True, re.sub(re.escape(id), "ID", "\n".join(texts(result)))


@pytest.mark.parametrize("era", ERAS)
async def test_M5_the_resource_of_another_is_none(era: str) -> None:
    async with (
        serving(tokens=TOKENS) as here,
        connected(here.url, era, token=TOKENS["alice"]) as alice,
        connected(here.url, era, token=TOKENS["bob"]) as bob,
    ):
        await alice.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
        assert "h" in str((await alice.read_resource("keephold://handles/h")).contents)
        errors = []
        for id in ("h", "n"):
            with pytest.raises(MCPError) as raised:
                await bob.read_resource(f"keephold://handles/{id}")
            errors.append((raised.value.error.code, raised.value.error.message.replace(f"`{id}`", "`ID`")))
        assert errors[0] == errors[1]
        (listed,) = (await bob.read_resource("keephold://handles")).contents
        assert '"handles": []' in getattr(listed, "text", "")


async def test_M5_a_change_is_told_to_its_owner_alone() -> None:
    told: list[str] = []

    async def note(message: Any) -> None:
        if isinstance(message, mcp_types.ResourceUpdatedNotification):
            told.append(str(message.params.uri))

    async with serving(tokens=TOKENS) as here:
        async with (
            connected(here.url, "legacy", token=TOKENS["alice"]) as alice,
            connected(here.url, "legacy", token=TOKENS["bob"], message_handler=note) as bob,
        ):
            await alice.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
            for uri in ("keephold://handles", "keephold://handles/h"):
                await ask(bob, "resources/subscribe", uri=uri)
            await alice.call_tool("complete_wait_handle", {"handleId": "h"})
            await bob.call_tool("create_wait_handle", {"handleId": "own", "type": "custom"})
            await until(lambda: bool(told))
            assert set(told) == {"keephold://handles"}
        await until(here.idle)


async def test_M5_a_subscription_that_another_server_passes_on_is_its_clients_own() -> None:
    """Without its principal it would be one to the handles of the owner of the server."""
    told: list[str] = []

    async def note(message: Any) -> None:
        if isinstance(message, mcp_types.ResourceUpdatedNotification):
            told.append(str(message.params.uri))

    async with serving(tokens=TOKENS) as here:
        async with connected(here.url, "legacy", token=TOKENS["bob"], message_handler=note) as bob:
            sessions = cast(Sessions, here.server.session_manager)
            (session,) = sessions._server_instances
            for number, uri in enumerate(("keephold://handles/own", "keephold://handles")):
                body = {"jsonrpc": "2.0", "id": 1000 + number, "method": "resources/subscribe", "params": {"uri": uri}}
                await sessions.deliver(session, json.dumps(body))
            await until(lambda: sum(len(each.subscribed) for each in here.server.subscriptions._sessions.values()) == 2)
            await bob.call_tool("create_wait_handle", {"handleId": "own", "type": "custom"})
            await until(lambda: "keephold://handles/own" in told)
        await until(here.idle)


@pytest.mark.parametrize("how", ["GET", "DELETE", "POST"])
async def test_M5_the_session_of_another_is_none(how: str) -> None:
    """Its stream would tell what is theirs, and what is answered there would be their answer."""
    async with serving(tokens=TOKENS) as here, httpx2.AsyncClient(timeout=PATIENCE) as http:
        hello = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "0"},
            },
        }
        accept = {"Accept": "application/json, text/event-stream"}
        of = {who: accept | {"Authorization": f"Bearer {token}"} for who, token in TOKENS.items()}
        opened = await http.post(here.url, json=hello, headers=of["alice"])
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        body = {"jsonrpc": "2.0", "id": 2, "method": "ping"} if how == "POST" else None
        async with http.stream(how, here.url, json=body, headers=of["bob"] | session) as answered:
            assert answered.status_code == 404
        ping = await http.post(
            here.url, json={"jsonrpc": "2.0", "id": 2, "method": "ping"}, headers=of["alice"] | session
        )
        assert ping.status_code == 200
        ended = await http.delete(here.url, headers=of["alice"] | session)
        assert ended.status_code == 200


async def test_M5_the_answer_to_a_question_of_another_is_refused() -> None:
    """A state that was handed to one is worth nothing to another, and stays good for its owner."""
    async with serving(tokens=TOKENS) as here:
        async with (
            connected(here.url, token=TOKENS["alice"], elicitation_callback=Person()) as alice,
            connected(here.url, token=TOKENS["bob"], elicitation_callback=Person()) as bob,
        ):
            asked = await alice.session.call_tool("confirm", {"what": "it"}, allow_input_required=True)
            assert isinstance(asked, mcp_types.InputRequiredResult)
            (key,) = asked.input_requests or {}
            said: Any = {key: mcp_types.ElicitResult(action="accept", content={"sure": True})}
            with pytest.raises(MCPError):
                await bob.session.call_tool(
                    "confirm", {"what": "it"}, input_responses=said, request_state=asked.request_state
                )
            done = await alice.session.call_tool(
                "confirm", {"what": "it"}, input_responses=said, request_state=asked.request_state
            )
            assert texts(done) == ["it: yes"]
        await until(here.idle)
