"""`keephold acp-check`: what it prints, and its exit codes (X5)."""

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from keephold import cli
from keephold.acp.check import CHECKS

AGENT = [sys.executable, "-I", "-S", str(Path(__file__).parent / "agents" / "broken.py")]
PROMPTS = ["--prompt", "talk", "--permission-prompt", "may I", "--slow-prompt", "slow"]


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "acp-check", ("keephold.cli.acp_check:acp_check", "Check any ACP agent."))


def check(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["acp-check", *arguments])


def test_X5_all_is_well_is_exit_code_0() -> None:
    result = check(*PROMPTS, "--only", "updates", "--only", "initialize", *AGENT, "none")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [
        ["passed", "initialize:"],
        ["passed", "prompt:"],
        ["passed", "updates-before-response:"],
        ["passed", "no-late-updates:"],
        ["passed", "tool-call-order:"],
    ]
    assert lines[-1] == "little 1: 5 passed"


def test_X5_a_should_that_fails_is_exit_code_3_with_the_reason_and_the_messages() -> None:
    result = check(*PROMPTS, "--only", "no-late-updates", "--only", "load-session", *AGENT, "late-update")
    assert result.exit_code == 3
    skipped, failed, expected, response, late, total = result.stdout.splitlines()
    assert skipped == "skipped  load-session: the agent does not offer loadSession"
    assert failed == "failed   no-late-updates (SHOULD): an update of the turn came after the answer"
    assert expected.strip() == "expected: no update of the turn comes after the answer to the prompt"
    assert response.strip().startswith("← ") and '"stopReason":"end_turn"' in response
    assert late.strip().startswith("← ") and '"three"' in late
    assert total == "little 1: 1 SHOULD failed, 1 skipped"


def test_X5_a_must_that_fails_is_exit_code_1() -> None:
    result = check(*PROMPTS, "--only", "turn-complete-id", "--only", "turn-complete-once", *AGENT, "wrong-id")
    assert result.exit_code == 1
    assert "failed   turn-complete-id (MUST): " in result.stdout
    assert result.stdout.splitlines()[-1] == "little 1: 1 passed, 1 MUST failed"


DEAD = "echo I have no key >&2; exit 3"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--only", "turn_complete", "sh", "-c", DEAD], "ended with exit code 3; it printed:\nI have no key\n"),
        (["--only", "updates", "sh", "-c", DEAD], "I have no key\n"),
        (["--json", "--only", "updates", "sh", "-c", DEAD], "I have no key\n"),
        (["--only", "load-session", *PROMPTS, *AGENT, "none"], "nothing was checked: the agent does not offer it\n"),
        (["--only", "new-session", *AGENT, "wants-login"], "choose a method with --auth: `key`\n"),
        (["--only", "updates", *AGENT, "wants-login"], "choose a method with --auth: `key`\n"),
    ],
)
def test_X5_an_agent_of_which_nothing_was_checked_has_not_passed(arguments: list[str], why: str) -> None:
    result = check(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("nothing was checked: ") and result.stderr.endswith(why)
    if "--json" in arguments:
        assert json.loads(result.stdout)["ok"] is False


DEAD_REASON = f"the agent `sh -c '{DEAD}'` ended with exit code 3; it printed:\n           I have no key"
ECHO_REASON = "the agent echoes its input: "


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["sh", "-c", DEAD], DEAD_REASON),
        (["cat"], ECHO_REASON),
        ([*AGENT, "text-version"], "protocolVersion must be an integer"),
    ],
)
def test_X5_after_a_failed_initialize_nothing_else_is_checked(command: list[str], reason: str) -> None:
    result = check(*command)
    assert result.exit_code == 2
    assert result.stdout.startswith(f"failed   initialize (MUST): {reason}")
    rest = f"{len(CHECKS) - 1} checks ({CHECKS[1].name} … {CHECKS[-1].name})"
    assert result.stdout.splitlines()[-2] == f"skipped  {rest}: there was no handshake; see `initialize`"
    assert result.stdout.count("skipped  ") == 1
    assert result.stderr == "nothing was checked: `initialize` failed; its reason is above\n"


def test_X5_the_error_of_an_agent_that_makes_no_session_is_shown_once() -> None:
    topics = ["--only", "sessions", "--only", "updates", "--only", "malformed", "--only", "unknown-notification"]
    result = check(*topics, *AGENT, "no-model")
    assert result.exit_code == 1
    reason = "session/new was answered with an error: no model is configured (-32603)"
    assert f"failed   new-session (MUST): {reason}\n" in result.stdout
    assert (result.stdout.count("failed  "), result.stdout.count("(-32603)")) == (1, 1)
    assert "skipped  6 checks (prompt … malformed): no session could be made; see `new-session`\n" in result.stdout
    alone = check("--only", "malformed", *AGENT, "no-model")
    assert (alone.exit_code, alone.stderr) == (2, f"nothing was checked: {reason}\n")


def test_X5_an_agent_that_requires_a_login_is_checked_after_it() -> None:
    result = check("--auth", "key", *PROMPTS, "--only", "new-session", "--only", "prompt", *AGENT, "wants-login")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "little 1: 2 passed")
    result = check("--auth", "cheese", "--only", "new-session", *AGENT, "wants-login")
    assert result.exit_code == 2
    assert "refused to authenticate: no such method (-32602); choose a method with --auth: `key`" in result.stderr


def test_X5_what_an_agent_prints_is_not_obeyed_by_the_terminal() -> None:
    script = "printf '\\033[2J\\033]0;owned\\007bad\\n' >&2; exit 3"
    result = check("--only", "initialize", "sh", "-c", script)
    assert result.exit_code == 2
    assert "exit code 3" in result.stdout and "bad" in result.stdout
    assert "\x1b" not in result.stdout and "\x07" not in result.stdout


def test_X5_json_is_one_object() -> None:
    result = check("--json", *PROMPTS, "--only", "turn-complete-id", *AGENT, "wrong-id")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["ok"], report["passed"], report["failed"], report["skipped"]) == (False, 0, 1, 0)
    assert report["agent"] == {"name": "little", "version": "1"}
    (found,) = report["checks"]
    assert (found["name"], found["topic"], found["outcome"]) == ("turn-complete-id", "turn_complete", "failed")
    assert [message["from"] for message in found["messages"]] == ["client", "agent"]


def test_X5_options_behind_the_command_are_the_agents(tmp_path: Path) -> None:
    result = check("--only", "initialize", "sh", "-c", 'echo "$0 $1" >&2; exit 1', "--json", "--timeout")
    assert "--json --timeout" in result.stdout


def test_X5_the_reference_lists_every_check_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "acp-check.md").read_text()
    listed = re.findall(r"^\| `([\w-]+)` \| `(\w+)` \| (\w+) \| (.*) \|$", page, re.MULTILINE)
    assert listed == [(check.name, check.topic, check.level, check.says) for check in CHECKS]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-agent-anywhere"], "could not be started: No such file"),
        ([], "Missing argument 'COMMAND...'"),
        (["--timeout", "0", "x"], "not in the range"),
        (["--only", "no-late-update", "x"], "Did you mean `no-late-updates`?"),
        (["--only", "zzz", "x"], "There are:"),
    ],
)
def test_X5_wrong_usage_and_an_agent_that_cannot_be_started_are_exit_code_2(arguments: list[str], words: str) -> None:
    result = check(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
