"""The providers that the agent is tested against speak their formats (G1, G3): pydantic-ai and the SDKs understand
them, and they take the whole tool list of a runtime in their dialect."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from google.genai import Client
from google.genai.types import GenerateContentConfig, HttpOptions
from openai import AsyncOpenAI
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import ModelRequestParameters
from tests.agent.asking import (
    DIALECTS,
    PLACE,
    WEATHER,
    ask,
    by_tool,
    definitions,
    native,
    offering,
    results,
    said,
    user,
)
from tests.agent.providers.base import KEY
from tests.agent.providers.formats import FORMATS
from tests.agent.providers.neutral import Asked
from tests.agent.providers.script import Reply, Usage
from tests.agent.servers import KEPT, model_of, provider, provider_process

import keephold
from keephold import Call as ToolContext
from keephold import Runtime
from keephold.tools.waiting import NAMES as WAIT_TOOLS

THINKS = [format for format in FORMATS if format != "openai-chat"]
REPLY = Reply(
    text="It depends on the place.",
    thinking="The user wants to know the weather.",
    calls=[("weather", {"place": "Oslo"}), ("weather", {"place": "Reykjavík, by the harbour"})],
    usage=Usage(input_tokens=100, output_tokens=50, cached_tokens=20, thinking_tokens=7),
)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("format", FORMATS)
async def test_G1_text_thinking_calls_and_usage(format: str, stream: bool) -> None:
    async with provider(format, [REPLY]) as server, model_of(server) as model:
        response, events = await ask(model, [user("The weather?")], offering(WEATHER), stream=stream)
    thinking, text, calls = said(response)
    assert thinking == (REPLY.thinking if format in THINKS else "")
    assert text == REPLY.text
    assert calls == REPLY.calls
    assert response.usage.input_tokens == 100
    assert response.usage.output_tokens == 50
    assert response.usage.cache_read_tokens == 20
    assert response.finish_reason in ("tool_call", "stop")
    assert len({call.tool_call_id for call in response.tool_calls}) == 2
    assert (events > 10) == stream
    (asked,) = server.requests
    assert (asked.system, asked.messages[0].text, asked.choice) == ("Be brief.", "The weather?", "auto")
    assert [(tool.name, tool.description) for tool in asked.tools] == [("weather", "Look at the sky.")]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("format", FORMATS)
async def test_G1_a_history_is_read_the_same_in_every_format(format: str, stream: bool) -> None:
    async with provider(format, [REPLY, Reply(text="Rain.")]) as server, model_of(server) as model:
        first, _ = await ask(model, [user("The weather?")], offering(WEATHER), stream=stream)
        history: list[ModelMessage] = [user("The weather?"), first, results(first, "rain"), user("And tomorrow?")]
        second, _ = await ask(model, history, offering(WEATHER), stream=stream)
    assert said(second)[1] == "Rain."
    asked = server.requests[1]
    assert [message.role for message in asked.messages] == ["user", "assistant", "user"]
    _, answer, after = asked.messages
    assert (answer.text, answer.thinking) == (REPLY.text, REPLY.thinking if format in THINKS else "")
    assert [(call.name, call.arguments) for call in answer.calls] == REPLY.calls
    assert [result.text for result in after.results] == ["rain 0", "rain 1"]
    assert [result.id for result in after.results] == [call.id for call in answer.calls]
    assert after.text == "And tomorrow?"


@pytest.mark.parametrize(("finish", "told"), [("length", "length"), ("filter", "content_filter")])
@pytest.mark.parametrize("format", FORMATS)
async def test_G1_an_answer_that_was_cut_off_says_why(format: str, finish: Any, told: str) -> None:
    async with provider(format, [Reply(text="It depe", finish=finish)]) as server, model_of(server) as model:
        response, _ = await ask(model, [user("The weather?")], stream=True)
    assert (said(response)[1], response.finish_reason) == ("It depe", told)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("format", FORMATS)
async def test_Q2_structured_output_by_a_forced_call(format: str, stream: bool) -> None:
    async with provider(format, [Reply(answer={"place": "Oslo"})]) as server, model_of(server) as model:
        response, _ = await ask(model, [user("Where?")], by_tool(), stream=stream)
    assert said(response)[2] == [("answer", {"place": "Oslo"})]
    wanted = server.requests[0].wanted
    assert wanted is not None
    assert (wanted.tool, wanted.schema["properties"]) == ("answer", PLACE["properties"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("format", FORMATS)
async def test_Q2_structured_output_by_the_providers_own_means(format: str, stream: bool) -> None:
    async with provider(format, [Reply(answer={"place": "Oslo"})]) as server, model_of(server) as model:
        response, _ = await ask(model, [user("Where?")], native(), stream=stream)
    assert said(response)[1] == '{"place":"Oslo"}'
    wanted = server.requests[0].wanted
    assert wanted is not None
    assert wanted.tool is None
    assert list(wanted.schema["properties"]) == ["place"]


@pytest.mark.parametrize("name", ["claude-opus-5", "claude-sonnet-5-5"])
async def test_Q2_a_model_that_is_not_forced_may_call_the_tool(name: str) -> None:
    reply = Reply(answer={"place": "Oslo"})
    async with provider("anthropic", [reply]) as server, model_of(server, name) as model:
        response, _ = await ask(model, [user("Where?")], by_tool())
    assert said(response)[2] == [("answer", {"place": "Oslo"})]
    assert server.requests[0].choice == "auto"


async def test_Q2_inquiries_have_a_script_of_their_own() -> None:
    inquiries = [Reply(answer={"place": "Oslo"})]
    async with provider("anthropic", [Reply(text="One.")], inquiries=inquiries) as server, model_of(server) as model:
        inquiry, _ = await ask(model, [user("Where?")], by_tool())
        response, _ = await ask(model, [user("One?")])
    assert said(inquiry)[2] == [("answer", {"place": "Oslo"})]
    assert said(response)[1] == "One."
    assert server.script.left == 0


async def test_G1_a_function_sees_the_request_and_may_take_its_time() -> None:
    async def turn(asked: Asked) -> Reply:
        await asyncio.sleep(0)
        return Reply(text=f"You said {asked.messages[-1].text}")

    async with provider("gemini", turn) as server, model_of(server) as model:
        for text in ("one", "two"):
            response, _ = await ask(model, [user(text)])
            assert said(response)[1] == f"You said {text}"


async def test_G1_a_request_beyond_the_script_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="requests beyond the script"):
        async with provider("openai-chat", [Reply(text="One.")]) as server, model_of(server) as model:
            await ask(model, [user("One?")])
            with pytest.raises(ModelHTTPError):
                await ask(model, [user("Two?")])


@pytest.mark.parametrize("format", FORMATS)
def test_G1_a_provider_as_a_process(format: str, tmp_path: Path) -> None:
    async def talk(name: str, env: dict[str, str]) -> str:
        from pydantic_ai.models import infer_model

        with pytest.MonkeyPatch.context() as patch:
            for key, value in env.items():
                patch.setenv(key, value)
            model = infer_model(name)
        async with model:
            return said((await ask(model, [user("Hello?")], stream=True))[0])[1]

    with provider_process(format, tmp_path, [Reply(text="Hello.")]) as served:
        assert asyncio.run(talk(served.model, served.env)) == "Hello."
        (request,) = served.requests()
    assert (request["format"], request["stream"], request["messages"][0]["text"]) == (format, True, "Hello?")


# The official SDKs


async def test_G1_the_openai_sdk_streams_chat_completions() -> None:
    async with provider("openai-chat", [REPLY]) as server, AsyncOpenAI(base_url=server.url, api_key=KEY) as client:
        tool: Any = {"type": "function", "function": {"name": "weather", "parameters": PLACE}}
        message: Any = {"role": "user", "content": "The weather?"}
        async with client.chat.completions.stream(model="gpt-5.5", messages=[message], tools=[tool]) as stream:
            completion = await stream.get_final_completion()
    choice = completion.choices[0]
    assert (choice.message.content, choice.finish_reason) == (REPLY.text, "tool_calls")
    assert [call.function.name for call in choice.message.tool_calls or []] == ["weather", "weather"]


async def test_G1_the_openai_sdk_streams_responses() -> None:
    async with (
        provider("openai-responses", [REPLY]) as server,
        AsyncOpenAI(base_url=server.url, api_key=KEY) as client,
        client.responses.stream(model="gpt-5.5", input="The weather?") as stream,
    ):
        response = await stream.get_final_response()
    assert response.output_text == REPLY.text
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]


async def test_G1_the_anthropic_sdk_streams_messages() -> None:
    async with provider("anthropic", [REPLY]) as server, AsyncAnthropic(base_url=server.url, api_key=KEY) as client:
        model, said = server.wire.models[0], [{"role": "user", "content": "The weather?"}]
        async with client.messages.stream(model=model, max_tokens=100, messages=said) as stream:  # type: ignore[arg-type]
            message = await stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (message.stop_reason, message.usage.cache_read_input_tokens) == ("tool_use", 20)


async def test_G1_the_google_sdk_streams_content() -> None:
    async with provider("gemini", [REPLY]) as server:
        client = Client(api_key=KEY, http_options=HttpOptions(base_url=server.url)).aio
        KEPT.append(client)
        config = GenerateContentConfig(system_instruction="Be brief.")
        stream = await client.models.generate_content_stream(
            model="gemini-2.5-pro", contents="The weather?", config=config
        )
        chunks = [chunk async for chunk in stream]
        await client.aclose()
    texts = [part.text for chunk in chunks for part in chunk.parts or [] if part.text and not part.thought]
    assert "".join(texts) == REPLY.text
    calls = [call.args for chunk in chunks for call in chunk.function_calls or []]
    assert calls == [arguments for _, arguments in REPLY.calls]
    assert chunks[-1].usage_metadata is not None
    assert chunks[-1].usage_metadata.thoughts_token_count == 7


# The tools of a runtime


@keephold.tool
async def word_count(text: str, least: int = 1, kinds: list[str] | None = None) -> str:
    """Count words."""
    return str(len(text.split()))


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"))
async def deploy(call: ToolContext, env: str, options: dict[str, str] | None = None) -> str:
    """Deploy."""
    return str(await call.input())


CONFIG = (
    "".join(f'[conversation.tools.{name}]\nsource = "builtin"\n' for name in WAIT_TOOLS)
    + """
