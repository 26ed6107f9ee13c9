"""Whatever arguments a client sends (C9, W7, M1): it gets an answer that helps, never an error of the protocol, and no
traceback is in the log; what is no error fits its schema; and nothing is left of the call."""

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import mcp_types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.client import Client
from tests.mcp.clients import ERAS, MODERN
from tests.mcp.serving import serving
from tests.patience import PATIENCE
from tests.soak import tries

import keephold
from keephold import Call, Runtime
from keephold.mcp.results import described
from keephold.mcp.server import Server
from keephold.prompts import AgentRequest
from keephold.testing import VirtualClock
from keephold.tools.toolbox import ServedTools, is_builtin
from keephold.tools.workflow.reading import COMMON, READERS

Calls = list[tuple[str, dict[str, Any]]]

LONG = "x" * 20_000
PREPARED: Calls = [
    ("create_wait_handle", {"handleId": "h", "type": "custom", "metadata": {"k": 1}}),
    ("create_wait_handle", {"handleId": "g", "type": "hook"}),
    ("create_task", {"taskId": "t", "taskName": "T"}),
    ("talk", {"action": "spawn", "id": "s"}),
    ("echo", {"text": LONG}),
]
"""What there is for nonsense to be about."""


@keephold.tool
async def echo(text: str) -> str:
    return text


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"))
async def talk(call: Call, text: str = "") -> str:
    try:
        while (said := await call.input()) != "end":
            call.emit(json.dumps(said))
    except EOFError:
        pass
    return text


def opened(store: str = "memory:") -> Runtime:
    runtime = Runtime([echo, talk], store=store)

    @runtime.agent("clerk")
    async def clerk(call: Call, request: AgentRequest) -> str:
        return request.prompt

    return runtime


@cache
def tools() -> dict[str, mcp_types.Tool]:
    return {tool.name: tool for tool in described(list(served()), "generic")}


@cache
def served() -> ServedTools:
    return ServedTools(opened().toolbox, lambda: True, ["*"])


def form(name: str) -> dict[str, Any] | None:
    """The schema of the answer; a built-in's is not listed in full."""
    tool = served().find(name)
    return dict(tool.returns) if is_builtin(tool) and tool.returns else tools()[name].output_schema


# Arguments

IDS = st.sampled_from(["h", "g", "task_t", "s", "clerk"]) | st.sampled_from(
    ["", "nobody", "a b", "\x00", "\n", "call:1", "x" * 128, "x" * 129, LONG, "é\u202e😀", "{id}", "%s", "$end", "../h"]
)
NUMBERS = st.sampled_from([0, 1, 2, 5.0, 0.5, 1000]) | st.sampled_from(
    [-1, -0.0, 1e-320, 1e14, 1e15, 1e308, -1e308, 2**31, 2**53, 2**63, 2**64, 10**400, float("nan"), float("inf")]
)
WORDS = (
    IDS | st.sampled_from(["all", "any", "1 + 1", "steps.a", "vars.x", "((", "1 / 0", "\x1b[31m", "hello"]) | st.text()
)


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS | st.sampled_from([3, 62, 63, 64, 65, 100]).map(nested),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(WORDS, inside, max_size=4),
    max_leaves=8,
)
OBJECTS = st.sampled_from([{}, {"k": 1}, {"k" * 3000: LONG}, {str(n): n for n in range(2000)}]) | st.dictionaries(
    WORDS, ANYTHING, max_size=3
)
LISTS_OF_IDS = st.lists(IDS, max_size=4) | st.just(["h"] * 1000) | st.just([f"n{n}" for n in range(1000)])
EXPRESSIONS = st.sampled_from(
    ["1", "input", "data", "true", "[1, 2]", "{'a': 1}", "steps.s1", "vars.x", "item", "error", "size(input)", "null"]
) | st.sampled_from(
    ["", "((", "nobody", "1 / 0", "9223372036854775807 + 1", "1.0 / 0.0", "b'\\xff'", "input.a.b", LONG]
)


