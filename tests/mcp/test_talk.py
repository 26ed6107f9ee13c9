"""What every client sees: tools, results, errors, news, and calls taken in their order (M1, M5, W7, C9)."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jsonschema_rs
import pytest
from mcp.client import Client
from tests.mcp.clients import ERAS, MODERN, KnowsTasks, Person, TaskMade, connected, read, text, texts
from tests.mcp.office import TOOLS, weigh
from tests.mcp.serving import Office, serving
from tests.patience import until

import keephold
from keephold.mcp.server import Server

WAITING = ("sleep", "create_wait_handle", "wait_for", "wait_for_multiple", "complete_wait_handle", "list_wait_handles")


@pytest.mark.parametrize("era", [*ERAS, "auto"])
async def test_M1_all_tools_are_there_with_flat_schemas(era: str) -> None:
    async with serving() as here, connected(here.url, era) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {*(tool.name for tool in TOOLS), "await", "read_output", *WAITING} <= set(tools)
        for tool in tools.values():
            assert tool.input_schema["type"] == "object"
            assert not {"oneOf", "anyOf", "allOf"} & set(tool.input_schema), tool.name
            assert tool.description
            if tool.output_schema is not None:
                assert tool.output_schema["type"] == "object"
                jsonschema_rs.validator_for(tool.output_schema)
        for name in ("await", "read_output", *WAITING):
            assert tools[name].annotations is not None, name
        for name in ("await", "read_output", "wait_for", "wait_for_multiple", "list_wait_handles"):
            assert (hints := tools[name].annotations) is not None and hints.read_only_hint is True, name


async def test_M1_the_canonical_schema_is_had_for_the_asking() -> None:
    async with serving(schema="canonical") as here, connected(here.url) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert "oneOf" in tools["work"].input_schema


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_M1_the_instructions_are_short(era: str) -> None:
    async with serving() as here, connected(here.url, era) as client:
        assert client.instructions and len(client.instructions) < 1200
        assert "await" in client.instructions and "wait_for" in client.instructions


@pytest.mark.parametrize("era", ERAS)
async def test_M1_structured_content_fits_its_schema(era: str) -> None:
    """The SDK's client checks it, too, for tools that it has listed."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("weigh", {"name": "stone"}),
        ("create_wait_handle", {"handleId": "h", "type": "hook", "metadata": {"a": 1}, "timeoutMs": 60_000}),
        ("wait_for", {"handleId": "h", "timeoutMs": 0}),
        ("wait_for_multiple", {"handleIds": ["h"], "mode": "any", "timeoutMs": 0}),
        ("list_wait_handles", {"metadata": {"a": 1}}),
        ("await", {"all": ["h"], "timeout_secs": 0}),
        ("complete_wait_handle", {"handleId": "h", "result": {"n": [1, None]}}),
        ("wait_for", {"handleId": "h"}),
        ("wait_for_multiple", {"handleIds": ["h"], "mode": "race"}),
        ("await", {"all": ["h"]}),
        ("list_wait_handles", {}),
        ("sleep", {"durationMs": 1, "label": "nap"}),
    ]
    async with serving() as here, connected(here.url, era) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        for name, arguments in calls:
            result = await client.call_tool(name, arguments)
            tool = here.runtime.toolbox.get(name)
            assert not result.is_error and tool is not None and tools[name].output_schema, (name, texts(result))
            schema = tool.returns
            assert result.structured_content == read(result)
            jsonschema_rs.validator_for(dict(schema or {})).validate(result.structured_content)


@pytest.mark.parametrize("era", ERAS)
async def test_M1_a_structured_result_that_is_too_long_does_not_break_the_client(era: str) -> None:
    """Its structure alone is over the cap (O3): the client must still get an answer that it accepts."""
    async with serving() as here, connected(here.url, era) as client:
        await client.list_tools()
        result = await client.call_tool("weigh", {"name": "sand", "count": 20_000})
        assert len(texts(result)[0]) < 40_000


@pytest.mark.parametrize("era", ERAS)
async def test_P3_a_skipped_call_of_a_structured_tool_is_an_answer(era: str) -> None:
    """Neither the skip nor the news of it fits the schema of what the tool returns."""
    tools = [dataclasses.replace(weigh, run="ask")]
    async with (
        serving(tools=tools) as here,
        connected(here.url, era, elicitation_callback=Person("decline")) as client,
    ):
        await client.list_tools()
        skipped = await client.call_tool("weigh", {"name": "stone"})
        assert text(skipped) == "Tool skipped by user."


