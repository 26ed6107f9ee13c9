"""Who answers a tool's questions, what of it is news, and what becomes of it at the end of a turn, as the file says."""

import pytest
from tests.unit.config_files import LOCAL, build, load, problem

from keephold.config import Config
from keephold.tools.base import NotificationPolicy, QuestionPolicy, SpawnPolicy

pytestmark = pytest.mark.usefixtures("empty_directory")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("target = 'user'", QuestionPolicy()),
        ("answer = false", QuestionPolicy(answered=True, answer=False)),
        ("answer = 'no'", QuestionPolicy(answered=True, answer="no")),
        ("target = 'assistant'", QuestionPolicy(target="assistant")),
        ("target = { model = 'small' }", QuestionPolicy(target="assistant", assistant={"model": "small"})),
        ("exclusive = true", QuestionPolicy(exclusive=True)),
    ],
)
def test_Q2_a_question_is_answered_as_the_file_says(settings: str, expected: QuestionPolicy) -> None:
    assert build(LOCAL + f"questions.q = {{ {settings} }}\n").questions == {"q": expected}


def test_T1_lifecycle_and_settling_reach_the_tool() -> None:
    spawn = "settle_ms = 1, settle_max_ms = 2, abort_grace_ms = 3, ready = 'up$', priority = 4"
    lifecycle = "{ on_turn_end = 'keep', timeout_secs = 5, assistant.model = 'small' }"
    assert build(LOCAL + f"spawn = {{ {spawn}, lifecycle = {lifecycle} }}\n").spawn == SpawnPolicy(
        settle_ms=1,
        settle_max_ms=2,
        abort_grace_ms=3,
        ready="up$",
        priority=4,
        on_turn_end="keep",
        turn_end_timeout_secs=5,
        assistant={"model": "small"},
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", NotificationPolicy()),
        ("on_success = false, on_waiting = false", NotificationPolicy(on_success=False, on_waiting=False)),
        ("on_failure = false, on_content = true", NotificationPolicy(on_failure=False, on_content=True)),
        ("deliver = ['turn']", NotificationPolicy(deliver=("turn",))),
    ],
)
def test_N2_N4_what_is_news_and_what_carries_it_reach_the_tool(settings: str, expected: NotificationPolicy) -> None:
    assert build(LOCAL + f"spawn.notifications = {{ {settings} }}\n").spawn.notifications == expected


def test_Q7_inquiries_have_two_minutes_unless_the_file_says_otherwise() -> None:
    assert Config().conversation.inquiry.timeout_secs == 120
    inquiry = load("[conversation.inquiry]\ntimeout_secs = 2.5\nassistant.model = 'm'\n").conversation.inquiry
    assert (inquiry.timeout_secs, inquiry.assistant.written()) == (2.5, {"model": "m"})
    found = problem("[conversation.inquiry]\ntimeout_secs = 0\n")
    assert found == "keephold.toml:2: conversation.inquiry.timeout_secs: must be at least 1, not 0"


def test_O2_an_output_has_two_views() -> None:
    assert "conversation.tools.t.output.history" in problem(LOCAL + "output.history.limit = 5\n")


NEEDS_A_MODEL = """
questions.q.target = 'assistant'
spawn = { lifecycle = { on_turn_end = 'inquire', assistant.model = 'm' }, notifications.on_content = true }
[conversation]
detached = 'auto'
"""


def test_F_settings_without_effect_are_named() -> None:
    found = load(LOCAL + NEEDS_A_MODEL).ignored_settings()
    assert [line.split(": ")[1] for line in found] == [
        "conversation.tools.t.questions.q.target",
        "conversation.tools.t.spawn.lifecycle.on_turn_end",
        "conversation.detached",
    ]
    assert all("there is no model to ask" in line for line in found)
    assert load(LOCAL + 'retry.policy = "safe"\non_crash = "replay"\n').ignored_settings() == []


@pytest.mark.parametrize(
    "model",
    ["assistant.model = 'm'", "inquiry.assistant.model = 'm'", "[agents.helper]\nmodel = 'm'"],
)
def test_F_settings_that_need_a_model_have_an_effect_where_one_is_named(model: str) -> None:
    assert load(f"{LOCAL}{NEEDS_A_MODEL}{model}\n").ignored_settings() == []
