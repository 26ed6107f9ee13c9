"""`update_wait_handle`, `cancel_wait_handle`, `gc_wait_handles`, the archive and metrics (W8)."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.turn.calls import STATEFUL, settings, spawn
from tests.unit.waiting.calls import calling

import keephold
from keephold.store.base import Annotated
from keephold.testing import VirtualClock


async def test_W8_progress_priority_and_metadata(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask.create("h", metadata={"a": 1, "b": 2})
        updated = await ask("update_wait_handle", handleId="h", progress=3, total=10, message="third")
        assert updated["progress"] == {"done": 3, "total": 10, "message": "third"}
        updated = await ask("update_wait_handle", handleId="h", progress=4, priority=2, metadata={"a": None, "c": 3})
        assert updated == {
            "success": True,
            "handleId": "h",
            "type": "custom",
            "status": "pending",
            "progress": {"done": 4, "total": 10, "message": "third"},
            "priority": 2,
            "metadata": {"b": 2, "c": 3},
        }
        info = await ask.rt.handle("h", conversation="main")
        assert (info.priority, info.metadata) == (2, {"b": 2, "c": 3}) and info.progress is not None
        await ask.complete("h")
        late = await ask.error("update_wait_handle", handleId="h", progress=5)
        assert late["error"] == "Wait handle h is already completed"
        assert "not found" in (await ask.error("update_wait_handle", handleId="x", progress=5))["error"]


@pytest.mark.parametrize("key", ["mcp.task", "engine.at"])
async def test_keepholds_own_metadata_is_neither_made_nor_shown_by_a_model(key: str, clock: VirtualClock) -> None:
    """A task's prompts are there: results that the model may not see yet, and texts that a user approves. So is the
    place up to which a call is followed at its engine."""
    async with calling(clock) as ask:
        own = {key: {"elicits": True, "asks": {"result.1": "x" * 9000}}}
        refused = await ask.error("create_wait_handle", handleId="h", type="custom", metadata=own)
        assert "begin with `mcp.` or `engine.`" in refused["error"]
        await ask.create("h", metadata={"a": 1})
        refused = await ask.error("update_wait_handle", handleId="h", metadata=own)
        assert "begin with `mcp.` or `engine.`" in refused["error"]
        info = await ask.rt.handle("h", conversation="main")
        await ask.rt.registry.write((Annotated(info.uid, metadata=own),))
        updated = await ask("update_wait_handle", handleId="h", metadata={"b": 2})
        assert updated["metadata"] == {"a": 1, "b": 2}


async def test_metadata_has_no_room_for_data(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        much = {"text": "x" * 9000}
        refused = await ask.error("create_wait_handle", handleId="h", type="custom", metadata=much)
        assert "8192" in refused["error"]
        await ask.create("h")
        assert "8192" in (await ask.error("update_wait_handle", handleId="h", metadata=much))["error"]


async def test_W8_cancelling_a_wait_handle(clock: VirtualClock) -> None:
    async with calling(clock) as ask, asyncio.TaskGroup() as group:
        await ask.create("h")
        waiting = group.create_task(ask.wait_for("h"))
        await clock.advance(1)
        ended = await ask("cancel_wait_handle", handleId="h", reason="changed my mind")
        assert (ended["status"], ended["error"]) == ("failed", "Cancelled: changed my mind")
        assert (await waiting)["error"] == "Cancelled: changed my mind"
        assert (await ask.error("cancel_wait_handle", handleId="h"))["currentStatus"] == "failed"


async def test_cancelling_a_sleep(clock: VirtualClock) -> None:
    async with calling(clock) as ask, asyncio.TaskGroup() as group:
        sleeping = group.create_task(ask.response("sleep", durationMs=60_000))
        await clock.advance(1)
        (timer,) = (await ask("list_wait_handles"))["handles"]
        ended = await ask("cancel_wait_handle", handleId=timer["id"])
        assert (ended["type"], ended["elapsedMs"]) == ("timer", 1000)
        assert (await sleeping).result == "Cancelled by the assistant."


async def test_C2_a_tool_keeps_its_own_actions(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def busy() -> None:
        await asyncio.sleep(60)

    async with calling(clock, busy) as ask, ask.rt.turn("main") as turn:
        await turn.run([spawn("busy", "b")])
        assert '"abort"' in (await ask.error("cancel_wait_handle", handleId="b"))["error"]
        await ask("create_task", taskId="t", taskName="T")
        assert "update_task_status" in (await ask.error("cancel_wait_handle", handleId="task_t"))["error"]


async def test_W8_cleaning_up_by_hand(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        for id, end in (("old", {}), ("failed", {"error": "no"}), ("open", None)):
            await ask.create(id)
            if end is not None:
                await ask.complete(id, **end)
        await ask.create("late", type="hook", timeoutMs=1000)
        await clock.advance(10)
        await ask.create("new")
        await ask.complete("new")
        dry = await ask("gc_wait_handles", olderThanMs=5000, dryRun=True)
        assert (dry["removedCount"], sorted(dry["handleIds"])) == (3, ["failed", "late", "old"])
        assert dry["byStatus"] == {"completed": 1, "failed": 1, "timeout": 1}
        assert dry["byType"] == {"custom": 2, "hook": 1}
        gone = await ask("gc_wait_handles", status="timeout")
        assert (gone["handleIds"], gone["archived"]) == (["late"], False)
        assert (await ask("gc_wait_handles", type="hook"))["removedCount"] == 0
        assert (await ask("gc_wait_handles", olderThanMs=5000))["removedCount"] == 2
        assert "expired" in (await ask.error("wait_for", handleId="old"))["error"]
        assert [each["id"] for each in (await ask("list_wait_handles"))["handles"]] == ["open", "new"]
        await ask.create("old")  # its id is free again


async def test_S5_nothing_goes_while_a_turn_is_open(clock: VirtualClock) -> None:
    async with calling(clock) as ask, ask.rt.turn("main"):
        await ask.create("h")
        await ask.complete("h")
        await clock.advance(1)
        assert "turn" in (await ask("gc_wait_handles"))["message"]
        assert (await ask.wait_for("h"))["status"] == "completed"


RETENTION = """
[wait_handles]
retention_secs = { completed = 60, failed = 600 }
archive = "kept/archive.jsonl"
"""


async def test_W8_retention_by_status_and_an_archive(clock: VirtualClock, tmp_path: Path) -> None:
    archive = tmp_path / "kept" / "archive.jsonl"
    async with calling(clock, config=settings(tmp_path, RETENTION)) as ask:
        await ask.create("good", metadata={"k": 1})
        await ask.create("bad")
        await ask.complete("good", result={"v": 1})
        await ask.complete("bad", error="no")
        await clock.advance(61)
        await ask.rt.registry.collect()
        (line,) = [json.loads(each) for each in archive.read_text().splitlines()]
        assert {key: line[key] for key in ("id", "type", "status", "result", "metadata")} == {
            "id": "good",
            "type": "custom",
            "status": "completed",
            "result": {"v": 1},
            "metadata": {"k": 1},
        }
        assert "expired" in (await ask.error("wait_for", handleId="good"))["error"]
        assert (await ask.wait_for("bad"))["error"] == "no"
        assert (await ask("gc_wait_handles"))["archived"] is True
        assert [json.loads(each)["id"] for each in archive.read_text().splitlines()] == ["good", "bad"]


async def test_W8_what_goes_with_the_rest_is_archived_too(clock: VirtualClock, tmp_path: Path) -> None:
    async with calling(clock, config=settings(tmp_path, RETENTION)) as ask:
        await ask.create("h", timeoutMs=1)
        await clock.advance(3700)  # the retention of all handles in memory
        await ask.rt.registry.collect()
        (line,) = (tmp_path / "kept" / "archive.jsonl").read_text().splitlines()
        assert (json.loads(line)["id"], json.loads(line)["status"]) == ("h", "timeout")
        assert "expired" in (await ask.error("wait_for", handleId="h"))["error"]


async def test_W8_what_cannot_be_archived_does_not_go(clock: VirtualClock, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file, not a directory")
    async with calling(clock, config=settings(tmp_path, RETENTION)) as ask:
        await ask.create("h")
        await ask.complete("h", result=1)
        await clock.advance(1)
        assert "archive" in (await ask.error("gc_wait_handles"))["error"]
        assert (await ask.wait_for("h"))["result"] == 1


class Counted:
    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def count(self, name: str, **labels: str) -> None:
        self.seen.append((name, labels))

    def observe(self, name: str, value: float, **labels: str) -> None:
        self.seen.append((name, value, labels))


async def test_W8_metrics_of_handles_and_waits(clock: VirtualClock) -> None:
    metrics = Counted()
    async with calling(clock, metrics=metrics) as ask:
        await ask.create("h", type="hook")
        await clock.advance(2)
        await ask.complete("h")
        await ask.wait_for("h")
        await ask.create("t", timeoutMs=1000)
        await ask.wait_for("t", timeoutMs=500)
        await clock.advance(1)
    hook, custom = {"type": "hook", "status": "completed"}, {"type": "custom", "status": "timeout"}
    assert metrics.seen == [
        ("keephold_handles_created_total", {"type": "hook"}),
        ("keephold_handles_settled_total", hook),
        ("keephold_handle_seconds", 2, hook),
        ("keephold_waits_total", {"tool": "wait_for", "status": "completed"}),
        ("keephold_wait_seconds", 0, {"tool": "wait_for", "status": "completed"}),
        ("keephold_handles_created_total", {"type": "custom"}),
        ("keephold_waits_total", {"tool": "wait_for", "status": "timeout"}),
        ("keephold_wait_seconds", 0.5, {"tool": "wait_for", "status": "timeout"}),
        ("keephold_handles_settled_total", custom),
        ("keephold_handle_seconds", 1, custom),
    ]
