"""Tools, calls and results in the forms of OpenAI and Anthropic: read from the SDKs' objects and from JSON alike."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from anthropic.types import Message, MessageParam, ToolParam
from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageParam
from openai.types.chat import ChatCompletionFunctionToolParam as ChatTool
from openai.types.responses import FunctionToolParam, Response, ResponseInputItemParam
from pydantic import TypeAdapter

import keephold
from keephold import Notification, Runtime, ToolCall
from keephold.adapters import anthropic, openai

Shaped = Callable[[Any], Any]
FORMS = pytest.mark.parametrize("sdk", [True, False], ids=["objects", "JSON"])


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"))
async def greet(name: str = "you") -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


@keephold.tool
async def silent() -> str:
    """Say nothing."""
    return ""


async def answered(calls: list[ToolCall]) -> list[keephold.Response]:
    async with Runtime([greet, silent]) as rt, rt.turn() as turn:
        return await turn.run(calls)


def completion(*calls: tuple[str, str, str], ended: str = "tool_calls", **message: Any) -> dict[str, Any]:
    made = [{"id": id, "type": "function", "function": {"name": name, "arguments": text}} for id, name, text in calls]
    said = {"role": "assistant", "content": None, "tool_calls": made or None, **message}
    choice = {"index": 0, "finish_reason": ended, "message": said, "logprobs": None}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def response(*output: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    return {
        "id": "r", "object": "response", "created_at": 1, "model": "m", "status": status, "output": list(output),
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip


def function_call(id: str, name: str, text: str, status: str = "completed") -> dict[str, Any]:
    return {
        "type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": text, "status": status
    }  # fmt: skip


def message(*blocks: dict[str, Any], ended: str = "tool_use") -> dict[str, Any]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": list(blocks), "usage": usage,
        "stop_reason": ended, "stop_sequence": None,
    }  # fmt: skip


def tool_use(id: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def chat(given: dict[str, Any], sdk: bool) -> list[ToolCall]:
    return openai.calls(ChatCompletion.model_validate(given) if sdk else given)


def responded(given: dict[str, Any], sdk: bool) -> list[ToolCall]:
    return openai.calls(Response.model_validate(given) if sdk else given)


def used(given: dict[str, Any], sdk: bool) -> list[ToolCall]:
    return anthropic.calls(Message.model_validate(given) if sdk else given)


# Tools


async def test_G3_tools_are_what_the_requests_of_the_sdks_take() -> None:
    async with Runtime([greet, silent]) as rt:
        assert openai.tools(rt) == [{"type": "function", "function": tool} for tool in rt.tools("openai")]
        for tool in openai.tools(rt) + openai.tools(rt, strict=True):
            assert TypeAdapter(ChatTool).validate_python(tool, strict=True) == tool
        for strict in (True, False):
            for tool in openai.tools(rt, "responses", strict=strict):
                assert TypeAdapter(FunctionToolParam).validate_python(tool) == tool
                assert tool["strict"] is strict
        assert {tool["function"]["strict"] for tool in openai.tools(rt, strict=True)} == {True}
        strictly = [tool["function"]["parameters"] for tool in openai.tools(rt, strict=True)]
        assert strictly == [tool["parameters"] for tool in rt.tools("openai-strict")]
        for tool, known in zip(anthropic.tools(rt), rt.tools("anthropic"), strict=True):
            TypeAdapter(ToolParam).validate_python(tool)
            assert (tool["name"], tool["input_schema"]) == (known["name"], known["parameters"])
        with pytest.raises(ValueError, match='"chat" or "responses"'):
            openai.tools(rt, "completions")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match='"chat" or "responses"'):
            openai.results([], "completions")  # type: ignore[arg-type]


# Calls


@FORMS
def test_calls_come_in_emitted_order_and_as_they_were_sent(sdk: bool) -> None:
    sent = [("1", "greet", '{"name": "a"}'), ("2", "nobody", "{"), ("3", "greet", "")]
    assert chat(completion(*sent), sdk) == [ToolCall(*each) for each in sent]
    items = [function_call(*each) for each in sent]
    assert responded(response(*items), sdk) == [ToolCall(*each) for each in sent]
    given = {"name": "a"}
    assert used(message(tool_use("1", "greet", given), tool_use("2", "nobody", {})), sdk) == [
        ToolCall("1", "greet", given),
        ToolCall("2", "nobody", {}),
    ]


@FORMS
def test_what_is_no_call_is_passed_over(sdk: bool) -> None:
    """Refusals, texts, thoughts, calls of another kind, and what the provider runs itself."""
    assert chat(completion(ended="stop", content="done"), sdk) == []
    assert chat(completion(ended="stop", refusal="I will not."), sdk) == []
    custom = {"id": "1", "type": "custom", "custom": {"name": "grammar", "input": "x"}}
    ours = {"id": "2", "type": "function", "function": {"name": "greet", "arguments": "{}"}}
    assert chat(completion(tool_calls=[custom, ours]), sdk) == [ToolCall("2", "greet", "{}")]
    thought = {"type": "reasoning", "id": "rs", "summary": []}
    refused: dict[str, Any] = {
        "type": "message", "id": "msg", "role": "assistant", "status": "completed",
        "content": [{"type": "refusal", "refusal": "I will not."}],
    }  # fmt: skip
    assert responded(response(thought, refused), sdk) == []
    assert responded(response(thought, function_call("1", "greet", "{}"), refused), sdk) == [
        ToolCall("1", "greet", "{}")
    ]
    blocks: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "Let me see.", "citations": None},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
    ]
    assert used(message(*blocks, tool_use("1", "greet", {})), sdk) == [ToolCall("1", "greet", {})]
    assert used(message(*blocks, ended="refusal"), sdk) == []


def test_a_message_alone_is_read_too() -> None:
    """Where somebody keeps messages, not completions."""
    said = completion(("1", "greet", "{}"))["choices"][0]["message"]
    expected = [ToolCall("1", "greet", "{}")]
    assert openai.calls(said) == openai.calls(ChatCompletionMessage.model_validate(said)) == expected
    assert openai.calls({"role": "assistant", "content": "done"}) == []
    assert anthropic.calls({"role": "assistant", "content": "done"}) == []
    assert anthropic.calls({"role": "assistant", "content": [tool_use("1", "greet", {})]}) == [
        ToolCall("1", "greet", {})
    ]


@FORMS
@pytest.mark.parametrize("text", ["", "  ", "{", '{"name": "wor', '{"name": "world"'])
async def test_C9_a_call_that_was_cut_off_is_not_run(sdk: bool, text: str) -> None:
    """Nothing of its arguments may have come: that is not a call without arguments. The one before it is whole."""
    whole = ("1", "greet", '{"name": "a"}')
    cut = [
        chat(completion(whole, ("2", "greet", text), ended="length"), sdk),
        chat(completion(whole, ("2", "greet", text), ended="content_filter"), sdk),
        responded(response(function_call(*whole), function_call("2", "greet", text), status="incomplete"), sdk),
        responded(response(function_call(*whole), function_call("2", "greet", text, "incomplete")), sdk),
    ]
    for calls in cut:
        good, bad = await answered(calls)
        assert good.result == "Hello, a!"
        assert bad.is_error and "not valid JSON" in bad.model


@FORMS
@pytest.mark.parametrize("ended", ["max_tokens", "model_context_window_exceeded", "refusal"])
async def test_C9_a_block_that_was_cut_off_is_not_run(sdk: bool, ended: str) -> None:
    """The SDK makes an object of what has come."""
    for given in ({}, {"name": "wor"}):
        calls = used(message(tool_use("1", "greet", {"name": "a"}), tool_use("2", "greet", given), ended=ended), sdk)
        good, bad = await answered(calls)
        assert good.result == "Hello, a!"
        assert bad.is_error and "not valid JSON" in bad.model


async def test_what_follows_a_cut_off_is_no_call_that_was_cut() -> None:
    """The arguments had come whole, or the end is in another block."""
    (response,) = await answered(openai.calls(completion(("1", "greet", '{"name": "a"}'), ended="length")))
    assert response.result == "Hello, a!"
    text = {"type": "text", "text": "And then"}
    (response,) = await answered(anthropic.calls(message(tool_use("1", "greet", {}), text, ended="max_tokens")))
    assert response.result == "Hello, you!"


# Results


async def test_B1_each_call_has_one_result_in_order_also_under_one_id() -> None:
    sent = [
        ("1", "greet", '{"name": "a"}'),
        ("1", "greet", '{"name": "b"}'),
        ("2", "nobody", "{}"),
        ("3", "silent", ""),
    ]
    responses = await answered(openai.calls(completion(*sent)))
    told = openai.results(responses)
    assert [(each["role"], each["tool_call_id"]) for each in told] == [("tool", id) for id, *_ in sent]
    assert [each["content"] for each in told][:2] == ["Hello, a!", "Hello, b!"]
    for each in told:
        assert TypeAdapter(ChatCompletionMessageParam).validate_python(each) == each
    items = openai.results(responses, "responses")
    assert [(each["type"], each["call_id"]) for each in items] == [("function_call_output", id) for id, *_ in sent]
    for each in items:
        assert TypeAdapter(ResponseInputItemParam).validate_python(each) == each


async def test_anthropic_results_are_one_message_that_says_what_failed() -> None:
    blocks = [tool_use("1", "greet", {"name": "a"}), tool_use("2", "nobody", {}), tool_use("3", "silent", {})]
    (told,) = anthropic.results(await answered(anthropic.calls(message(*blocks))))
    assert told["role"] == "user"
    good, bad, empty = told["content"]
    assert good == {"type": "tool_result", "tool_use_id": "1", "is_error": False, "content": "Hello, a!"}
    assert (bad["tool_use_id"], bad["is_error"]) == ("2", True)
    assert "nobody" in bad["content"]
    assert empty == {"type": "tool_result", "tool_use_id": "3", "is_error": False}
    TypeAdapter(MessageParam).validate_python(told)


def test_N4_news_stands_behind_the_results() -> None:
    news = (Notification("disk.full", "warning", "The disk is full."),)
    responses = [keephold.Response("1", "a", model="a", notifications=news), keephold.Response("2", "b", model="b")]
    for api in ("chat", "responses"):
        *_, last = told = openai.results(responses, api)
        assert len(told) == 3
        assert last["role"] == "user"
        assert last["content"] == keephold.notification_block(news)
    (said,) = anthropic.results(responses)
    assert [block["type"] for block in said["content"]] == ["tool_result", "tool_result", "text"]
    assert said["content"][2]["text"] == keephold.notification_block(news)


def test_nothing_called_is_nothing_to_append() -> None:
    assert openai.results([]) == openai.results([], "responses") == anthropic.results([]) == []


@pytest.mark.cold
def test_no_sdk_is_imported() -> None:
    program = (
        "import json, sys, keephold.adapters, keephold.adapters.openai, keephold.adapters.anthropic\n"
        "print(json.dumps([name for name in ('openai', 'anthropic', 'pydantic_ai') if name in sys.modules]))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == []
