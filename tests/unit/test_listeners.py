"""Lists of listeners, and the registry's: everyone who subscribed is called, and nobody else's subscription changes."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.patience import PATIENCE

from keephold import Runtime, ToolCall, tool
from keephold.listeners import Listeners
from keephold.store.base import Done, Failed, Op


def test_everyone_is_called_in_order_until_they_are_removed() -> None:
    listeners: Listeners[[int]] = Listeners()
    heard: list[tuple[str, int]] = []
    remove = listeners.add(lambda number: heard.append(("a", number)))
    listeners.add(lambda number: heard.append(("b", number)))
    listeners(1)
    remove()
    remove()
    listeners(2)
    assert heard == [("a", 1), ("b", 1), ("b", 2)]


def test_a_listener_may_remove_itself_while_all_are_called() -> None:
    listeners: Listeners[[]] = Listeners()
    heard: list[str] = []

    def once() -> None:
        heard.append("once")
        remove()

    remove = listeners.add(once)
    listeners.add(lambda: heard.append("always"))
    listeners()
    listeners()
    assert heard == ["once", "always", "always"]


def test_a_function_that_was_added_twice_is_removed_once_by_each() -> None:
    listeners: Listeners[[]] = Listeners()
    heard: list[int] = []

    def hear() -> None:
        heard.append(1)

    remove, _ = listeners.add(hear), listeners.add(hear)
    remove()
    remove()
    listeners()
    assert heard == [1]


@tool
async def work() -> str:
    return "done"


async def test_two_protocols_on_one_runtime_both_hear_of_handles() -> None:
    made: list[tuple[str, str]] = []
    ended: list[str] = []

    def hear(who: str) -> Any:
        return lambda handles: made.extend((who, handle.call_id) for handle in handles)

    async with Runtime(tools=[work]) as rt, rt.turn() as turn:
        rt.registry.on_created.add(hear("mcp"))
        leave = rt.registry.on_created.add(hear("acp"))
        rt.registry.on_settled.add(lambda uid, state, what: ended.append("a"))
        rt.registry.on_settled.add(lambda uid, state, what: ended.append("b"))
        await turn.run([ToolCall("1", "work")])
        leave()
        await turn.run([ToolCall("2", "work")])
    assert made == [("mcp", "1"), ("acp", "1"), ("mcp", "2")] and ended == ["a", "b", "a", "b"]


async def test_commit_observers_are_called_in_turn_before_the_store() -> None:
    seen: list[tuple[str, int]] = []

    def observer(name: str) -> Any:
        def observe(ops: Sequence[Op], done: Done, failed: Failed) -> tuple[Sequence[Op], Done, Failed]:
            seen.append((name, len(ops)))

            def observed(results: Sequence[Any]) -> None:
                seen.append((f"{name} done", len(results)))
                done(results)

            return ops, observed, failed

        return observe

    async with Runtime(tools=[work]) as rt:
        assert rt.registry.commit == rt.registry.store.commit, "a runtime that nobody observes pays nothing"
        rt.registry.observe_commits(observer("traces"))
        rt.registry.observe_commits(observer("metrics"))
        async with rt.turn() as turn:
            del seen[:]
            await turn.run([ToolCall("1", "work")])
    assert [name for name, _ in seen[:4]] == ["traces", "metrics", "metrics done", "traces done"]


async def test_a_listener_that_raises_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    def bad(*_: object) -> None:
        raise RuntimeError("bad listener")

    async with Runtime(tools=[work]) as rt, rt.turn() as turn:
        for listeners in (rt.registry.on_created, rt.registry.on_settled, rt.registry.store.on_commit):
            listeners.add(bad)
        rt.registry.on_settled.add(lambda uid, state, what: ended.append("b"))
        async with asyncio.timeout(PATIENCE):
            (response,) = await turn.run([ToolCall("1", "work")])
    assert "done" in response.result and ended == ["b"] and "bad listener" in caplog.text
