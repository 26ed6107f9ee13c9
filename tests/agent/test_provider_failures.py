"""How providers fail: errors with their own bodies, streams that break or go silent, answers with nothing in them."""

import asyncio
from contextlib import AsyncExitStack

import httpx2
import pytest
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelRateLimitError
from tests.agent.asking import ask, said, user
from tests.agent.providers.base import KEY
from tests.agent.providers.formats import FORMATS
from tests.agent.providers.script import Break, Fail, Hang, Reply
from tests.agent.servers import model_of, provider
from tests.patience import PATIENCE, until

STATUSES = [(format, status) for format in FORMATS for status in (429, 500, 529 if format == "anthropic" else 503)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("format", "status"), STATUSES)
async def test_G1_an_error_of_the_provider(format: str, status: int, stream: bool) -> None:
    async with provider(format, [Fail(status), Reply(text="So.")]) as server, model_of(server) as model:
        with pytest.raises(ModelHTTPError) as failed:
            await ask(model, [user("?")], stream=stream)
        response, _ = await ask(model, [user("?")], stream=stream)
    assert failed.value.status_code == status
    assert server.wire.failure(status) in str(failed.value.body)
    assert said(response)[1] == "So."


@pytest.mark.parametrize("format", FORMATS)
async def test_G1_too_many_requests_say_when_to_come_again(format: str) -> None:
    async with provider(format, [Fail(429, "Slowly.", retry_after=7)]) as server, model_of(server) as model:
        with pytest.raises(ModelRateLimitError) as failed:
            await ask(model, [user("?")], stream=True)
    assert failed.value.retry_after == 7
    assert "Slowly." in str(failed.value.body)


@pytest.mark.parametrize("turn", [Break(after=0), Break(after=3), Break(after=9)], ids=["at once", "soon", "later"])
@pytest.mark.parametrize("format", FORMATS)
async def test_G1_a_stream_that_breaks(format: str, turn: Break) -> None:
    async with provider(format, [turn]) as server, model_of(server) as model:
        with pytest.raises(ModelAPIError):
            await ask(model, [user("?")], stream=True)
    assert server.script.left == 0


@pytest.mark.parametrize("format", [format for format in FORMATS if format != "anthropic"])
async def test_G1_an_answer_that_breaks(format: str) -> None:
    async with provider(format, [Break()]) as server, model_of(server) as model:
        with pytest.raises(ModelAPIError):
            await ask(model, [user("?")])
    assert not server.requests[0].stream


SAID = [{"role": "user", "content": "?"}]
BODIES = {
    "openai-chat": {"model": "gpt-5.5", "messages": SAID, "stream": True},
    "openai-responses": {"model": "gpt-5.5", "input": SAID, "stream": True},
    "anthropic": {"model": "claude-opus-5", "messages": SAID, "max_tokens": 9, "stream": True},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "?"}]}]},
}


@pytest.mark.parametrize("format", FORMATS)
async def test_G1_a_stream_that_hangs_is_left(format: str) -> None:
    """By plain HTTP: when the libraries let go of a stream is theirs to know."""
    headers = {"authorization": f"Bearer {KEY}", "x-goog-api-key": KEY, "anthropic-version": "2023-06-01"}
    async with provider(format, [Hang(after=4)]) as server:
        path = server.wire.path.format(version="v1", model="gemini-2.5-pro", method="streamGenerateContent")
        url = f"http://127.0.0.1:{server.port}{path}"
        async with (
            httpx2.AsyncClient(timeout=PATIENCE) as client,
            client.stream("POST", url, json=BODIES[format], headers=headers) as response,
        ):
            events = 0
            async for line in response.aiter_lines():
                events += line.startswith("data: ")
                if events == 4:
                    break
            assert not server.requests[0].abandoned
        await until(lambda: server.requests[0].abandoned)
        assert not server.requests[0].answered


@pytest.mark.parametrize("format", FORMATS)
async def test_G1_a_server_ends_though_a_stream_hangs(format: str) -> None:
    async with AsyncExitStack() as stack:
        async with provider(format, [Hang(after=4)]) as server:
            model = await stack.enter_async_context(model_of(server))
            asking = asyncio.create_task(ask(model, [user("?")], stream=True))
            await until(lambda: bool(server.requests))
        with pytest.raises(ModelAPIError):
            await asking
    assert not server.requests[0].abandoned


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("format", FORMATS)
async def test_G1_an_answer_with_nothing_in_it(format: str, stream: bool) -> None:
    async with provider(format, [Reply()]) as server, model_of(server) as model:
        response, _ = await ask(model, [user("?")], stream=stream)
    assert said(response) == ("", "", [])
    assert response.finish_reason == "stop"


@pytest.mark.parametrize("format", ["openai-chat", "openai-responses", "anthropic"])
async def test_G1_arguments_that_were_cut_off(format: str) -> None:
    cut = Reply(calls=[("weather", '{"place": "Os')], finish="length")
    async with provider(format, [cut]) as server, model_of(server) as model:
        response, _ = await ask(model, [user("?")], stream=True)
    (call,) = response.tool_calls
    assert call.args == '{"place": "Os'
    assert response.finish_reason == "length"
