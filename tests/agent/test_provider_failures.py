"""How providers fail: errors with their own bodies, streams that break or go silent, answers with nothing in them."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelRateLimitError
from tests.agent.asking import ask, said, until, user
from tests.agent.providers.formats import FORMATS
from tests.agent.providers.script import Break, Fail, Hang, Reply
from tests.agent.servers import model_of, provider

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


@pytest.mark.parametrize("format", FORMATS)
async def test_G1_a_stream_that_hangs_is_left(format: str) -> None:
    async with provider(format, [Hang(after=4)]) as server, model_of(server) as model:
        asking = asyncio.create_task(ask(model, [user("?")], stream=True))
        await until(lambda: bool(server.requests))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: server.requests[0].abandoned)


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