[conversation.tools.check]
source = "local"
command = ["true", "{{ tool.arguments.package }}"]
description = "Type-check a package."
[conversation.tools.check.parameters.package]
type = "string"
required = true
[conversation.tools.check.spawn]
stateful = true
"""
)


def office(directory: Path) -> Runtime:
    """A runtime with a tool of every kind."""
    config = directory / "keephold.toml"
    config.write_text(CONFIG)

    async def person(prompt: Any) -> Any:
        raise AssertionError("nobody is asked")

    return Runtime([word_count, deploy], config=config, prompter=person)


@pytest.mark.parametrize("format", FORMATS)
async def test_G3_each_provider_takes_the_whole_tool_list_in_its_dialect(format: str, tmp_path: Path) -> None:
    call = Reply(calls=[("word_count", {"text": "a b"})])
    async with office(tmp_path) as rt, provider(format, [call]) as server, model_of(server) as model:
        tools = definitions(rt, DIALECTS[format])
        response, _ = await ask(model, [user("Count.")], offering(*tools), stream=True)
    assert said(response)[2] == call.calls
    (asked,) = server.requests
    names = {tool.name for tool in asked.tools}
    assert names >= {"word_count", "deploy", "check", "ask_user", "await", *WAIT_TOOLS}
    assert len(asked.tools) == len(tools)


@pytest.mark.parametrize("format", ["openai-chat", "openai-responses"])
async def test_G3_openai_takes_the_whole_tool_list_as_strict(format: str, tmp_path: Path) -> None:
    async with office(tmp_path) as rt, provider(format, [Reply(text="So.")]) as server, model_of(server) as model:
        await ask(model, [user("Count.")], offering(*definitions(rt, "openai-strict")))
    assert all(tool.strict for tool in server.requests[0].tools)


@pytest.mark.parametrize("format", FORMATS)
async def test_G3_each_provider_refuses_the_canonical_schema(format: str, tmp_path: Path) -> None:
    async with office(tmp_path) as rt, provider(format) as server, model_of(server) as model:
        tools = definitions(rt, "canonical")
        with pytest.raises(ModelHTTPError) as refused:
            await ask(model, [user("Count.")], ModelRequestParameters(function_tools=tools))
    assert refused.value.status_code == 400
    assert "oneOf" in server.refusals[0]
    assert server.script.left == 0
