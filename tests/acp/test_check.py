"""The conformance kit: a correct agent passes, and each broken one is found out by the checks it concerns (X5)."""

import sys
from pathlib import Path

import pytest

from keephold.acp.check import CHECKS, Report, Settings, run
from keephold.errors import KeepholdError

AGENTS = Path(__file__).parent / "agents"
LONG, SHORT = 20.0, 5.0
"""Seconds for an answer: plenty, and for agents that will never give one."""


async def examine(defect: str, timeout: float = LONG, only: tuple[str, ...] = ()) -> Report:
    command = (sys.executable, "-I", "-S", str(AGENTS / "broken.py"), defect)
    settings = Settings(command, timeout, prompt="talk", permission_prompt="may I", slow_prompt="slow")
    return await run(settings, only)


def names(report: Report, outcome: str) -> set[str]:
    return {result.name for result in report.checks if result.outcome == outcome}


def why(report: Report, name: str) -> str:
    (result,) = [result for result in report.checks if result.name == name]
    return result.why


SIGNALS = {check.name for check in CHECKS if check.topic == "turn_complete"}
OPTIONAL = {"load-session", "resume-session", "list-sessions", "close-session"}
"""What the little agent does not offer."""


async def test_X5_a_correct_agent_passes() -> None:
    report = await examine("none")
    assert names(report, "failed") == set()
    assert names(report, "skipped") == OPTIONAL
    assert report.ok and report.agent == {"name": "little", "version": "1"}
    assert [result.name for result in report.checks] == [check.name for check in CHECKS]


async def test_X5_what_an_agent_does_not_offer_is_skipped_with_the_reason() -> None:
    report = await examine("no-signal")
    assert names(report, "failed") == set()
    assert names(report, "skipped") == OPTIONAL | SIGNALS
    assert "offers neither" in why(report, "turn-complete-once")
    assert "loadSession" in why(report, "load-session")


DEFECTS = {
    "late-update": {"no-late-updates": "came after the answer"},
    "double-signal": {"turn-complete-once": "2 turn_complete for one prompt"},
    "missing-signal": {
        "turn-complete-once": "sent none",
        "two-prompts": "no turn_complete",
        "two-sessions": "no turn_complete",
        "cancel-order": "0 turn_complete",
    },
    "wrong-id": {
        "turn-complete-id": "'0'",
        "two-prompts": "no turn_complete for prompt",
        "two-sessions": "no turn_complete for prompt",
    },
    "number-id": {
        "turn-complete-id": "must be '",
        "two-prompts": "no turn_complete for prompt",
        "two-sessions": "no turn_complete for prompt",
    },
    "wrong-reason": {"turn-complete-reason": "says 'refusal', and the answer 'end_turn'"},
    "signal-before-update": {"turn-complete-last": "after turn_complete"},
    "response-before-signal": {"turn-complete-before-response": "after the answer"},
    "update-before-call": {"tool-call-order": "no tool_call has announced"},
    "status-backwards": {"tool-call-order": "from completed to in_progress"},
    "cancel-is-end": {"cancel": "ended with 'end_turn'"},
    "cancel-update-late": {"cancel-order": "after turn_complete"},
    "permission-goes-on": {"cancel-permission": "ended with 'end_turn'"},
    "bad-option": {"permission-request": "kind of allow_once"},
    "runs-refused": {"permission-reject": "refused and completed"},
    "knows-everything": {"unknown-method": "-32601"},
    "answers-notifications": {"unknown-notification": "never answered"},
    "fragile": {"malformed": "exit code 1"},
    "any-version": {"version-negotiation": "65535"},
    "chatty": {"only-messages": "not a JSON object"},
}

ALSO = {"response-before-signal": {"two-prompts"}}
"""Checks that a defect concerns, too, if the agent is slow: its signal then comes in the midst of the next prompt."""


@pytest.mark.parametrize("defect", DEFECTS)
async def test_X5_a_defect_is_named_by_the_checks_it_concerns(defect: str) -> None:
    report = await examine(defect)
    found, concerned = names(report, "failed"), set(DEFECTS[defect])
    assert concerned <= found <= concerned | ALSO.get(defect, set())
    for name, words in DEFECTS[defect].items():
        assert words in why(report, name)
    failed = [result for result in report.checks if result.outcome == "failed"]
    assert all(result.messages for result in failed), "the messages concerned are shown"


async def test_X5_an_agent_that_dies_is_told_of_once_with_its_last_words() -> None:
    report = await examine("dies")
    assert names(report, "failed") == {"prompt"}
    assert "exit code 7" in why(report, "prompt") and "I have died" in why(report, "prompt")
    assert "see `prompt`" in why(report, "cancel")


async def test_X5_an_agent_that_never_answers_is_given_up() -> None:
    report = await examine("never-answers", SHORT)
    assert names(report, "failed") == {"prompt"}
    assert "did not answer session/prompt within 5 s" in why(report, "prompt")


async def test_X5_an_agent_that_ignores_cancel_is_given_up() -> None:
    report = await examine("ignores-cancel", SHORT)
    assert names(report, "failed") == {"cancel"}
    assert "after session/cancel within" in why(report, "cancel")
    assert "see `cancel`" in why(report, "cancel-order")


async def test_X5_without_a_handshake_there_is_nothing_to_check() -> None:
    report = await examine("mute", SHORT)
    assert names(report, "failed") == {"initialize"}
    assert names(report, "skipped") == {check.name for check in CHECKS} - {"initialize"}


async def test_X5_somebody_elses_agent_is_examined() -> None:
    """One made with the Python ACP SDK 0.12.1, which ends when it reads a line that is JSON and no object."""
    command = (sys.executable, str(AGENTS / "foreign.py"))
    settings = Settings(command, LONG, prompt="a b", permission_prompt="may I", slow_prompt="slowly")
    passing = {"no-late-updates", "tool-call-order", "cancel", "cancel-order", "permission-reject", "unknown-method"}
    report = await run(settings, passing | {"malformed", "turn-complete-once"})
    assert names(report, "failed") <= {"malformed"}
    assert names(report, "passed") >= passing
    assert names(report, "skipped") == {"turn-complete-once"}


async def test_X5_an_agent_that_loads_lists_resumes_and_closes_sessions() -> None:
    command = (sys.executable, "-I", "-S", str(AGENTS / "scripted.py"))
    report = await run(Settings(command, LONG, prompt='{"updates": 1}'), OPTIONAL)
    assert names(report, "passed") == OPTIONAL


async def test_X5_a_late_signal_in_the_other_form_is_found_as_well() -> None:
    command = (sys.executable, "-I", "-S", str(AGENTS / "scripted.py"), "--offer", "update")
    prompt = '{"updates": 1, "signal": "late"}'
    report = await run(Settings(command, LONG, prompt=prompt), ["turn_complete"])
    assert names(report, "failed") == {"turn-complete-before-response"}


async def test_X5_one_session_for_all_is_found() -> None:
    report = await examine("one-session", only=("sessions",))
    assert names(report, "failed") == {"new-session"}


async def test_X5_checks_are_chosen_by_name_or_topic() -> None:
    report = await examine("late-update", only=("no-late-updates", "handshake"))
    chosen = ["initialize", "version-negotiation", "unknown-capabilities", "no-late-updates"]
    assert [result.name for result in report.checks] == chosen
    assert names(report, "failed") == {"no-late-updates"}


async def test_X5_a_program_that_is_not_there_is_no_verdict() -> None:
    with pytest.raises(KeepholdError, match="could not be started"):
        await run(Settings(("no-such-agent-anywhere",)))
