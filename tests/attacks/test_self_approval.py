"""An MCP client that answers its own forms: it may not approve what only the owner may (K9)."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import mcp_types
import pytest
from mcp.client import Client
from tests.mcp.clients import ERAS, KnowsTasks, ask, connected, start_task, task_is, text
from tests.mcp.serving import serving
from tests.patience import PATIENCE
from tests.serve.serving import TOKEN as SERVER_TOKEN
from tests.serve.serving import served
from tests.turn.people import Person as Owner

import keephold
from keephold import Call, Question
from keephold.handles.question import question_key
from keephold.policies import QuestionPolicy
from keephold.turn.prompts import Answer, AskQuestion

ALICE, BOB = "token-of-alice-0123456789", "token-of-bob-0123456789abc"

CONFIG = """
[conversation.tools.wipe]
source = "local"
command = ["echo", "wiped {{ tool.arguments.what }}"]
parameters = { what = { type = "string" } }

[conversation.tools.leak]
source = "local"
command = ["echo", "the plans"]
run = "unattended"
result = "ask"
"""


class Yes:
    """A client that accepts every form by itself."""

    def __init__(self) -> None:
        self.forms: list[str] = []

    async def __call__(self, context: Any, params: Any) -> mcp_types.ElicitResult:
        self.forms.append(params.message)
        properties = params.requested_schema["properties"]
        return mcp_types.ElicitResult(action="accept", content={name: _yes(each) for name, each in properties.items()})


def _yes(schema: dict[str, Any]) -> bool | str:
    return True if schema.get("type") == "boolean" else "yes"


async def asked(http: httpx2.AsyncClient) -> dict[str, Any]:
    """The one open request to the owner, once there is one."""
    async with asyncio.timeout(PATIENCE):
        while not (found := (await http.get("/api/requests")).json()):  # noqa: ASYNC110 (of another process)
            await asyncio.sleep(0.01)
    (only,) = found
    return dict(only)


@pytest.mark.parametrize("era", ERAS)
async def test_K9_the_prompts_of_a_principal_go_to_the_owner(era: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"alice {ALICE}\nbob {BOB} prompts=client\n")
    tokens.chmod(0o600)
    alice, bob = Yes(), Yes()
    with served(tmp_path, CONFIG, "--tokens", str(tokens)) as server:
        async with (
            server.client() as http,
            connected(server.mcp, era, token=ALICE, elicitation_callback=alice) as client,
        ):
            calls = {
                "permission": ("wipe", {"what": "disk"}, {"decision": "deny", "reason": "mine"}, "by user: mine"),
                "result": ("leak", {}, {"decision": "deny"}, "Result delivery skipped by user."),
                "question": ("ask_user", {"question": "Pin?"}, {"decision": "answer", "value": "no"}, "no"),
            }
            for kind, (tool, arguments, said, result) in calls.items():
                calling = asyncio.create_task(client.call_tool(tool, arguments))
                request = await asked(http)
                assert (request["kind"], request["conversation"]) == (kind, "mcp:alice")
                assert (await http.post(f"/api/requests/{request['id']}", json=said)).json()["status"] == "taken"
                assert result in text(await calling)
            assert alice.forms == [], "she was not asked, so she could not say yes"
        async with connected(server.mcp, era, token=BOB, elicitation_callback=bob) as client:
            assert "wiped disk" in text(await client.call_tool("wipe", {"what": "disk"}))
            assert "the plans" in text(await client.call_tool("leak", {}))
            assert "yes" in text(await client.call_tool("ask_user", {"question": "Pin?"}))
            assert len(bob.forms) == 3
        async with connected(server.mcp, era, token=SERVER_TOKEN, elicitation_callback=bob) as client:
            assert "wiped disk" in text(await client.call_tool("wipe", {"what": "disk"})), "it is the owner's client"


@keephold.tool(run="ask")
async def wipe() -> str:
    return "wiped"


@keephold.tool(result="ask")
async def leak() -> str:
    return "the plans"


@keephold.tool(questions={"pin": QuestionPolicy(exclusive=True)}, task="required")
async def guarded(call: Call) -> str:
    return f"pin {await call.ask(Question(id='pin', text='Pin?'))}"


@keephold.tool(task="required")
async def chatty(call: Call) -> str:
    return f"name {await call.ask(Question(id='name', text='Name?'))}"


@keephold.tool(task="required")
async def login(call: Call) -> str:
    return f"password {await call.ask(Question(id='password', text='Password?', secret=True))}"


TOOLS = [wipe, leak, guarded, chatty, login]


async def test_K9_without_an_owner_to_ask_a_principal_is_refused_and_may_still_answer_open_questions() -> None:
    yes = Yes()
    async with serving(tools=TOOLS, tokens={"alice": ALICE}) as here:
        async with connected(here.url, token=ALICE, elicitation_callback=yes) as client:
            for tool in ("wipe", "leak"):
                refused = await client.call_tool(tool, {})
                assert refused.is_error and "nobody is there to give it" in text(refused)
        tasks = KnowsTasks()
        async with connected(here.url, token=ALICE, tasks=tasks, elicitation_callback=yes) as client:
            for tool, result in (("guarded", "only a person"), ("login", "only a person may type a secret")):
                ended = await task_is(client, await start_task(client, tool), "completed", "failed")
                assert ended["result"]["isError"] and result in ended["result"]["content"][0]["text"]
            task = await start_task(client, "chatty")
            (key,) = (await task_is(client, task, "input_required"))["inputRequests"]
            await answer(client, task, key, name="Al")
            assert (await task_is(client, task, "completed"))["result"]["content"][0]["text"] == "name Al"
        assert yes.forms == []


async def answer(client: Client, task: str, key: str, **content: Any) -> None:
    await ask(client, "tasks/update", taskId=task, inputResponses={key: {"action": "accept", "content": content}})


async def test_K9_nor_does_another_server_of_the_store_take_a_principals_answer_to_an_exclusive_question(
    tmp_path: Path,
) -> None:
    owner, store, tokens = Owner(), f"sqlite:///{tmp_path / 'store.db'}", {"alice": ALICE}
    async with (
        serving(tools=TOOLS, store=store, tokens=tokens, prompter=owner) as one,
        serving(tools=[login], store=store, tokens=tokens) as other,  # `guarded` is unknown there
        connected(one.url, token=ALICE, tasks=KnowsTasks(), elicitation_callback=Yes()) as here,
        connected(other.url, token=ALICE, tasks=KnowsTasks(), elicitation_callback=Yes()) as there,
    ):
        for tool, question, said in (("guarded", "pin", "mine"), ("login", "password", "mine")):
            task = await start_task(here, tool)
            prompt = await owner.sees()
            assert isinstance(prompt, AskQuestion)
            key = question_key(prompt.question, 1)
            for client in (here, there):
                found = await task_is(client, task, "working", "input_required")
                assert found["status"] == "working" or (client, tool) == (there, "guarded")
                await answer(client, task, key, **{question: f"stolen {question}"})
            assert owner.open == [prompt], "it is still the owner's to answer"
            await owner.says(Answer(said))
            ended = await task_is(there, task, "completed")
            assert ended["result"]["content"][0]["text"] == f"{question} {said}"
    assert b"stolen password" not in (tmp_path / "store.db").read_bytes()
