"""Show keephold's prompts as MCP elicitations: a form for each prompt, and the user's decision.

A 2025 client is asked by a request, a 2026 client by a result that requires input, the client of a task by the task's
`inputRequests`. An `ElicitationPrompter` holds the open prompts of one call; the serving code chooses the way.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from keephold.handles.handle import Handle
from keephold.handles.question import Question, form_answer, question_form, question_key
from keephold.handles.state import Waiting
from keephold.text import exact, exact_json, to_json
from keephold.turn.prompts import (
    Answer,
    Approved,
    AskQuestion,
    Decision,
    DeliverResult,
    Denied,
    Dismissed,
    Prompt,
    RunTool,
    too_long,
)

Form = tuple[str, dict[str, Any]]
"""A message, and the schema of the expected answer."""
Elicit = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]
"""Show a form at once and return `{"action": …, "content": …}`."""

NO_SECRETS = "a secret is not asked for over MCP, whose forms must not hold any; run this where a person has a terminal"


class ElicitationPrompter:
    """The open prompts of one call. A `Prompter`."""

    who = "the MCP client"

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        """Set while a prompt is open."""
        self.patient = False
        """The prompt stays open if the client leaves: a task's client may return."""
        self.handle: Handle | None = None
        """The call's handle, if it has one. Its question gives the prompt's key, so that every process finds the same
        key."""
        self.changed: Callable[[], None] = lambda: None
        """Called when a prompt was opened or answered."""
        self._open: dict[str, tuple[Form, asyncio.Future[Mapping[str, Any]]]] = {}
        self._early: dict[str, Mapping[str, Any]] = {}
        """Answers to questions that are not asked yet."""
        self._approvals: list[str] = []
        """The keys of the prompts that did not ask a question."""
        self._last, self._again = "", 0
        """The newest question, and how often it was asked again."""
        self._elicit: Elicit | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, prompt: Prompt) -> Decision:
        if isinstance(prompt, AskQuestion) and prompt.question.secret:
            return Dismissed(NO_SECRETS)
        asked = form(prompt)
        if problem := too_long(asked[0]):
            return Dismissed(problem)
        key = self._key(prompt)
        early = self._early.pop(key, None)
        if early is not None:
            return decision(prompt, early)
        answered: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._open[key] = asked, answered
        self.asked.set()
        self.changed()
        if self._elicit is not None:
            self._ask(key)
        try:
            return decision(prompt, await answered)
        finally:
            del self._open[key]
            if not self._open:
                self.asked.clear()
            self.changed()

    def ask_by(self, elicit: Elicit | None) -> None:
        """Ask every open and later prompt in this way; None: wait until `answer` is called."""
        self._elicit = elicit
        for key in self._open if elicit is not None else ():
            self._ask(key)

    def _ask(self, key: str) -> None:
        task = asyncio.create_task(self._ask_now(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask_now(self, key: str) -> None:
        assert self._elicit is not None
        (message, schema), answered = self._open[key]
        asking = asyncio.ensure_future(self._elicit(message, schema))
        answered.add_done_callback(lambda _: asking.cancel())
        try:
            said = await asking
        except asyncio.CancelledError:
            return
        except Exception as error:  # the client has left, or cannot ask
            if self.patient:
                return
            said = {"action": "cancel", "reason": str(error)}
        if not answered.done():
            answered.set_result(said)

    def requests(self) -> dict[str, dict[str, Any]]:
        """Return the open prompts as MCP requests, by key."""
        forms = {key: form for key, (form, _) in self._open.items()}
        coming = {key: question_form(each, None) for key, each in self._coming().items() if key not in self._early}
        return {key: elicitation(form) for key, form in {**forms, **coming}.items()}

    def approvals(self) -> dict[str, dict[str, Any]]:
        """Return the open prompts that do not ask a question."""
        return {key: elicitation(form) for key, (form, _) in self._open.items() if key in self._approvals}

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Take answers by key. Unknown and answered keys are ignored."""
        coming = self._coming()
        for key, said in responses.items():
            if not isinstance(said, Mapping):
                continue
            opened = self._open.get(key)
            if opened is None and (key in coming or self._is_next(key)):
                self._early[key] = said
            elif opened is not None and not opened[1].done():
                opened[1].set_result(said)

    def _key(self, prompt: Prompt) -> str:
        """Return a key that is unique in the call. A question asked again after an invalid answer gets a new key."""
        state = self.handle.state if self.handle is not None else None
        if isinstance(prompt, AskQuestion) and isinstance(state, Waiting) and self.handle is not None:
            key = question_key(state.question, state.number)
            if key != self._last:
                self._last, self._again = key, 0
                return key
            self._again += 1
            return f"{key}.again{self._again}"
        key = f"{'result' if isinstance(prompt, DeliverResult) else 'permission'}.{len(self._approvals) + 1}"
        self._approvals.append(key)
        return key

    def _coming(self) -> dict[str, Question]:
        """Return the questions that follow the open one, by the keys they will have."""
        handle = self.handle
        if handle is None or handle.run is None:
            return {}
        queued = getattr(handle.run.live, "queued", ())
        coming = {question_key(each, handle.run.questions + 1 + at): each for at, each in enumerate(queued)}
        asked = handle.decided
        if isinstance(asked, Waiting) and asked is not handle.state:  # the next one, which the store does not have yet
            coming[question_key(asked.question, asked.number)] = asked.question
        return coming

    def _is_next(self, key: str) -> bool:
        """Return whether this is the key of a question that is asked in the next pass of the loop."""
        asked = self.handle.decided if self.handle is not None else None
        return isinstance(asked, Waiting) and key == question_key(asked.question, asked.number) != self._last

    async def taken(self, responses: Mapping[str, Any]) -> None:
        """Like `answer`, but return when the asking code has the answers."""
        open_before = set(self._open)
        self.answer(responses)
        while any(key in self._open for key in open_before & set(responses)):  # noqa: ASYNC110 (two passes, no more)
            await asyncio.sleep(0)
        for _ in range(2):  # one pass for the prompt to return, one to hand the answer to the call
            await asyncio.sleep(0)


def elicitation(form: Form) -> dict[str, Any]:
    message, schema = form
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": schema},
    }


def form(prompt: Prompt) -> Form:
    match prompt:
        case AskQuestion():
            return question_form(prompt.question, prompt.problem)
        case RunTool():
            what = f"Run tool `{prompt.tool}`" + (f" ({prompt.action})" if prompt.action else "")
            text = f"{what} with {exact_json(to_json(prompt.arguments).decode())}?"
            return text, _approval("Whether the call may run.")
        case DeliverResult():
            text = f"May the model see this result of tool `{prompt.tool}`?\n\n{exact(prompt.result)}"
            return text, _approval("Whether the model may see it.")


def _approval(what: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "approve": {"type": "boolean", "description": what},
            "reason": {"type": "string", "description": "Why not, for the model."},
        },
        "required": ["approve"],
    }


def decision(prompt: Prompt, said: Mapping[str, Any]) -> Decision:
    content = said.get("content")
    content = content if isinstance(content, Mapping) else {}
    accepted = said.get("action") == "accept"
    if isinstance(prompt, AskQuestion):
        return Answer(form_answer(prompt.question, content)) if accepted else Dismissed(said.get("reason"))
    if accepted and content.get("approve") is True:
        return Approved()
    if accepted or said.get("action") == "decline":
        reason = content.get("reason")
        return Denied(reason if isinstance(reason, str) and reason else None)
    return Dismissed(said.get("reason"))