@pytest.mark.parametrize("era", ERAS)
async def test_W7_errors_of_wait_tools_are_objects(era: str) -> None:
    async with serving() as here, connected(here.url, era) as client:
        made = {"handleId": "h", "type": "custom"}
        await client.call_tool("create_wait_handle", made)
        wrong: list[tuple[str, dict[str, Any], str]] = [
            ("create_wait_handle", made, "Wait handle h already exists"),
            ("wait_for", {"handleId": "n"}, "Wait handle n not found"),
            ("wait_for_multiple", {"handleIds": ["n", "m", "h"], "mode": "all"}, "n"),
            ("wait_for_multiple", {"handleIds": [], "mode": "all"}, "At least one handle ID required"),
            ("complete_wait_handle", {"handleId": "n"}, "Wait handle n not found"),
            ("wait_for", {}, "handleId"),
            ("wait_for", {"handleId": 3}, "handleId"),
            ("wait_for", {"handleId": "h", "timeoutMs": -1}, "timeoutMs"),
            ("wait_for_multiple", {"handleIds": ["h"], "mode": "some"}, "mode"),
        ]
        for name, arguments, said in wrong:
            refused = await client.call_tool(name, arguments)
            assert refused.is_error, (name, arguments)
            error = read(refused)
            assert error["isError"] is True and said in error["error"], (name, arguments, error)
        await client.call_tool("complete_wait_handle", {"handleId": "h", "error": ""})
        twice = await client.call_tool("complete_wait_handle", {"handleId": "h"})
        assert twice.is_error
        assert read(twice) == {
            "error": "Wait handle h is already failed",
            "currentStatus": "failed",
            "isError": True,
            "try": 'await {"all":["h"],"timeout_secs":0}',
        }
        failed = await client.call_tool("wait_for", {"handleId": "h"})
        assert failed.is_error and read(failed)["status"] == "failed"


@pytest.mark.parametrize("era", ERAS)
async def test_C9_wrong_calls_say_what_would_be_right(era: str) -> None:
    async with serving() as here, connected(here.url, era) as client:
        wrong: list[tuple[str, dict[str, Any], str]] = [
            ("ecko", {"text": "x"}, "echo"),
            ("echo", {}, "text"),
            ("echo", {"text": 3}, "text"),
            ("echo", {"text": "x", "more": 1}, "more"),
            ("work", {"action": "spawn", "gate": "x"}, "id"),
            ("work", {"action": "spawn", "id": "a b", "gate": "x"}, "a b"),
            ("work", {"action": "explode", "id": "a"}, "abort"),
            ("work", {"action": "fetch", "id": "n"}, "n"),
            ("await", {}, "At least one handle ID required"),
            ("await", {"all": ["n"]}, "Handle `n` not found"),
            ("weigh", {"name": ""}, "nothing to weigh"),
        ]
        for name, arguments, said in wrong:
            refused = await client.call_tool(name, arguments)
            assert refused.is_error and said in text(refused), (name, arguments, texts(refused))
        await until(here.idle)


@pytest.mark.parametrize("era", ERAS)
async def test_M5_news_is_a_text_of_its_own_and_comes_once(era: str, tmp_path: Path) -> None:
    async with serving() as here, connected(here.url, era) as client:
        for id in ("one", "two"):
            await client.call_tool("work", {"action": "spawn", "id": id, "gate": str(tmp_path / "gate")})
        (tmp_path / "gate").touch()
        await until(lambda: not here.runtime.registry.live())
        shown = await client.call_tool("await", {"all": ["one"]})
        assert read(shown)["completed"][0]["id"] == "one"
        assert len(texts(shown)) == 2 and "two" in texts(shown)[1] and "`one`" not in texts(shown)[1]
        assert texts(await client.call_tool("echo", {"text": "x"})) == ["x"]


