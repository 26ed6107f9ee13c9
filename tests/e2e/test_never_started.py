"""Spawns that never start: whoever awaits them hears why (B6), and a rejected batch has done nothing (B2)."""

import pytest
from tests.e2e.driver import Start

CONFIG = """
[conversation.tools."*"]
source = "local"
run = "unattended"
spawn.stateful = true

[conversation.tools.guarded]
command = "touch guarded"
run = "ask"

[conversation.tools.particular]
command = "touch particular"
parameters.path = { type = "string", required = true }

[conversation.tools.missing]
command = "keephold-no-such-program"

[conversation.tools.toucher]
command = ["touch", "{{ tool.arguments.path }}"]
parameters.path = { type = "string", required = true }

[conversation.tools.sleeper]
command = "sleep 300"
"""


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        ("guarded", ["permission", 'run = "unattended"', "[conversation.tools.guarded]"]),
        ("particular", ["missing `path`"]),
        ("missing", ["keephold-no-such-program", "PATH"]),
    ],
    ids=["denied", "invalid", "missing program"],
)
def test_B6_an_await_on_a_spawn_that_never_starts_answers_with_its_outcome(
    start: Start, tool: str, told: list[str]
) -> None:
    turn = start(CONFIG)
    spawned, waited = turn.run((tool, {"action": "spawn", "id": "x"}), ("await", {"all": ["x"]}))
    assert spawned.json["state"] == "stopped"
    assert spawned.json["is_error"] is True
    for words in told:
        assert words in spawned.json["result"]
    told_once = {key: value for key, value in spawned.json.items() if key != "try"}
    assert waited.json == {"completed": [told_once], "pending": []}
    assert not (turn.directory / tool).exists()
    assert turn.finish() == []


def test_B2_two_spawns_with_one_id_reject_the_batch_and_nothing_ran(start: Start) -> None:
    turn = start(CONFIG)
    answers = turn.run(
        ("toucher", {"action": "spawn", "id": "twice", "path": "first"}),
        ("toucher", {"action": "spawn", "id": "once", "path": "second"}),
        ("toucher", {"path": "third"}),
        ("toucher", {"action": "spawn", "id": "twice", "path": "fourth"}),
        ("await", {"all": ["once"]}),
        ("nonsense", {}),
    )
    assert all(answer.is_error and "`twice`" in answer.text for answer in answers), answers
    assert turn.one("await", {"all": ["once"]}).text.startswith("Handle `once` not found")  # not even registered
    assert turn.finish() == []
    assert [name for name in ("first", "second", "third", "fourth") if (turn.directory / name).exists()] == []


def test_B2_an_id_that_is_active_rejects_the_batch_and_leaves_the_handle_alone(start: Start) -> None:
    turn = start(CONFIG)
    turn.one("sleeper", {"action": "spawn", "id": "busy"})
    answers = turn.run(
        ("toucher", {"path": "first"}),
        ("toucher", {"action": "spawn", "id": "busy", "path": "second"}),
    )
    assert all(answer.is_error and "`busy`" in answer.text for answer in answers), answers
    assert turn.one("sleeper", {"action": "fetch", "id": "busy"}).json == {"id": "busy", "state": "running"}
    assert len(turn.running("sleep 300")) == 1
    turn.one("sleeper", {"action": "abort", "id": "busy"})
    again, waited = turn.run(  # S6: a stopped id may be used again
        ("toucher", {"action": "spawn", "id": "busy", "path": "third"}), ("await", {"all": ["busy"]})
    )
    assert not again.is_error
    assert waited.json["completed"] == [{"id": "busy", "state": "stopped", "result": ""}]
    assert turn.finish() == []
    assert [name for name in ("first", "second", "third") if (turn.directory / name).exists()] == ["third"]