def in_config(name: str, nested: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What a field of a step may be."""
    match name:
        case "expression":
            return EXPRESSIONS
        case "then" | "else" | "steps" | "try" | "catch":
            return nested
        case "branches":
            return st.lists(nested, max_size=2)
        case "cases":
            return st.lists(st.fixed_dictionaries({"equals": ANYTHING, "steps": nested}), max_size=2)
        case "ms" | "duration" | "maxIterations" | "concurrency" | "timeoutMs":
            return NUMBERS
        case "name" | "agentId" | "handleId" | "event":
            return st.sampled_from(["echo", "talk", "clerk", "x"]) | IDS
        case "url":
            return st.sampled_from(["ftp://nowhere", ""])  # none that would be looked up
        case "mode":
            return st.sampled_from(["all", "any", "race", "object", "array", ""])
        case "handleIds":
            return LISTS_OF_IDS
        case "arguments":
            return st.just({"text": "hi"}) | OBJECTS
    return ANYTHING | st.builds(lambda each: {"cel": each}, EXPRESSIONS)


NEEDED = {
    "agent": ("agentId", "prompt"), "tool": ("name", "arguments"), "api": ("url",), "condition": ("expression",),
    "transform": ("expression",), "parallel": ("branches",), "loop": ("steps",), "try_catch": ("try", "catch"),
    "switch": ("value", "cases"), "merge": ("values",), "set_variable": ("name", "value"), "get_variable": ("name",),
    "wait": ("handleIds",),
}  # fmt: skip


def step_of(kind: str, nested: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = [*READERS[kind][1], *COMMON]
    needed = {name: in_config(name, nested) for name in NEEDED.get(kind, ())}
    further = {name: in_config(name, nested) for name in names if name not in needed}
    config = st.fixed_dictionaries(needed) | st.fixed_dictionaries(needed, optional=further)
    around = dict.fromkeys(("condition", "skipIf"), EXPRESSIONS)
    jumps = dict.fromkeys(("onSuccess", "onError"), st.sampled_from(["s1", "s2", "$end", "nowhere"]))
    fixed = {"type": st.just(kind), "config": config}
    return st.fixed_dictionaries(fixed) | st.fixed_dictionaries(fixed, optional={**around, **jumps})


def lists_of_steps(nested: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    step = st.one_of([step_of(kind, nested) for kind in READERS])
    return st.lists(step, min_size=1, max_size=3)


def numbered(steps: Any) -> Any:
    """The same with an id for each step, as a workflow needs it."""
    count = 0

    def walk(value: Any) -> Any:
        nonlocal count
        if isinstance(value, list):
            return [walk(each) for each in value]
        if not isinstance(value, dict):
            return value
        if "type" in value and "config" in value:
            count += 1
            value = {"id": f"s{count}", **value}
        return {key: walk(each) for key, each in value.items()}

    return walk(steps)


STEPS = lists_of_steps(lists_of_steps(st.just([]))).map(numbered)


def fitting(name: str, schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema may take, and often does not."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if name == "taskId":
        return st.just("t") | IDS
    if name == "steps":
        return STEPS
    if name in ("handleIds", "any", "all"):
        return LISTS_OF_IDS
    match schema.get("type"):
        case "string":
            return IDS if name.lower().endswith("id") else WORDS
        case "number" | "integer":
            return NUMBERS
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(fitting("", schema.get("items", {})), max_size=3)
        case "object" if schema.get("properties"):
            return arguments(schema)
        case "object":
            return OBJECTS
    return ANYTHING


def arguments(schema: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    required = schema.get("required", ())
    fields = {name: fitting(name, each) for name, each in schema.get("properties", {}).items()}
    # one of three calls has something in it that does not even have the right type
    odd = dict.fromkeys(fields, ANYTHING) | {"surplus": ANYTHING}
    needed = {name: each for name, each in fields.items() if name in required}
    further = {name: each for name, each in fields.items() if name not in required}
    near = st.fixed_dictionaries(needed, optional=further)
    least = st.fixed_dictionaries(needed)
    return near | least | st.builds(lambda base, more: base | more, near, st.fixed_dictionaries({}, optional=odd))


def calls() -> st.SearchStrategy[Calls]:
    each = st.sampled_from(sorted(tools())).flatmap(
        lambda name: st.tuples(st.just(name), arguments(tools()[name].input_schema))
    )
    return st.lists(each, min_size=1, max_size=10)


# What is checked


class Noted(logging.Handler):
    """What was logged that nobody should have to read."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.noted: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self.noted.append(f"{record.getMessage()} {record.exc_info and record.exc_info[1]!r}")


@contextmanager
def quiet_log() -> Iterator[None]:
    noted = Noted()
    logging.getLogger().addHandler(noted)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(noted)
    assert noted.noted == []


def helps(name: str, result: mcp_types.CallToolResult, objects: bool) -> None:
    """An answer that a client can do something with."""
    result.model_dump_json(by_alias=True).encode()  # it can be sent at all
    block = result.content[0]
    assert isinstance(block, mcp_types.TextContent)
    if result.is_error:
        assert block.text.strip()
        if objects:
            said = json.loads(block.text)
            assert said.get("isError") is True or (name == "wait_for" and said["status"] == "failed"), said
            assert isinstance(said["error"], str) and said["error"], said
    elif (schema := form(name)) is not None:
        # as it arrives: what JSON does not know, such as NaN, is something else there
        arrived = json.loads(result.model_dump_json(by_alias=True))["structuredContent"]
        jsonschema_rs.validator_for(schema).validate(arrived)


async def said(runtime: Runtime, client: Client, sent: Calls) -> None:
    """Send them, one after the other; a wait that does not end is given up."""
    for name, given_ in sent:
        try:
            async with asyncio.timeout(60):
                result = await client.session.call_tool(name, given_)
        except TimeoutError:
            continue
        helps(name, result, served().find(name).errors == "object")


async def session(era: str, sent: Calls) -> None:
    async with opened() as runtime:
        async with Client(Server(runtime, builtins=["*"]), mode=era) as client:
            for name, arguments in PREPARED:
                assert not (await client.session.call_tool(name, arguments)).is_error
            await said(runtime, client, sent)
            await asyncio.sleep(1)  # what was given up has ended
        assert not runtime.batches
        assert [handle.id for handle in runtime.registry.live() if not handle.stateful] == []
        assert not any(
            handle.watchers for handle in runtime.registry.live() if handle.tool.name == "create_wait_handle"
        )


@settings(max_examples=tries(40, soak=80))
@given(st.sampled_from(ERAS), calls())
def test_C9_any_arguments_get_an_answer_that_helps(era: str, sent: Calls) -> None:
    with quiet_log():
        VirtualClock().run(session(era, sent))


async def run(steps: Any) -> None:
    async with opened() as runtime, Client(Server(runtime, builtins=["*"]), mode=MODERN) as client:
        for name, arguments in PREPARED:
            assert not (await client.session.call_tool(name, arguments)).is_error
        workflow = {"workflowId": "w", "name": "W", "steps": steps, "timeoutMs": 60_000}
        started = await client.session.call_tool("execute_workflow_async", workflow)
        helps("execute_workflow_async", started, True)
        if not started.is_error:
            assert started.structured_content is not None
            handle = {"handleId": started.structured_content["handleId"]}
            ended = await client.session.call_tool("wait_for", handle)
            helps("wait_for", ended, True)


@settings(max_examples=tries(30, soak=60))
@given(STEPS)
def test_W10_any_workflow_ends_in_words(steps: Any) -> None:
    """It is refused, or comes to an end that says what was wrong."""
    with quiet_log():
        VirtualClock().run(run(steps))


H = {"handleId": "h"}
HUGE = 10**400
EDGES: Calls = [
    ("create_wait_handle", {"handleId": "p", "type": "custom", "priority": 2**63}),
    ("create_wait_handle", {"handleId": "q", "type": "custom", "priority": 5.0, "metadata": {"n": HUGE, "m": 2**64}}),
    ("create_wait_handle", {"handleId": "r", "type": "custom", "timeoutMs": 1e14}),
    ("create_wait_handle", {"handleId": "r", "type": "custom", "timeoutMs": 1e-320}),
    ("update_wait_handle", H | {"progress": HUGE}),
    ("update_wait_handle", H | {"progress": 2**64, "total": -1, "message": "\x00"}),
    ("update_wait_handle", H | {"priority": -(2**64)}),
    ("update_wait_handle", H | {"metadata": {"": nested(60)}}),
    ("list_wait_handles", {"limit": 5.0}),
    ("list_wait_handles", {"cursor": "\x00"}),
    ("list_wait_handles", {"metadata": {"": HUGE, "'; --": None}}),
    ("await", {"all": ["h"], "timeout_secs": HUGE}),
    ("await", {"all": ["h"] * 1000, "timeout_secs": 0}),
    ("wait_for", H | {"timeoutMs": 1e-320}),
    ("wait_for_multiple", {"handleIds": ["h"] * 1000, "mode": "all", "timeoutMs": 0}),
    ("wait_for_multiple", {"handleIds": [f"n{n}" for n in range(1000)], "mode": "all"}),
    ("read_output", {"call_id": "\x00"}),
    ("read_output", {"id": "h", "offset": HUGE, "limit": 2**64}),
    ("read_output", {"id": "h", "from_end": True, "offset": 5.0}),
    ("sleep", {"durationMs": HUGE}),
    ("gc_wait_handles", {"olderThanMs": HUGE}),
    ("gc_wait_handles", {"olderThanMs": 1e308}),
    ("create_task", {"taskId": "u", "taskName": LONG, "metadata": {"n": HUGE}}),
    ("update_task_status", {"taskId": "\x00", "taskName": "T", "status": "completed"}),
    ("execute_workflow_async", {"workflowId": "w w\x00", "name": "", "steps": [{"id": "a", "type": "delay"}]}),
    ("execute_agent_async", {"agentId": "clerk", "prompt": LONG, "priority": 2**63}),
    ("complete_wait_handle", H | {"result": {"n": HUGE, "deep": nested(60)}}),
    ("complete_wait_handle", {"handleId": "g", "error": "\x00"}),
]


@pytest.mark.parametrize("store", ["memory:", "sqlite:///{}/work.db"])
async def test_W7_what_a_store_cannot_keep_is_told_as_well(tmp_path: Path, store: str) -> None:
    with quiet_log():
        async with (
            opened(store.format(tmp_path)) as runtime,
            Client(Server(runtime, builtins=["*"]), mode=MODERN) as client,
        ):
            for name, arguments in PREPARED:
                assert not (await client.session.call_tool(name, arguments)).is_error
            for name, arguments in EDGES:
                may_wait = name in ("await", "sleep")
                try:
                    async with asyncio.timeout(0.2 if may_wait else 30):
                        result = await client.session.call_tool(name, arguments)
                except TimeoutError:
                    assert may_wait, name
                    continue
                helps(name, result, served().find(name).errors == "object")


# What the SDK's client does not write


def message(id: str, tool: str, arguments: str) -> bytes:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
    }
    params = f'{{"name":"{tool}","arguments":{arguments},"_meta":{json.dumps(meta)}}}'
    return f'{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}'.encode()


