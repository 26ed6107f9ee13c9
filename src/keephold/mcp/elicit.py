"""Prompts of keephold as elicitations of MCP: a form for each prompt, and what the person said (Q, P over MCP).

How a client can be asked differs: a 2025 client by a request of ours, a 2026 client by an answer that asks for input,
the client of a task by the task's `inputRequests`. An `Asker` holds what is open for one call; whoever serves the call
chooses the way.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from keephold.handles.handle import Handle
from keephold.handles.question import Question, question_key, select_options
from keephold.handles.state import Waiting
from keephold.handles.text import to_json
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
)

Form = tuple[str, dict[str, Any]]
"""A message, and the schema of what is wanted."""
Elicit = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]
"""Shows a form at once and returns `{"action": …, "content": …}`."""

_SHOWN = 2000
"""How many characters of arguments or of a result a person is shown."""
NO_SECRETS = "a secret is not asked for over MCP, whose forms must not hold any; run this where a person has a terminal"


class Asker:
    """Everything a person is asked about one call. A `Prompter`."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        """Something is open."""
        self.patient = False
        """Somebody will ask again, should the client go: the question stays open."""
        self.handle: Handle | None = None
        """The call's own, if it has one: what it asks is known by its place there, whoever looks."""
        self.changed: Callable[[], None] = lambda: None
        """Called when something was opened or answered."""
        self._open: dict[str, tuple[Form, asyncio.Future[Mapping[str, Any]]]] = {}
        self._early: dict[str, Mapping[str, Any]] = {}
        """Answers to questions that are not asked yet."""
        self._count = 0
        """How often a permission was asked for."""
        self._last, self._again = "", 0
        """The newest question, and how often it was asked again."""
        self._elicit: Elicit | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, prompt: Prompt) -> Decision:
        if isinstance(prompt, AskQuestion) and prompt.question.secret:
            return Dismissed(NO_SECRETS)
        key = self._key(prompt)
        early = self._early.pop(key, None)
        if early is not None:
            return decision(prompt, early)
        answered: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._open[key] = form(prompt), answered
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
        """From now on, ask in this way whatever is open or comes; None: wait until `answer` is called."""
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
        except Exception as error:  # the client is gone, or has no way to ask
            if self.patient:
                return
            said = {"action": "cancel", "reason": str(error)}
        if not answered.done():
            answered.set_result(said)

    def requests(self) -> dict[str, dict[str, Any]]:
        """What is open, by a key of its own, as MCP writes it."""
        forms = {key: form for key, (form, _) in self._open.items()}
        coming = {key: question_form(each, None) for key, each in self._coming().items() if key not in self._early}
        return {key: elicitation(form) for key, form in {**forms, **coming}.items()}

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Answers by key. Unknown and answered keys are left aside."""
        coming = self._coming()
        for key, said in responses.items():
            if not isinstance(said, Mapping):
                continue
            opened = self._open.get(key)
            if opened is None and key in coming:
                self._early[key] = said
            elif opened is not None and not opened[1].done():
                opened[1].set_result(said)

    def _key(self, prompt: Prompt) -> str:
        """Its own, for the life of the call. What is asked again, because the answer did not fit, has another."""
        state = self.handle.state if self.handle is not None else None
        if isinstance(prompt, AskQuestion) and isinstance(state, Waiting) and self.handle is not None:
            key = question_key(state.question, state.number)
            if key != self._last:
                self._last, self._again = key, 0
                return key
            self._again += 1
            return f"{key}.again{self._again}"
        self._count += 1
        return f"{'result' if isinstance(prompt, DeliverResult) else 'permission'}.{self._count}"

    def _coming(self) -> dict[str, Question]:
        """Questions that the call will ask when the open one is answered, by the keys they will have."""
        handle = self.handle
        if handle is None or handle.run is None:
            return {}
        queued = getattr(handle.run.live, "queued", ())
        return {question_key(each, handle.run.questions + 1 + at): each for at, each in enumerate(queued)}

    async def taken(self, responses: Mapping[str, Any]) -> None:
        """Like `answer`, until whoever asked has what was answered."""
        open_before = set(self._open)
        self.answer(responses)
        while any(key in self._open for key in open_before & set(responses)):  # noqa: ASYNC110 (two passes, no more)
            await asyncio.sleep(0)
        for _ in range(2):  # the prompt has returned; that is told, and the answer handed to the call
            await asyncio.sleep(0)


def elicitation(form: Form) -> dict[str, Any]:
    """A form as a request of MCP."""
    message, schema = form
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": schema},
    }


def form(prompt: Prompt) -> Form:
    """A prompt as a form."""
    match prompt:
        case AskQuestion():
            return question_form(prompt.question, prompt.problem)
        case RunTool():
            what = f"Run tool `{prompt.tool}`" + (f" ({prompt.action})" if prompt.action else "")
            text = f"{what} with {_shown(to_json(prompt.arguments).decode())}?"
            return text, _approval("Whether the call may run.")
        case DeliverResult():
            text = f"May the assistant see this result of tool `{prompt.tool}`?\n\n{_shown(prompt.result)}"
            return text, _approval("Whether the assistant may see it.")


def question_form(question: Question, problem: str | None) -> Form:
    """A question as a form of one field."""
    text = "\n\n".join(part for part in (problem, question.pre_amble, question.text) if part)
    options = select_options(question)
    field: dict[str, Any] = {"type": "boolean" if question.answer_type == "Boolean" else "string"}
    if options is not None:
        field["enum"] = options
    if question.default is not None:
        field["default"] = question.default
    field["description"] = question.text
    return text, {"type": "object", "properties": {question.id: field}, "required": [question.id]}


def _approval(what: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "approve": {"type": "boolean", "description": what},
            "reason": {"type": "string", "description": "Why not, for the assistant."},
        },
        "required": ["approve"],
    }


def decision(prompt: Prompt, said: Mapping[str, Any]) -> Decision:
    """What the person said to a form."""
    content = said.get("content")
    content = content if isinstance(content, Mapping) else {}
    accepted = said.get("action") == "accept"
    if isinstance(prompt, AskQuestion):
        return Answer(content.get(prompt.question.id)) if accepted else Dismissed(said.get("reason"))
    if accepted and content.get("approve") is True:
        return Approved()
    if accepted or said.get("action") == "decline":
        reason = content.get("reason")
        return Denied(reason if isinstance(reason, str) and reason else None)
    return Dismissed(said.get("reason"))


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} … ({len(text) - _SHOWN} more characters)"
