"""The envelopes that docs/howto/agent-loop.md puts around tools, calls and results are those of the providers."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.docs.pages import ROOT, blocks

import keephold

PAGE = ROOT / "docs" / "howto" / "agent-loop.md"


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"))
async def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


def functions(heading: str) -> dict[str, Callable[..., Any]]:
    """What the Python block of a section defines."""
    text = PAGE.read_text()
    line = text[: text.index(f"\n## {heading}")].count("\n")
    block = next(block for block in blocks(PAGE) if block.language == "python" and block.line > line)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block.text, block.where, "exec"), names)
    return names


async def run(calls: list[keephold.ToolCall]) -> list[keephold.Response]:
    async with keephold.Runtime([greet]) as rt, rt.turn() as turn:
        return await turn.run(calls)


async def test_openai() -> None:
    page = functions("A loop")
    tool = page["tools_of"](keephold.Runtime([greet]))[0]
    assert (tool["type"], tool["function"]["name"]) == ("function", "greet")
    assert "name" in tool["function"]["parameters"]["properties"]
    sent = [("a", "greet", '{"name": "you"}'), ("b", "greet", "{")]
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in sent
        ],
    }
    good, bad = page["results_of"](await run(page["calls_of"](message)))
    assert good == {"role": "tool", "tool_call_id": "a", "content": "Hello, you!"}
    assert bad["tool_call_id"] == "b"
    assert "not valid JSON" in bad["content"]
    assert page["calls_of"]({"role": "assistant", "content": "done", "tool_calls": None}) == []


async def test_anthropic() -> None:
    page = functions("Anthropic")
    tool = page["tools_of"](keephold.Runtime([greet]))[0]
    assert set(tool) == {"name", "description", "input_schema"}
    assert tool["input_schema"]["type"] == "object"
    message = {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "a", "name": "greet", "input": {"name": "you"}},
            {"type": "tool_use", "id": "b", "name": "great", "input": {}},
        ],
    }
    [result] = page["results_of"](await run(page["calls_of"](message)))
    assert result["role"] == "user"
    good, bad = result["content"]
    assert good == {"type": "tool_result", "tool_use_id": "a", "content": "Hello, you!", "is_error": False}
    assert (bad["tool_use_id"], bad["is_error"]) == ("b", True)


async def test_gemini() -> None:
    page = functions("Gemini")
    [tools] = page["tools_of"](keephold.Runtime([greet]))
    assert [tool["name"] for tool in tools["functionDeclarations"]] == [
        "greet", "await", "read_output", "handle_fetch", "handle_apply", "handle_abort",
    ]  # fmt: skip
    message = {
        "role": "model",
        "parts": [
            {"text": "Let me see."},
            {"functionCall": {"name": "greet", "args": {"name": "you"}}},
            {"functionCall": {"name": "greet"}},
        ],
    }
    calls = page["calls_of"](message)
    assert len({call.id for call in calls}) == 2
    [result] = page["results_of"](calls, await run(calls))
    good, bad = (part["functionResponse"] for part in result["parts"])
    assert good == {"name": "greet", "response": {"output": "Hello, you!"}}
    assert list(bad["response"]) == ["error"]


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini", "openai-strict"])
def test_what_the_page_says_of_the_flat_schemas(dialect: Any) -> None:
    """`spawn` may be left out, or is null in the strict one: then a call runs to its end."""
    schema = keephold.Runtime([greet]).tools(dialect=dialect)[0]["parameters"]
    assert list(schema["properties"]) == ["name", "spawn"]
    assert ("spawn" in schema["required"]) == ("null" in json.dumps(schema["properties"]["spawn"]))


@pytest.mark.parametrize("left_out", [{}, {"action": None}, {"spawn": None}])
async def test_a_call_without_action_or_spawn_runs_to_its_end(left_out: dict[str, Any]) -> None:
    [response] = await run([keephold.ToolCall("1", "greet", {"name": "you", **left_out})])
    assert (response.model, response.is_error) == ("Hello, you!", False)
