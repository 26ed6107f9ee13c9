"""The two examples that `await` was asked for with, by real commands through `keephold turn`, each in one round."""

from tests.e2e.driver import Start, told_to_end

# Each of the two builds waits for the other one to have begun: neither ends unless both run at the same time.
CONFIG = """
[conversation.tools."*"]
source = "local"
run = "unattended"

[conversation.tools.cargo_check]
command = ["sh", "-c", "touch check; until [ -e test ]; do sleep 0.01; done; printf 'ok, 0 warnings'"]
parameters.package.type = "string"
spawn.stateful = true

[conversation.tools.cargo_test]
command = ["sh", "-c", "touch test; until [ -e check ]; do sleep 0.01; done; printf 'test result: ok. 42 passed'"]
parameters.package.type = "string"
spawn.stateful = true

[conversation.tools.crate_search]
command = ["printf", "tokio, async-std, ..."]
parameters.query.type = "string"
spawn.stateful = true

[conversation.tools.github_code_search]
command = "sleep 300"
parameters.query.type = "string"
spawn.stateful = true
"""


def test_A2_two_builds_and_await_all_in_one_round(start: Start) -> None:
    turn = start(CONFIG)
    check, test, both = turn.run(
        ("cargo_check", {"action": "spawn", "id": "check", "package": "jp_cli"}),
        ("cargo_test", {"action": "spawn", "id": "test", "package": "jp_cli"}),
        ("await", {"all": ["check", "test"]}),
    )
    assert check.json == {"id": "check", "state": "running"}
    assert test.json == {"id": "test", "state": "running"}
    assert both.json == {
        "completed": [
            {"id": "check", "state": "stopped", "result": "ok, 0 warnings"},
            {"id": "test", "state": "stopped", "result": "test result: ok. 42 passed"},
        ],
        "pending": [],
    }
    assert turn.finish() == []


def test_A2_a_race_in_one_round_and_the_loser_runs_on(start: Start) -> None:
    turn = start(CONFIG)
    crates, github, first = turn.run(
        ("crate_search", {"action": "spawn", "id": "crates", "query": "async runtime"}),
        ("github_code_search", {"action": "spawn", "id": "github", "query": "async runtime"}),
        ("await", {"any": ["crates", "github"]}),
    )
    assert crates.json == {"id": "crates", "state": "running"}
    assert github.json == {"id": "github", "state": "running"}
    assert first.json == {
        "completed": [{"id": "crates", "state": "stopped", "result": "tokio, async-std, ..."}],
        "pending": [{"id": "github", "state": "running"}],
    }
    assert len(turn.running("sleep 300")) == 1
    (loser,) = turn.finish()
    assert loser["id"] == "github"
    assert told_to_end(loser, "Aborted at the end of the turn.", "turn_end")
