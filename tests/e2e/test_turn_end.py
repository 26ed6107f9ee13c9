"""The end of the input ends the turn: each live handle by its tool's policy, and nothing survives (T1, T3, T4, L2)."""

from typing import Any

from tests.e2e.driver import Start, told_to_end

# `aborted` opens the gate for `awaited` when it is told to end: so the end of the turn has begun when that one goes on.
CONFIG = """
[conversation.tools."*"]
source = "local"
run = "unattended"
spawn.stateful = true

[conversation.tools.aborted]
command = ["sh", "-c", "trap 'touch gate; exit' TERM; touch trapped; while :; do sleep 0.01; done"]
spawn.lifecycle.on_turn_end = "abort"

[conversation.tools.awaited]
command = ["sh", "-c", "until [ -e gate ]; do sleep 0.01; done; printf 'passed the gate'"]
spawn.lifecycle.on_turn_end = "await"

[conversation.tools.failing]
command = ["sh", "-c", "until [ -e gate ]; do sleep 0.01; done; exit 3"]
spawn.lifecycle.on_turn_end = "await"

[conversation.tools.kept]
command = "sleep 301"
spawn.lifecycle.on_turn_end = "keep"

[conversation.tools.inquired]
command = "sleep 302"

[conversation.tools.late]
command = "sleep 303"
spawn.lifecycle = { on_turn_end = "await", timeout_secs = 0.2 }

[conversation.tools.reader]
command = "cat"
spawn = { stdin = true, lifecycle.on_turn_end = "await" }
"""


def aborted(handle: dict[str, Any], why: str = "") -> bool:
    return told_to_end(handle, f"Aborted at the end of the turn{why}.", "turn_end")


def test_T3_each_handle_ends_by_its_own_policy(start: Start) -> None:
    turn = start(CONFIG)
    tools = ("awaited", "kept", "failing", "inquired", "aborted")
    turn.run(*((tool, {"action": "spawn", "id": tool}) for tool in tools))
    while not (turn.directory / "trapped").exists():
        turn.one("kept", {"action": "fetch", "id": "kept"})
    handles = {handle.pop("id"): handle for handle in turn.finish()}
    assert set(handles) == set(tools)
    assert handles["awaited"] == {"state": "stopped", "result": "passed the gate"}
    assert handles["failing"] == {
        "state": "stopped",
        "result": "The command ended with exit code 3.",
        "is_error": True,
    }
    assert aborted(handles["aborted"])
    assert aborted(handles["inquired"])  # nobody is there to be asked
    assert handles["kept"] == {"state": "running"}  # it outlives the turn; `finish` saw that it went with the process


def test_T3_what_is_awaited_too_long_is_aborted(start: Start) -> None:
    turn = start(CONFIG)
    turn.one("late", {"action": "spawn", "id": "late"})
    (late,) = turn.finish()
    assert late["result"].startswith("Aborted at the end of the turn: it was waited for for ")


def test_A6_what_waits_for_the_caller_is_not_awaited(start: Start) -> None:
    """Its policy is `await`, with the default timeout of 300 s; but nobody will ever send it anything."""
    turn = start(CONFIG)
    turn.one("reader", {"action": "spawn", "id": "r"})
    (reader,) = turn.finish()
    assert aborted(reader, ": it waited for you")


def test_T4_a_handle_that_has_stopped_is_not_told_again(start: Start) -> None:
    turn = start(CONFIG)
    turn.one("reader", {"action": "spawn", "id": "r"})
    turn.one("reader", {"action": "abort", "id": "r"})
    assert turn.finish() == []


def test_L2_the_end_of_an_empty_input_is_the_end_of_a_turn(start: Start) -> None:
    assert start(CONFIG).finish() == []
