"""ext-tasks, the official requester of tasks, drives the fixture server in both eras (M2, W)."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.interop.foreign import script, told
from tests.interop.shipped import three
from tests.soak import soak


def _report(url: str, era: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(told(script("ext_tasks.mjs", url, era)))
    return report


def _task(*texts: str, is_error: bool = False) -> dict[str, Any]:
    return {"kind": "task", "status": "completed", "texts": list(texts), "isError": is_error}


def _waited(report: dict[str, Any]) -> dict[str, Any]:
    waited = report["wait_for_multiple"]
    assert (waited["status"], waited["isError"]) == ("completed", False)
    reply: dict[str, Any] = json.loads(waited["texts"][0])
    return {name: reply[name] for name in ("mode", "status", "completedCount", "totalCount")}


ALL_OF_TWO = {"mode": "all", "status": "completed", "completedCount": 2, "totalCount": 2}


def _is_modern(report: dict[str, Any]) -> None:
    assert report["capabilities"]["inputResponses"] is True  # it takes the server for one with tasks of this era
    assert report["greet"] == {"kind": "immediate", "status": "completed", "texts": ["Hello, World!"], "isError": False}
    assert report["slow_compute"] == _task("computed in 1 s")
    assert report["failing_job"] == _task("this job always fails", is_error=True)
    assert report["protocol_error_job"]["status"] == "failed"
    assert report["protocol_error_job"]["error"]["code"] == -32603
    assert report["confirm_delete"] == _task("deleted a.txt")
    assert report["multi_input"] == _task("Ada, confirmed")
    assert report["asked"] == ["confirm", "name", "confirm"]
    assert report["cancelled"] == {"kind": "task", "status": "cancelled"}
    assert report["found_again"] == _task("computed in 1 s")  # by another client
    assert _waited(report) == ALL_OF_TWO


def _is_legacy(report: dict[str, Any]) -> None:
    assert report["capabilities"]["inventory"] == "server-list"  # it takes the server for one with SEP-1686
    assert report["greet"]["texts"] == ["Hello, World!"]
    assert report["slow_compute"] == _task("computed in 1 s")
    assert report["failing_job"]["kind"] == report["protocol_error_job"]["kind"] == "task"
    assert report["protocol_error_job"]["status"] == "failed"
    assert report["cancelled"] == {"kind": "task", "status": "cancelled"}
    assert report["found_again"] == _task("computed in 1 s")
    assert _waited(report) == ALL_OF_TWO


ERAS = [("modern", _is_modern), ("legacy", _is_legacy)]


@pytest.mark.parametrize(("era", "is_right"), ERAS)
def test_M2_ext_tasks_drives_tasks(url: str, era: str, is_right: Callable[[dict[str, Any]], None]) -> None:
    is_right(_report(url, era))


@soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("era", "is_right"), ERAS)
async def test_M2_ext_tasks_drives_tasks_of_three_servers_while_one_of_them_is_killed(
    tmp_path: Path, store: str, era: str, is_right: Callable[[dict[str, Any]], None]
) -> None:
    async with three(tmp_path, store) as proxy:
        for after in (2, 6, 12, 20):
            async with proxy.losing_one(after):
                report = await asyncio.to_thread(_report, proxy.url, era)
            is_right(report)
        assert proxy.killed
