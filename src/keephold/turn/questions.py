"""Who answers a tool's question (Q2–Q4, Q7).

A remembered or a fixed answer is given at once. Otherwise the question is open: to the user by a prompt, to the caller
by `apply`, to a model by an inquiry, if each may answer it. The first valid answer counts and withdraws the others.
`detached` decides only if no one may answer.
"""

import asyncio
from dataclasses import dataclass

import msgspec

from keephold.handles.handle import Handle
from keephold.handles.question import Open, Question, answer_fits, expected, problem_with, question_request
from keephold.handles.registry import Registry
from keephold.handles.state import Failure, Ok, Outcome, Waiting
from keephold.limits import Limits
from keephold.tools.base import QuestionPolicy
from keephold.tools.toolbox import is_builtin
from keephold.tools.waiting import INTERNAL
from keephold.turn.approvals import Approvals
from keephold.turn.inquiry import Inquiries
from keephold.turn.permission import Detached
from keephold.turn.prompt_queue import Asking, PromptQueue
from keephold.turn.prompts import Answer, AskQuestion, Decision, Dismissed

_NO_POLICY = QuestionPolicy()
_AGAIN = 3
"""How often a prompt is shown again. A client that answers by itself would be asked hundreds of times a second."""


@dataclass(slots=True)
class _Asked:
    """An open question, with its prompt and its inquiry."""

    question: Question
    policy: QuestionPolicy
    open: Open
    prompt_queue: PromptQueue
    prompt: Asking | None = None
    inquiry: "asyncio.Task[None] | None" = None
    invalid: int = 0
    """The number of invalid answers to the prompt."""


