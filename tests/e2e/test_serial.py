"""Serial tools and `await` in one batch: it answers, whatever the lanes are waiting for (B3, B4, A6)."""

from tests.e2e.driver import Start, until

CONFIG = r"""
[conversation.tools."*"]
source = "local"
run = "unattended"

[conversation.tools.migrate]
command = ["printf", "migrated"]
scheduling = "serial"
spawn.stateful = true

[conversation.tools.look]
command = ["sh", "-c", "until [ -e shown ]; do sleep 0.01; done; printf seen"]

[conversation.tools.deploy]
command = ["sh", "-c", '''
    question='{"id":"sure","text":"Deploy?","answer_type":"Boolean"}'
    printf '%s\n' '{"type":"waiting","content":"ready\n","question":'"$question}"
    read -r answer
    printf '%s' "$answer"
''']
wire = true
scheduling = "serial"
# Generous, so that a busy machine does not make it answer before it has ended:
spawn = { stateful = true, settle_ms = 60000, settle_max_ms = 60000 }
"""


def test_B3_an_await_of_a_serial_spawn_in_its_own_batch_answers(start: Start) -> None:
    """The await is emitted first; a parallel call, which the serial lane has to wait for, comes between."""
    turn = start(CONFIG)
    turn.begin(
        ("await", {"all": ["m"]}),
        ("look", {}),
        ("migrate", {"action": "spawn", "id": "m"}),
    )
    until(lambda: turn.running("shown"))
    (turn.directory / "shown").touch()
    waited, seen, migrated = turn.answers(3)
    assert seen.text == "seen"
    assert migrated.json["id"] == "m"
    assert waited.json == {"completed": [{"id": "m", "state": "stopped", "result": "migrated"}], "pending": []}
    assert turn.finish() == []


def test_A6_two_serial_spawns_the_first_of_which_asks_the_caller(start: Start) -> None:
    turn = start(CONFIG)
    question = {"id": "sure", "text": "Deploy?", "answer_type": "Boolean"}
    first, second, both = turn.run(
        ("deploy", {"action": "spawn", "id": "first"}),
        ("deploy", {"action": "spawn", "id": "second"}),
        ("await", {"all": ["first", "second"]}),
    )
    assert first.json == {"id": "first", "state": "waiting", "content": "ready\n", "question": question}
    assert second.json == {"id": "second", "state": "pending"}
    assert both.json == {
        "completed": [],
        "pending": [
            {"id": "first", "state": "waiting", "question": question},
            {"id": "second", "state": "pending", "behind": "first"},
        ],
        "needs_input": True,
    }
    # Answered, the first one ends and the second begins and asks in its turn: now it is the one that needs the caller.
    answered, both = turn.run(
        ("deploy", {"action": "apply", "id": "first", "input": True}),
        ("await", {"all": ["first", "second"]}),
    )
    told = '{"type":"answer","id":"sure","answer":true}'
    assert answered.json == {"id": "first", "state": "stopped", "result": told}
    (completed,), (pending,) = both.json["completed"], both.json["pending"]
    assert completed == {"id": "first", "state": "stopped", "result": told}
    assert pending == {"id": "second", "state": "waiting", "question": question}
    assert both.json["needs_input"] is True
    last = turn.one("deploy", {"action": "apply", "id": "second", "input": False})
    assert last.json["result"].endswith('"answer":false}')
    assert turn.finish() == []