RAW = [
    ("1", "echo", r'{"text":"\ud800"}', True),
    ("1", "echo", r'{"text":"\ud83d\ude00"}', False),
    ("1", "echo", '{"text":NaN}', True),
    ("1", "echo", f'{{"text":"{"x" * 1_100_000}"}}', True),
    (r'"\ud800"', "echo", '{"text":"hi"}', False),
    (r'"call: \u0000"', "echo", '{"text":"hi"}', False),
    ('"' + "i" * 50_000 + '"', "echo", '{"text":"hi"}', False),
    ("1", "create_wait_handle", r'{"handleId":"\ud800","type":"custom"}', True),
    ("1", "create_wait_handle", r'{"handleId":"a","type":"custom","metadata":{"\ud800":1}}', True),
    ("1", "create_wait_handle", '{"handleId":"b","type":"custom","metadata":{"n":NaN,"m":-1e999}}', False),
    ("1", "create_wait_handle", '{"handleId":"c","type":"custom","timeoutMs":1e999}', True),
    ("1", "create_wait_handle", f'{{"handleId":"d","type":"custom","metadata":{{"a":{"[" * 150}{"]" * 150}}}}}', True),
    ("1", "complete_wait_handle", r'{"handleId":"b","error":"\udfff"}', True),
    ("1", "complete_wait_handle", '{"handleId":"b","result":[Infinity]}', False),
    ("1", "wait_for", "null", True),
]


async def test_C9_whatever_json_can_say(tmp_path: Path) -> None:
    head = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "Mcp-Protocol-Version": MODERN,
        "Mcp-Method": "tools/call",
    }
    with quiet_log():
        async with (
            serving(tools=[echo, talk], store=f"sqlite:///{tmp_path}/work.db") as here,
            httpx2.AsyncClient(timeout=PATIENCE) as http,
        ):
            for id, tool, arguments, refused in RAW:
                sent = message(id, tool, arguments)
                reply = await http.post(here.url, content=sent, headers=head | {"Mcp-Name": tool})
                answer = reply.json()
                assert reply.status_code == 200 and answer["id"] == json.loads(id), (tool, arguments[:80], reply.text)
                assert answer["result"]["isError"] is refused, (tool, arguments[:80], reply.text)
            assert here.idle()
