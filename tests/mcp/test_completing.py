"""Completions by themselves: a body that is too long is refused by its length, before any of it is read (K6)."""

import pytest
from starlette.types import Message

from keephold import Runtime
from keephold.control.webhooks import Completing


async def test_K2_a_key_is_used_by_post_and_the_answer_says_so() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async with Runtime() as rt:
        scope = {"type": "http", "path": "/complete/hf1.a.b.c", "method": "GET", "headers": []}
        await Completing(rt)(scope, None, send)  # type: ignore[arg-type]  # nobody reads it
    assert sent[0]["status"] == 405 and (b"allow", b"POST") in sent[0]["headers"]


@pytest.mark.parametrize("length", ["1048577", "1000000000", "9" * 5000])
async def test_K6_a_completion_that_says_it_is_too_long_is_refused_before_any_of_it_has_come(length: str) -> None:
    async def never() -> Message:
        raise AssertionError("nobody reads it")

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-length", length.encode())]
    async with Runtime() as rt:
        scope = {"type": "http", "path": "/complete/hf1.a.b.c", "method": "POST", "headers": headers}
        await Completing(rt)(scope, never, send)
    assert sent[0]["status"] == 413 and b"arguments_bytes" in sent[1]["body"]
