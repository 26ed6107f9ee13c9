"""The state machine of a handle: six arrows, and what each keeps of the state before (S2)."""

import pytest

from keephold.errors import AlreadyStopped
from keephold.handles.question import Question
from keephold.handles.state import (
    Ended,
    IllegalTransition,
    Ok,
    PendingState,
    QuestionAnswered,
    QuestionAsked,
    Running,
    Started,
    State,
    StateEvent,
    Stopped,
    Waiting,
    transition,
)

QUESTION = Question(id="q", text="Well?")
OUTCOME = Ok("done")
PENDING, RUNNING = PendingState(1.0), Running(1.0, 2.0)
WAITING, STOPPED = Waiting(1.0, 2.0, 3.0, QUESTION, 1), Stopped(1.0, 2.0, 4.0, OUTCOME)


@pytest.mark.parametrize(
    ("before", "event", "after"),
    [
        (PENDING, Started(9.0), Running(1.0, 9.0)),
        (PENDING, Ended(9.0, OUTCOME, "abort"), Stopped(1.0, None, 9.0, OUTCOME, "abort")),
        (RUNNING, QuestionAsked(9.0, QUESTION, 1), Waiting(1.0, 2.0, 9.0, QUESTION, 1)),
        (RUNNING, Ended(9.0, OUTCOME, exit_code=3), Stopped(1.0, 2.0, 9.0, OUTCOME, exit_code=3)),
        (WAITING, QuestionAnswered(9.0), Running(1.0, 2.0)),
        (WAITING, Ended(9.0, OUTCOME, "timeout"), Stopped(1.0, 2.0, 9.0, OUTCOME, "timeout")),
    ],
)
def test_S2_an_arrow_leads_to_its_state_and_keeps_the_times(before: State, event: StateEvent, after: State) -> None:
    assert transition(before, event) == after


@pytest.mark.parametrize(
    ("before", "event"),
    [
        (PENDING, QuestionAsked(9.0, QUESTION)), (PENDING, QuestionAnswered(9.0)), (RUNNING, Started(9.0)),
        (RUNNING, QuestionAnswered(9.0)), (WAITING, Started(9.0)), (WAITING, QuestionAsked(9.0, QUESTION)),
    ],
)  # fmt: skip
def test_S2_there_is_no_other_arrow(before: State, event: StateEvent) -> None:
    with pytest.raises(IllegalTransition):
        transition(before, event)


@pytest.mark.parametrize(
    "event", [Started(9.0), QuestionAsked(9.0, QUESTION), QuestionAnswered(9.0), Ended(9.0, OUTCOME)]
)
def test_S2_stopped_is_final(event: StateEvent) -> None:
    with pytest.raises(AlreadyStopped):
        transition(STOPPED, event)
