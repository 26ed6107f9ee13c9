"""The command lines of the MCP Inspector drive the fixture server (M2, W).

`mcp-inspector --cli` makes one call; it cannot be asked anything. `mcpdo`, of the same package, keeps a connection in a
daemon and answers what a call asks.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.interop.foreign import INSPECTOR, MCPDO, NPM_ROOT, need, node, told
from tests.patience import PATIENCE

TOOL_FAILED = 5
"""The exit code of `--cli` for a result that is an error."""


@pytest.fixture
def call(url: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Call a tool with `mcp-inspector --cli`."""

    def call(era: str, tool: str, **arguments: Any) -> subprocess.CompletedProcess[str]:
        options = ["--format", "json", "--quiet", "--protocol-era", era, "--method", "tools/call", "--tool-name", tool]
        values = ["--tool-args-json", json.dumps(arguments)]
        return node(INSPECTOR, "--cli", url, *options, *values, environment={"HOME": str(tmp_path)})

    return call


def _text(said: str) -> str:
    text: str = json.loads(said)["result"]["content"][0]["text"]
    return text


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_M2_a_call_that_takes_long(call: Callable[..., subprocess.CompletedProcess[str]], era: str) -> None:
    assert _text(told(call(era, "slow_compute", seconds=1))) == "computed in 1 s"


def test_M2_a_tool_that_is_always_a_task(call: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    run = call("modern", "failing_job")
    assert (run.returncode, _text(run.stdout)) == (TOOL_FAILED, "this job always fails")


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_Q2_a_client_that_cannot_ask_its_user_is_told_so(
    call: Callable[..., subprocess.CompletedProcess[str]], era: str
) -> None:
    run = call(era, "confirm_delete", filename="a.txt")
    assert run.returncode == TOOL_FAILED
    assert "nobody is there to answer it" in _text(run.stdout)


def test_M1_every_schema_is_one_that_clients_can_use(url: str, tmp_path: Path) -> None:
    options = ["--format", "json", "--method", "tools/list", "--strict"]
    listed = json.loads(told(node(INSPECTOR, "--cli", url, *options, environment={"HOME": str(tmp_path)})))
    assert {"slow_compute", "await", "wait_for_multiple"} <= {tool["name"] for tool in listed["result"]["tools"]}


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_W_several_handles_are_waited_for(call: Callable[..., subprocess.CompletedProcess[str]], era: str) -> None:
    both = [f"inspector-{era}-1", f"inspector-{era}-2"]
    for name in both:
        told(call(era, "create_wait_handle", handleId=name, type="custom"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call, era, "wait_for_multiple", handleIds=both, mode="all", timeoutMs=20000)
        for name in both:
            told(call(era, "complete_wait_handle", handleId=name, result={"of": name}))
        reply = json.loads(_text(told(waiting.result())))
    assert (reply["mode"], reply["status"]) == ("all", "completed")
    assert (reply["completedCount"], reply["totalCount"]) == (2, 2)


@pytest.fixture
def mcpdo(url: str, tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Use one connection of `mcpdo`, kept by a daemon that is this test's own and ends with it."""
    need(NPM_ROOT)
    place = tmp_path / "daemon"
    place.mkdir(mode=0o700)
    environment = {"HOME": str(tmp_path), "MCP_INSPECTOR_DAEMON_DIR": str(place), "MCP_INSPECTOR_SECRET_STORE": "file"}

    def mcpdo(*arguments: str) -> dict[str, Any]:
        run = node(MCPDO, "--format", "json", "--connection", "fixture", *arguments, environment=environment)
        reply: dict[str, Any] = json.loads(told(run))
        return reply

    mcpdo("connect", url, "--era", "modern")
    daemon = psutil.Process(mcpdo("daemon", "status")["pid"])
    yield mcpdo
    mcpdo("daemon", "stop")
    psutil.wait_procs([daemon], timeout=PATIENCE)
    assert not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE


def test_M2_a_task_that_needs_input(mcpdo: Callable[..., dict[str, Any]]) -> None:
    asked = mcpdo("tools/call", "confirm_delete", "filename:=a.txt")["elicitationPending"]
    assert (asked["origin"], asked["toolName"]) == ("task-input-required", "confirm_delete")
    assert list(asked["requestedSchema"]["properties"]) == ["confirm"]
    answered = mcpdo("elicitation/respond", asked["elicitationId"], "confirm:=true")
    assert answered["content"][0]["text"] == "deleted a.txt"


def test_M2_a_task_that_needs_two_inputs(mcpdo: Callable[..., dict[str, Any]]) -> None:
    said, answers, fields = mcpdo("tools/call", "multi_input"), {"name": "Ada", "confirm": "true"}, []
    while "elicitationPending" in said:
        asked = said["elicitationPending"]
        field = next(iter(asked["requestedSchema"]["properties"]))
        fields.append(field)
        said = mcpdo("elicitation/respond", asked["elicitationId"], f"{field}:={answers[field]}")
    assert sorted(fields) == ["confirm", "name"]
    assert said["content"][0]["text"] == "Ada, confirmed"
