"""Clients that give up after a minute: every call is answered before, and nothing is lost (M7, P7)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from tests.control.places import Needs
from tests.mcp.clients import ERAS, KnowsTasks, TaskMade, read, text, texts

import keephold
from keephold import Call, Question, Runtime
from keephold.handles.state import Stopped
from keephold.mcp.server import Server
from keephold.testing import VirtualClock
from keephold.tools.base import Tool
from keephold.turn.prompt_queue import FromList


@keephold.tool
async def build(secs: int) -> str:
    """Lasts that long."""
    await asyncio.sleep(secs)
    return f"built in {secs} s"


@keephold.tool(scheduling="serial", actions=("spawn", "fetch", "apply", "abort"))
async def migrate(name: str, secs: int) -> str:
    """One at a time; it could be spawned and take input, too."""
    await asyncio.sleep(secs)
    return f"migrated {name}"


@keephold.tool(run="ask")
async def deploy() -> str:
    """Needs permission."""
    return "deployed"


@keephold.tool(run="ask", actions=("spawn", "fetch", "abort"))
async def train() -> str:
    """Needs permission, and is spawned."""
    await asyncio.sleep(5)
    return "trained"


@keephold.tool
async def confirm(call: Call) -> str:
    """Asks a question."""
    sure = await call.ask(Question(id="sure", text="Sure?", answer_type="Boolean"))
    return f"sure: {sure}"


TOOLS = (build, migrate, deploy, train, confirm)


class Desk:
    """A runtime, its server, and the requests of its dashboard."""

    def __init__(self, runtime: Runtime, server: Server, requests: Needs) -> None:
        self.runtime, self.server, self.requests = runtime, server, requests

    async def approve(self, id: str) -> str:
        decided = self.requests.decide(id, {"decision": "approve"})
        await asyncio.sleep(0.1)
        return decided["status"]


@asynccontextmanager
async def desk(clock: VirtualClock, tools: tuple[Tool, ...] = TOOLS, **options: Any) -> AsyncIterator[Desk]:
    async with Runtime(tools, clock=clock, prompter=FromList()) as runtime:
        yield Desk(runtime, Server(runtime, builtins=["*"], **options), Needs(runtime))


def now() -> float:
    return asyncio.get_running_loop().time()


async def timed(client: Client, tool: str, /, **arguments: Any) -> tuple[float, mcp_types.CallToolResult]:
    """How long an answer took, and the answer."""
    began = now()
    answer = await client.call_tool(tool, arguments)
    return round(now() - began, 1), answer


@pytest.mark.parametrize("era", ERAS)
async def test_M7_a_long_call_is_answered_with_its_handle(era: str, clock: VirtualClock) -> None:
    async with desk(clock) as here, Client(here.server, mode=era) as client:
        took, answer = await timed(client, "build", secs=90)
        assert took == 45 and not answer.is_error
        running = read(answer)
        assert running["id"].startswith("call:") and running["state"] == "running"
        took, waited = await timed(client, "await", all=[running["id"]])
        assert took == 45 and read(waited)["completed"][0]["result"] == "built in 90 s"
        assert len(texts(waited)) == 1  # the reply has shown the end: no notification repeats it
        took, short = await timed(client, "build", secs=44)
        assert took == 44 and text(short) == "built in 44 s"


async def test_M7_a_serial_call_keeps_its_lane(clock: VirtualClock) -> None:
    async with desk(clock) as here, Client(here.server, mode="legacy") as client:
        first = asyncio.create_task(timed(client, "migrate", name="a", secs=100))
        await asyncio.sleep(1)
        second = read((await timed(client, "migrate", name="b", secs=10))[1])
        assert read((await first)[1])["state"] == "running" and second["state"] == "pending"
        await asyncio.sleep(50)  # 96 s: the first still runs
        listed = {each["id"]: each for each in read((await timed(client, "list_wait_handles"))[1])["handles"]}
        assert listed[second["id"]]["status"] == "pending"
        assert here.runtime.registry.find(second["id"], "mcp").run is None
        took, waited = await timed(client, "await", all=[second["id"]])
        assert read(waited)["completed"][0]["result"] == "migrated b" and took == 14


WAITS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("await", {"all": ["h"]}, {"timed_out": True}),
    ("await", {"any": ["h"], "timeout_secs": 300}, {"timed_out": True}),
    (
        "wait_for",
        {"handleId": "h"},
        {"status": "timeout", "error": "Wait timed out after 45000ms"},
    ),
    ("wait_for", {"handleId": "h", "timeoutMs": 300_000}, {"error": "Wait timed out after 45000ms"}),
    ("wait_for_multiple", {"handleIds": ["h"], "mode": "any"}, {"status": "timeout", "pendingCount": 1}),
    (
        "sleep",
        {"durationMs": 60_000},
        {"success": False, "status": "timeout", "error": "Wait timed out after 45000ms", "remainingMs": 15_000},
    ),
]


@pytest.mark.parametrize(("name", "arguments", "shape"), WAITS)
async def test_M7_waits_are_answered_in_the_shape_of_their_timeout(
    name: str, arguments: dict[str, Any], shape: dict[str, Any], clock: VirtualClock
) -> None:
    async with desk(clock) as here, Client(here.server, mode="legacy") as client:
        await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
        took, answer = await timed(client, name, **arguments)
        assert took == 45 and not answer.is_error
        assert read(answer).items() >= shape.items(), read(answer)
        assert here.runtime.registry.live() == []  # nothing waits on; `h` is parked


async def test_M7_a_shorter_timeout_counts_and_0_turns_the_limit_off(clock: VirtualClock) -> None:
    async with desk(clock) as here, Client(here.server, mode="legacy") as client:
        await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
        assert (await timed(client, "await", all=["h"], timeout_secs=10))[0] == 10
        took, waited = await timed(client, "wait_for", handleId="h", timeoutMs=10_000)
        assert took == 10 and read(waited)["error"] == "Wait timed out after 10000ms"
    async with desk(clock, answer_within=0) as here, Client(here.server, mode="legacy") as client:
        took, answer = await timed(client, "build", secs=90)
        assert took == 90 and text(answer) == "built in 90 s"
        took, answer = await timed(client, "sleep", durationMs=90_000)
        assert took == 90 and read(answer)["success"] is True


async def test_M7_a_client_with_tasks_gets_a_task_as_before(clock: VirtualClock) -> None:
    async with desk(clock) as here, Client(here.server, extensions=[KnowsTasks()]) as client:
        began = now()
        made = await client.session.call_tool("build", {"secs": 90}, allow_claimed=True)
        assert isinstance(made, TaskMade) and now() - began < 1


@pytest.mark.parametrize("era", ERAS)
async def test_M7_a_call_that_needs_a_person_is_answered_after_30_s(era: str, clock: VirtualClock) -> None:
    """Where the client cannot ask; it starts when it is approved, because its id was replied (P7)."""
    async with desk(clock) as here, Client(here.server, mode=era) as client:
        took, answer = await timed(client, "deploy")
        pending = read(answer)
        assert took == 30 and pending == {"id": pending["id"], "state": "pending"}
        (request,) = here.requests.listed()
        assert await here.approve(request["id"]) == "taken"
        waited = read(await client.call_tool("await", {"all": [pending["id"]]}))
        assert waited["completed"][0]["result"] == "deployed"
        took, answer = await timed(client, "confirm")
        asks = read(answer)
        assert took == 30 and asks["state"] == "waiting" and asks["question"]["text"] == "Sure?"
        (request,) = here.requests.listed()
        here.requests.decide(request["id"], {"decision": "answer", "value": True})
        assert read(await client.call_tool("await", {"all": [asks["id"]]}))["completed"][0]["result"] == "sure: True"


async def test_M7_a_client_that_asks_its_user_has_until_the_end(clock: VirtualClock) -> None:
    async def slow(context: Any, params: Any) -> mcp_types.ElicitResult:
        await asyncio.sleep(50)
        return mcp_types.ElicitResult(action="accept", content={"approve": True})

    async with desk(clock) as here, Client(here.server, mode="legacy", elicitation_callback=slow) as client:
        took, answer = await timed(client, "deploy")
        pending = read(answer)
        assert took == 45 and pending["state"] == "pending"
        waited = read(await client.call_tool("await", {"all": [pending["id"]]}))
        assert waited["completed"][0]["result"] == "deployed"


@pytest.mark.parametrize("era", ERAS)
async def test_M7_a_call_whose_client_gave_up_is_found(era: str, clock: VirtualClock) -> None:
    async with desk(clock, answer_within=0) as here, Client(here.server, mode=era) as client:
        with pytest.raises(MCPError, match=r"(?i)timed out"):
            await client.call_tool("build", {"secs": 90}, read_timeout_seconds=60)
        await asyncio.sleep(1)
        (found,) = read(await client.call_tool("list_wait_handles", {}))["handles"]
        assert found["id"].startswith("call:") and found["status"] == "pending"
        took, answer = await timed(client, "wait_for", handleId=found["id"])
        assert took == 29 and read(answer)["result"] == "built in 90 s"


async def test_M7_a_call_that_its_client_cancelled_is_cancelled(clock: VirtualClock) -> None:
    async with desk(clock) as here, Client(here.server, mode="legacy") as client:
        calling = asyncio.create_task(client.call_tool("build", {"secs": 90}))
        await asyncio.sleep(1)
        calling.cancel()
        await asyncio.sleep(1)
        assert here.runtime.registry.live() == []


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("tool", "arguments"), [("deploy", {}), ("train", {"action": "spawn", "id": "t"})], ids=["one-shot", "spawn"]
)
async def test_P7_approving_a_call_whose_caller_is_gone_starts_nothing(
    era: str, tool: str, arguments: dict[str, Any], clock: VirtualClock
) -> None:
    """It is said that the caller left; its handle has stopped without having run."""
    async with desk(clock) as here, Client(here.server, mode=era) as client:
        calling = asyncio.create_task(client.call_tool(tool, arguments, read_timeout_seconds=10))
        await asyncio.sleep(1)
        (request,) = here.requests.listed()
        with pytest.raises(MCPError, match=r"(?i)timed out"):
            await calling
        await asyncio.sleep(1)
        assert here.requests.listed() == [] and here.runtime.registry.live() == []
        assert here.requests.decide(request["id"], {"decision": "approve"}) == {
            "status": "gone",
            "problem": "nobody waits for this any more: it was decided, it ended, or its caller left",
        }
        stored = await here.runtime.registry.store.handle(request["handle"])
        assert stored is not None and isinstance(stored.state, Stopped) and stored.state.started is None