@pytest.mark.parametrize("era", ERAS)
async def test_M5_a_spawn_and_an_await_sent_at_once_find_each_other(era: str, office: Office) -> None:
    """Taken in the order received: on one connection, whatever else is sent."""
    async with Client(office.stdio(), mode=era) as client:
        for number in range(20):
            gate = office.path(f"gate{number}")
            Path(gate).touch()
            spawned, _, waited, awaited = await asyncio.gather(
                client.call_tool("work", {"action": "spawn", "id": f"w{number}", "gate": gate}),
                client.call_tool("echo", {"text": "between"}),
                client.call_tool("wait_for", {"handleId": f"w{number}", "timeoutMs": 10_000}),
                client.call_tool("await", {"all": [f"w{number}"], "timeout_secs": 10}),
            )
            assert read(spawned)["id"] == f"w{number}"
            assert not waited.is_error and read(waited)["result"] == f"worked at gate{number}", texts(waited)
            assert not awaited.is_error, texts(awaited)
            made, completed = await asyncio.gather(
                client.call_tool("create_wait_handle", {"handleId": f"h{number}", "type": "custom"}),
                client.call_tool("complete_wait_handle", {"handleId": f"h{number}", "result": number}),
            )
            assert not made.is_error and not completed.is_error, texts(completed)


@pytest.mark.parametrize("era", ERAS)
async def test_M5_so_it_is_in_one_process(era: str) -> None:
    async with keephold.Runtime(TOOLS) as runtime:
        async with Client(Server(runtime), mode=era) as client:
            for number in range(100):
                id = f"h{number}"
                made, waited, completed = await asyncio.gather(
                    client.call_tool("create_wait_handle", {"handleId": id, "type": "custom"}),
                    client.call_tool("wait_for", {"handleId": id, "timeoutMs": 10_000}),
                    client.call_tool("complete_wait_handle", {"handleId": id, "result": number}),
                )
                assert not made.is_error and not completed.is_error
                assert read(waited)["result"] == number
        assert not runtime.batches


async def test_M2_a_call_is_a_task_only_if_it_takes_long(tmp_path: Path) -> None:
    async with serving(task_after=5) as here, connected(here.url, MODERN, tasks=KnowsTasks()) as client:
        for _ in range(20):
            quick = await client.session.call_tool("echo", {"text": "x"}, allow_claimed=True)
            assert not isinstance(quick, TaskMade)
        await until(here.idle)


@pytest.mark.parametrize("era", ERAS)
async def test_W8_handles_are_resources(era: str) -> None:
    async with serving() as here, connected(here.url, era) as client:
        assert "keephold://handles" in [str(each.uri) for each in (await client.list_resources()).resources]
        templates = (await client.list_resource_templates()).resource_templates
        assert "keephold://handles/{id}" in [each.uri_template for each in templates]
        for id in ("a/b?c#d%e", "ü", "..", "%41", "x:y"):
            await client.call_tool("create_wait_handle", {"handleId": id, "type": "hook", "metadata": {"of": id}})
            (seen,) = (await client.read_resource(f"keephold://handles/{quote(id, safe='')}")).contents
            shown = json.loads(getattr(seen, "text", ""))
            assert (shown["id"], shown["metadata"], shown["state"]) == (id, {"of": id}, "running")
            assert "key" not in shown  # whoever reads may not complete (K5)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("await", {"all": ["w"]}),
        ("wait_for", {"handleId": "w"}),
        ("wait_for_multiple", {"handleIds": ["w"], "mode": "all"}),
    ],
)
async def test_M7_over_HTTP_a_wait_may_overtake_its_spawn(
    era: str, tool: str, arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call has a connection of its own, as frameworks do it. An id that nobody spawns stays unknown."""
    monkeypatch.setattr("keephold.mcp.calls._UNKNOWN_SECS", 0.05)
    async with serving() as here, connected(here.url, era) as one, connected(here.url, era) as other:
        unknown = await one.call_tool(tool, arguments)
        assert unknown.is_error and "not found" in texts(unknown)[0]
        monkeypatch.setattr("keephold.mcp.calls._UNKNOWN_SECS", 60.0)
        waiting = asyncio.create_task(one.call_tool(tool, arguments))
        await until(lambda: bool(here.runtime.registry.followers))
        spawned = await other.call_tool("work", {"action": "spawn", "id": "w", "gate": str(tmp_path / "gate")})
        assert not spawned.is_error
        (tmp_path / "gate").touch()
        assert "worked at gate" in texts(await waiting)[0]
        await until(here.idle)
