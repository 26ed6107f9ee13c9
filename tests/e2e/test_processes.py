"""Nothing of a tool survives: not its abort, not its end, not the end of the runtime (C7, F3, R2)."""

from typing import Any

import pytest
from tests.e2e.driver import Start, TurnProcess, told_to_end, until

# Five shells that ignore SIGTERM: a child, a grandchild, one in a session of its own and one below that, and the first.
CONFIG = """
[conversation.tools."*"]
source = "local"
run = "unattended"

[conversation.tools.stubborn]
command = ["sh", "-c", '''
    trap '' TERM HUP INT
    forever='while :; do sleep 300; done'
    sh -c "$forever" &
    sh -c "sh -c '$forever' & wait" &
    setsid sh -c "$forever" </dev/null >/dev/null 2>&1 &
    setsid sh -c "setsid sh -c '$forever' & wait" </dev/null >/dev/null 2>&1 &
    echo up
    eval "$forever"
''']
spawn = { stateful = true, abort_grace_ms = 200 }

[conversation.tools.leaver]
command = ["sh", "-c", "sleep 300 & echo done"]
spawn = { stateful = true, abort_grace_ms = 200000 }
"""
TREE = 5


def grown(turn: TurnProcess, trees: int = 1) -> bool:
    sleeping = [pid for pid, command in turn.survivors().items() if command == "sleep 300"]
    return len(sleeping) == trees * TREE


def test_C7_an_aborted_tree_that_ignores_SIGTERM_is_gone_when_the_abort_is_answered(start: Start) -> None:
    turn = start(CONFIG)
    turn.one("stubborn", {"action": "spawn", "id": "s"})
    until(lambda: grown(turn))
    reply = turn.one("stubborn", {"action": "abort", "id": "s"})
    assert turn.running("sleep 300") == []  # the sleeps, and the shells, which have it in their scripts
    assert told_to_end(reply.json, "Aborted by the assistant.", "abort")
    kept = turn.one("read_output", {"id": "s"})
    assert kept.json["content"] == "up\n"  # S3: the output is kept
    assert turn.finish() == []


def test_R2_nothing_is_left_a_second_after_the_runtime_was_killed(start: Start) -> None:
    turn = start(CONFIG)
    turn.run(
        ("stubborn", {"action": "spawn", "id": "s"}),
        ("stubborn", {"action": "spawn", "id": "t"}),
    )
    until(lambda: grown(turn, trees=2))
    turn.process.kill()
    turn.process.wait()
    until(lambda: not turn.survivors(), lambda: str(turn.survivors()))


@pytest.mark.parametrize("spawned", [False, True], ids=["one-shot", "spawned"])
def test_F3_a_command_ends_with_its_first_process_and_takes_what_it_left_along(start: Start, spawned: bool) -> None:
    turn = start(CONFIG)
    turn.one("read_output", {"id": "nothing"})  # the process is up: what follows is not its start
    calls: list[tuple[str, Any]] = [("leaver", {})]
    if spawned:
        calls = [("leaver", {"action": "spawn", "id": "l"}), ("await", {"all": ["l"]})]
    answer = turn.run(*calls)[-1]
    assert turn.running("sleep 300") == []
    if spawned:
        assert answer.json["completed"] == [{"id": "l", "state": "stopped", "result": "done\n"}]
    else:
        assert answer.text == "done\n"
    assert turn.finish() == []
