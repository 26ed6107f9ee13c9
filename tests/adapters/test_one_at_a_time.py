"""Calls of frameworks that call tools one at a time: each is a batch of its own, without a turn."""

import asyncio
from types import ModuleType

import pytest

import keephold
from keephold import Runtime
from keephold.adapters import langchain, openai_agents
from keephold.adapters._parts import answered


@keephold.tool
async def add(a: int, b: int = 0) -> int:
    """Add."""
    return a + b


async def test_N4_a_call_carries_the_notifications() -> None:
    async with Runtime([add]) as rt:
        assert await answered(rt, "main", "add", {"a": 1, "b": 2}) == ("3", False)
        await rt.notify("disk.full", "warning", "The disk is nearly full.", conversation="main")
        text, is_error = await answered(rt, "main", "add", '{"a": 1}')
        assert text.startswith("1\n\n") and "The disk is nearly full." in text and not is_error
        assert await answered(rt, "main", "add", {"a": 2}) == ("2", False)


async def test_C9_a_wrong_call_is_an_error_that_says_what_would_be_right() -> None:
    async with Runtime([add]) as rt:
        for arguments in ({"c": 1}, "{", "[]"):
            text, is_error = await answered(rt, "main", "add", arguments)
            assert is_error and text
        text, is_error = await answered(rt, "main", "ad", {})
        assert is_error and "`add`" in text


async def test_B7_N3_a_cancelled_call_ends_and_its_notifications_stay() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @keephold.tool
    async def hang() -> None:
        """Wait until it is cancelled."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with Runtime([add, hang]) as rt:
        call = asyncio.create_task(answered(rt, "main", "hang", {}))
        await begun.wait()
        await rt.notify("disk.full", "warning", "The disk is nearly full.", conversation="main")
        call.cancel()
        await asyncio.wait([call])
        await ended.wait()
        assert call.cancelled()
        text, _ = await answered(rt, "main", "add", {"a": 1})
        assert "The disk is nearly full." in text


@pytest.mark.parametrize(
    ("adapter", "package"),
    [(langchain, "langchain-core"), (openai_agents, "openai-agents")],
    ids=["langchain", "openai"],
)
async def test_a_missing_package_is_named(adapter: ModuleType, package: str) -> None:
    """These packages are not part of the developers' environment."""
    async with Runtime([add]) as rt:
        with pytest.raises(ImportError, match=f"pip install {package}"):
            adapter.tools(rt, "main")
