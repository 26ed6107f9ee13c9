"""Who answers a tool's question (Q2–Q4), as far as nobody but the caller is there.

In this order: the configured fixed answer; the caller by `apply`, if the handle was spawned from a tool that has it and
the question is not exclusive; otherwise `detached` decides.
"""

from holdfast.handles.handle import Handle
from holdfast.handles.question import Question, answer_fits, expected
from holdfast.handles.registry import Registry
from holdfast.handles.state import Error, Ok, Outcome
from holdfast.limits import Limits
from holdfast.tools.base import QuestionPolicy
from holdfast.turn.permission import Detached

_NO_POLICY = QuestionPolicy()


class Questions:
    """Routes questions."""

    def __init__(self, registry: Registry, limits: Limits, detached: Detached) -> None:
        self._registry = registry
        self._limits = limits
        self._detached = detached

    def route(self, handle: Handle, question: Question) -> Outcome | None:
        """The answer, or why there is none; None when the question stays open for the caller."""
        policy = handle.tool.questions.get(question.id, _NO_POLICY)
        if policy.answered:
            return _checked(question, policy.answer, f"the fixed answer {policy.answer!r} of question `{question.id}`")
        if handle.stateful and self._could_be_open(handle, policy):
            open_now = self._registry.conversation(handle.conversation).open_questions
            if open_now < self._limits.open_questions:
                return None
            return Error(
                f"{open_now} questions are open already ([limits] open_questions); answer some of them first",
                "limit_exceeded",
            )
        if self._detached == "defaults" and question.default is not None:
            return _checked(question, question.default, f"the default of question `{question.id}`")
        return self._unanswered(handle, question, policy)

    def _could_be_open(self, handle: Handle, policy: QuestionPolicy) -> bool:
        """Whether the caller may answer, if it spawned the tool."""
        return "apply" in handle.tool.actions and not policy.exclusive

    def _unanswered(self, handle: Handle, question: Question, policy: QuestionPolicy) -> Error:
        setting = f"[conversation.tools.{handle.tool.name}.questions.{question.id}]"
        if handle.tool.source == "python":
            setting = f"`@holdfast.tool(questions=…)` or {setting}"
        who = "only a person may answer it and none is there" if policy.exclusive else "nobody is there to answer it"
        spawn = ", or spawn the tool and answer with `apply`" if self._could_be_open(handle, policy) else ""
        return Error(
            f'The tool asked "{question.text}" (`{question.id}`), but {who}. Set a fixed `answer` in {setting}{spawn}.',
            "question_unanswered",
        )


def _checked(question: Question, answer: object, what: str) -> Outcome:
    if answer_fits(question, answer):
        return Ok(answer)
    return Error(f"{what} does not fit: it must be {expected(question)}", "bad_answer")
