"""keephold's tools in the agents of other frameworks (G4)."""

import json
from typing import Any

import pytest
from tests.interop.foreign import CLAUDE, MCP1, MCP2, beside, told


@pytest.mark.parametrize(("framework", "place"), [("langgraph", MCP1), ("openai_agents", MCP2)])
def test_G4_a_framework_that_calls_one_at_a_time_runs_our_tools(framework: str, place: Any) -> None:
    """Calls of one answer begin in order, so `await` finds the spawns before it; errors reach the model as results."""
    seen = json.loads(told(beside(f"tests.interop.in_{framework}", place)))
    assert seen["last"] == "done"
    assert seen["offered"], "the schemas that the model gets are not ours"
    assert seen["cancelled"], "a cancelled call was not cancelled, or still runs"
    (_, app, _), (_, docs, _), (_, both, _), (_, failed, is_error), (_, wrong, _) = seen["read"]
    assert [id for id, *_ in seen["read"]] == ["1", "2", "3", "4", "5"]
    assert (json.loads(app)["id"], json.loads(docs)["id"]) == ("app", "docs")
    done = json.loads(both)["completed"]
    assert [each["result"] for each in done] == ["app built for release", "docs built for debug"]
    assert "no space" in failed and is_error in (True, None)
    assert "colour" in wrong


def test_G4_the_claude_agent_sdk_serves_our_tools_in_its_process() -> None:
    """The runtime's prompter permits a call: the SDK refuses questions, though Claude Code says that it takes them."""
    seen = json.loads(told(beside("tests.interop.in_claude_agent", CLAUDE, MCP2)))
    assert {"await", "build", "fail", "hang", "read_output"} <= set(seen["offered"])
    (_, app, _), _, (_, both, _), (_, failed, is_error), (_, wrong, _), (_, deployed, _) = seen["read"]
    assert json.loads(app)["id"] == "app" and seen["kept"] == ["app", "docs", "x"]
    done = json.loads(both)["completed"]
    assert [each["result"] for each in done] == ["app built for release", "docs built for debug"]
    assert "no space" in failed and is_error
    assert "colour" in wrong
    assert deployed == "deployed"