class Questions:
    """Routes questions to those who may answer them."""

    def __init__(
        self,
        registry: Registry,
        limits: Limits,
        detached: Detached,
        prompt_queue: PromptQueue,
        inquiries: Inquiries,
        approvals: Approvals,
    ) -> None:
        self._registry = registry
        self._limits = limits
        self._detached = detached
        self._prompt_queue = prompt_queue
        self._inquiries = inquiries
        self._approvals = approvals
        self._asked: dict[str, _Asked] = {}
        """By the uid of the handle that asks."""

    def route(self, handle: Handle, question: Question) -> Outcome | Open:
        """Return the answer, or why there is none, or who may answer the open question."""
        policy = handle.tool.questions.get(question.id, _NO_POLICY)
        recalled = self._recall(handle, question)
        if recalled is not None:
            return recalled
        if policy.answered and not question.secret:
            return _checked(question, policy.answer, f"the fixed answer {policy.answer!r} of question `{question.id}`")
        prompt_queue = (
            self._prompt_queue.deciding(handle) if is_exclusive(handle, question) else self._prompt_queue.of(handle)
        )
        who = self._who(handle, question, policy, prompt_queue)
        if not any(who):
            if self._detached == "defaults" and question.default is not None and not question.secret:
                return _checked(question, question.default, f"the default of question `{question.id}`")
            return self._unanswered(handle, question, policy)
        open_now = self._registry.conversation(handle.conversation).open_questions
        if open_now >= self._limits.open_questions:
            return Failure(
                f"{open_now} questions are open already ([limits] open_questions); answer some of them first",
                "limit_exceeded",
            )
        self._asked[handle.uid] = _Asked(question, policy, who, prompt_queue)
        return who

    def _who(self, handle: Handle, question: Question, policy: QuestionPolicy, prompt_queue: PromptQueue) -> Open:
        if policy.exclusive or question.secret:  # Q4: never a model, on any path
            return Open(caller=False, person=prompt_queue.here, assistant=False)
        for_user = policy.target == "user"
        caller = handle.stateful and "apply" in handle.tool.actions
        person = prompt_queue.here and (for_user or not (caller or self._inquiries.here))
        # A question for the user goes to the model only if no user can be asked and the model may stand in: it spawned
        # the handle (Q3), or `detached` allows it.
        stands_in = not for_user or (not person and (handle.stateful or self._detached == "auto"))
        return Open(caller, person, assistant=self._inquiries.here and stands_in)

    def opened(self, handle: Handle) -> None:
        """The question is visible: prompt the user and ask the model."""
        asked = self._asked.get(handle.uid)
        if asked is None:
            return
        if asked.open.person:
            self._prompt(handle, asked)
        if asked.open.assistant and (not asked.open.caller or _is_awaited(handle)):
            self._inquire(handle, asked)

    def awaited(self, handle: Handle) -> None:
        """An `await` watches the handle now: ask the model, so that it does not wait for its own caller (Q3)."""
        asked = self._asked.get(handle.uid)
        if asked is not None and asked.open.assistant and isinstance(handle.state, Waiting):
            self._inquire(handle, asked)

    def closed(self, handle: Handle) -> None:
        """Withdraw the prompt and the inquiry of a question that is closed."""
        asked = self._asked.pop(handle.uid, None)
        if asked is not None and asked.prompt is not None:
            asked.prompt.withdraw()
        if asked is not None and asked.inquiry is not None:
            asked.inquiry.cancel()

    # The user

    def _prompt(self, handle: Handle, asked: _Asked) -> None:
        assert isinstance(handle.state, Waiting)
        prompt = AskQuestion(
            tool=handle.tool.name,
            id=handle.id if handle.stateful else None,
            question=asked.question,
            conversation=handle.conversation,
            may_remember=_may_remember(handle, asked.question),
            uid=handle.uid,
            until=self._approvals.until(handle.conversation),
            request=question_request(handle.uid, handle.state.number),
        )
        asked.prompt = asked.prompt_queue.ask(
            prompt, lambda said: self._said(handle, asked, said), lambda: self._answered_meanwhile(handle, asked)
        )

    def _answered_meanwhile(self, handle: Handle, asked: _Asked) -> bool:
        """Give an answer that was remembered while this prompt was queued (Q2); return whether there is one."""
        answer = self._recall(handle, asked.question)
        if answer is not None:
            self._answer(handle, answer.value)
        return answer is not None

    def _recall(self, handle: Handle, question: Question) -> Ok | None:
        if not _may_remember(handle, question):
            return None
        known = self._approvals.standing(handle.conversation, handle.tool.name, question.id)
        return Ok(known.value) if known is not None and answer_fits(question, known.value) else None

    def _said(self, handle: Handle, asked: _Asked, said: Decision) -> None:
        question, prompt = asked.question, asked.prompt
        assert prompt is not None and isinstance(prompt.prompt, AskQuestion)
        match said:
            case Answer(value) if not answer_fits(question, value):
                asked.invalid += 1
                problem = problem_with(question, value)
                if asked.invalid <= _AGAIN:
                    asked.prompt_queue.ask_again(prompt, msgspec.structs.replace(prompt.prompt, problem=problem))
                else:
                    self._end(handle, not_answered(question.id, f"{asked.invalid} answers were invalid; {problem}"))
            case Answer(value, remember, by):
                if remember and prompt.prompt.may_remember:
                    who = by or asked.prompt_queue.who
                    self._approvals.give(handle.conversation, handle.tool.name, value, by=who, question=question.id)
                self._answer(handle, value)
            case Dismissed(reason):
                self._end(handle, not_answered(question.id, reason))

    # The model

    def _inquire(self, handle: Handle, asked: _Asked) -> None:
        if asked.inquiry is None:
            handle.asks_caller = False  # the inquiry answers, so the handle does not wait for the caller (A6)
            asked.inquiry = self._inquiries.ask(
                handle, asked.question, asked.policy.assistant, lambda outcome: self._inquired(handle, asked, outcome)
            )

    def _inquired(self, handle: Handle, asked: _Asked, outcome: Outcome) -> None:
        asked.inquiry = None  # it has answered, so there is nothing to cancel
        if self._asked.get(handle.uid) is not asked:
            return  # it answered although it was cancelled: another question may be open by now
        if isinstance(outcome, Ok):
            self._answer(handle, outcome.value)
        else:
            assert isinstance(outcome, Failure)
            self._end(handle, outcome)

    def _answer(self, handle: Handle, value: object) -> None:
        if handle.run is not None:
            handle.run.answer(value, b"")

    def _end(self, handle: Handle, error: Failure) -> None:
        """Q7: end the handle, and its process as an abort does (C7)."""
        if handle.run is not None:
            handle.run.end(error, "self")

    def _unanswered(self, handle: Handle, question: Question, policy: QuestionPolicy) -> Failure:
        setting = f"[conversation.tools.{handle.tool.name}.questions.{question.id}]"
        if handle.tool.source == "python":
            setting = f"`@keephold.tool(questions=…)` or {setting}"
        asked = f'The tool asked "{question.text}" (`{question.id}`), but'
        if question.secret:
            why = f"{asked} only a person may type a secret and none is there. Do without, or run this with a person."
            return Failure(why, "question_unanswered")
        who = "only a person may answer it and none is there" if policy.exclusive else "nobody is there to answer it"
        spawn = ""
        if "apply" in handle.tool.actions and not policy.exclusive:
            spawn = ", or spawn the tool and answer with `apply`"
        return Failure(f"{asked} {who}. Set a fixed `answer` in {setting}{spawn}.", "question_unanswered")


def is_exclusive(handle: Handle, question: Question) -> bool:
    """Return whether only the user may answer the question (Q4)."""
    return question.secret or handle.tool.questions.get(question.id, _NO_POLICY).exclusive


def _may_remember(handle: Handle, question: Question) -> bool:
    """Return whether an answer may count for later questions of that id (Q2). keephold's own tools ask about another
    host, another agent or something else each time."""
    own = is_builtin(handle.tool) or handle.tool.name in INTERNAL
    return question.answer_type == "Boolean" and not own


def not_answered(question: str, reason: str | None) -> Failure:
    """Make the error of a call whose question the user dismissed, or could not be shown (Q7)."""
    why = f"the prompt failed: {reason}" if reason else "the person cancelled the prompt"
    return Failure(f"Question `{question}` was not answered: {why}.", "input_cancelled")


def _is_awaited(handle: Handle) -> bool:
    return any(getattr(watcher, "awaits", False) for watcher in handle.watchers or ())


def _checked(question: Question, answer: object, what: str) -> Outcome:
    if answer_fits(question, answer):
        return Ok(answer)
    return Failure(f"{what} does not fit: it must be {expected(question)}", "bad_answer")
