"""SIGINT and SIGTERM cancel the turn: what is open is answered, everything ends, and the exit code tells (B7, T5)."""

import signal
from typing import Any

import pytest
from tests.e2e.driver import Start, TurnProcess, told_to_end, until
from tests.patience import PATIENCE

CONFIG = """
[conversation.tools."*"]
source = "local"
run = "unattended"

[conversation.tools.once]
command = "sleep 300"

[conversation.tools.live]
command = "sleep 301"
spawn = { stateful = true, lifecycle.on_turn_end = "await" }

[conversation.tools.kept]
command = "sleep 302"
spawn = { stateful = true, lifecycle.on_turn_end = "keep" }

[conversation.tools.herald]
command = ["sh", "-c", "trap 'touch ending; exit' TERM; touch trapped; while :; do sleep 0.01; done"]
spawn = { stateful = true, lifecycle.on_turn_end = "abort" }

[conversation.tools.stubborn]
command = ["sh", "-c", "trap 'touch ending' TERM; touch trapped; while :; do sleep 0.01; done"]
spawn = { stateful = true, abort_grace_ms = 300 }
"""

both_signals = pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])


def cancelled(handle: dict[str, Any]) -> bool:
    return told_to_end(handle, "Aborted: the turn was cancelled.", "cancel")


def exits(turn: TurnProcess, code: int) -> None:
    assert turn.process.wait(PATIENCE) == code
    turn.leaves_nothing()


@both_signals
def test_B7_a_signal_in_the_middle_of_a_batch(start: Start, number: int, code: int) -> None:
    turn = start(CONFIG)
    turn.begin(
        ("live", {"action": "spawn", "id": "l"}),
        ("once", {}),
        ("kept", {"action": "spawn", "id": "k"}),
        ("await", {"all": ["l"]}),
    )
    until(lambda: all(turn.running(f"sleep {secs}") for secs in (300, 301, 302)))
    turn.process.send_signal(number)
    spawned, once, kept, waited = turn.answers(4)
    assert spawned.json == {"id": "l", "state": "running"}
    assert kept.json == {"id": "k", "state": "running"}
    assert once.text == waited.text == "Tool execution cancelled."
    ended, kept_on = turn.ended()
    assert cancelled(ended)  # T5: `await` counts as `abort`
    assert kept_on == {"id": "k", "state": "running"}
    exits(turn, code)


@both_signals
def test_T5_a_signal_between_batches(start: Start, number: int, code: int) -> None:
    turn = start(CONFIG)
    turn.one("live", {"action": "spawn", "id": "l"})
    turn.process.send_signal(number)
    (ended,) = turn.ended()
    assert cancelled(ended)
    exits(turn, code)


@both_signals
def test_T5_a_signal_while_the_turn_ends(start: Start, number: int, code: int) -> None:
    """The input has ended and a handle is awaited, for up to 300 s: it is not, any more."""
    turn = start(CONFIG)
    calls: list[tuple[str, Any]] = [(tool, {"action": "spawn", "id": tool}) for tool in ("live", "herald")]
    turn.run(*calls)
    until(lambda: (turn.directory / "trapped").exists())
    assert turn.process.stdin is not None
    turn.process.stdin.close()
    until(lambda: (turn.directory / "ending").exists())
    assert turn.running("sleep 301")
    turn.process.send_signal(number)
    live, herald = turn.ended()
    assert cancelled(live)
    assert herald["ended_by"] == "turn_end"
    exits(turn, code)


@both_signals
def test_T5_a_second_signal_waits_for_nobody(start: Start, number: int, code: int) -> None:
    turn = start(CONFIG)
    turn.one("stubborn", {"action": "spawn", "id": "s"})
    until(lambda: (turn.directory / "trapped").exists())
    turn.process.send_signal(number)
    until(lambda: (turn.directory / "ending").exists())
    turn.process.send_signal(number)
    assert turn.process.wait(PATIENCE) == code
    until(lambda: not turn.survivors(), lambda: str(turn.survivors()))


def test_R2_the_reader_of_the_answers_goes_away(start: Start) -> None:
    turn = start(CONFIG)
    turn.one("live", {"action": "spawn", "id": "l"})
    assert turn.process.stdout is not None
    turn.process.stdout.close()
    turn.begin(("live", {"action": "fetch", "id": "l"}))
    assert turn.process.wait(PATIENCE) not in (0, None)
    until(lambda: not turn.survivors(), lambda: str(turn.survivors()))
