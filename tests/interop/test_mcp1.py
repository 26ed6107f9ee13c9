"""The client of mcp 1.x drives tasks of SEP-1686 and the wait tools (M2, W)."""

import json
from typing import Any

import pytest
from tests.interop.foreign import mcp1, told


@pytest.fixture(scope="module")
def report(url: str) -> dict[str, Any]:
    """What came of everything it tried."""
    report: dict[str, Any] = json.loads(told(mcp1("mcp1_client.py", url)))
    return report


def test_M2_the_server_says_what_may_be_a_task(report: dict[str, Any]) -> None:
    assert report["protocol"] == "2025-11-25"
    assert report["capability"] is True
    assert report["support"]["slow_compute"] == "optional"
    assert report["support"]["failing_job"] == "required"
    assert report["greet"] == ["Hello, World!"]


def test_M2_a_task_is_followed_to_its_result(report: dict[str, Any]) -> None:
    task = report["slow_compute"]
    assert task["statuses"] == ["working", "completed"]
    assert task["ttl"] > 0
    assert (task["texts"], task["isError"]) == (["computed in 1 s"], False)
    assert task["meta"] == {"io.modelcontextprotocol/related-task": {"taskId": task["taskId"]}}


def test_M2_a_tool_error_is_a_result_and_a_protocol_error_is_an_error(report: dict[str, Any]) -> None:
    assert report["failing_job"]["texts"] == ["this job always fails"]
    assert report["failing_job"]["isError"] is True
    assert report["protocol_error_job"]["status"] == "failed"
    assert report["protocol_error_job"]["code"] == -32603


def test_M2_a_task_asks_while_its_result_is_waited_for(report: dict[str, Any]) -> None:
    task = report["confirm_delete"]
    assert "input_required" in task["statuses"]
    assert report["asked"] == ["confirm"]
    assert (task["texts"], task["status"]) == (["deleted a.txt"], "completed")


def test_M2_a_task_is_cancelled_and_listed(report: dict[str, Any]) -> None:
    assert report["cancelled"] == {"status": "cancelled", "listed": True}
    assert report["unknown"] == -32602


def test_W_handles_are_waited_for_and_completed(report: dict[str, Any]) -> None:
    waited = report["waited"]
    one, multiple = json.loads(waited["one"][0]), json.loads(waited["multiple"][0])
    assert (one["handleId"], one["status"], one["result"]) == ("mcp1-one", "completed", {"of": "one"})
    assert (multiple["mode"], multiple["status"]) == ("all", "completed")
    assert (multiple["completedCount"], multiple["totalCount"]) == (2, 2)
    assert waited["late_is_error"] is True  # W6
