"""Elicitation as questions (M6, Q): a server's request in the middle of a call becomes questions of that call.

A form is one question. If it has a single boolean, choice or text, it is a question of that type, under the field's
name; otherwise it is a question with fields. A form that requires anything else is declined, and the call keeps a note
of it, which is shown if the call fails.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from keephold.errors import ToolError
from keephold.handles.form import MOST_BYTES, Form, filled, form_from, options_of, problem_of
from keephold.handles.question import Question
from keephold.text import to_utf8
from keephold.tools.base import Invocation, Sink
from keephold.tools.call import Call

CONFIRM = "confirm"
"""The id of the question that a form without fields becomes."""
FORM = "form"
"""The id of a question with fields."""
_SHOWN = 300
"""Characters of a declined request's text that are shown."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """The reply to the server, and the ids of the questions that were asked for it."""

    response: dict[str, Any]
    asked: list[str]


class Asker:
    """One call, as the server's questions reach it."""

    def __init__(self, invocation: Invocation, sink: Sink) -> None:
        durable = None
        if invocation.tool.on_crash == "replay":
            assert invocation.durability is not None
            durable = invocation.durability.call(invocation)
        self.journal = None if durable is None else durable.journal
        """The journal of the call, if the next runtime may resume it."""
        self.call = Call(invocation, sink, durable=durable)
        self.invocation = invocation
        self.sink = sink
        self.notes: list[str] = []
        """The requests that were declined, and why."""
        self._asking: set[asyncio.Task[ServerReply]] = set()

    async def answer(self, params: Mapping[str, Any]) -> ServerReply:
        """Return the answer to one request. It is withdrawn, with its question, when the call ends."""
        asking = asyncio.get_running_loop().create_task(self._answer(params))
        self._asking.add(asking)
        try:
            await asyncio.wait([asking])
        finally:
            self._asking.discard(asking)
            asking.cancel()
        return ServerReply({"action": "cancel"}, []) if asking.cancelled() else asking.result()

    def close(self) -> None:
        """Withdraw the open requests: the call is over."""
        for asking in self._asking:
            asking.cancel()

    def decline(self, message: str, why: str) -> ServerReply:
        """Decline the request and note why."""
        self.notes.append(f'the server asked "{message[:_SHOWN]}", which was declined: {why}')
        return ServerReply({"action": "decline"}, [])

    async def _answer(self, params: Mapping[str, Any]) -> ServerReply:
        message = to_utf8(str(params.get("message", ""))).decode()
        if params.get("mode", "form") != "form":
            return self.decline(message, "it wants a page to be opened, which is not done from here")
        if len(message) > MOST_BYTES:
            return self.decline(message, f"its text may have {MOST_BYTES} characters, and it has {len(message)}")
        try:
            form = form_from(params.get("requestedSchema") or {})
        except ValueError as error:
            return self.decline(message, str(error))
        question, read = question_of(message, form)
        try:
            answer = await self.call.ask(question)
        except ToolError as error:  # nobody answers
            self.notes.append(error.message)
            return ServerReply({"action": "cancel"}, [question.id])
        content = read(answer)
        response = {"action": "decline"} if content is None else {"action": "accept", "content": content}
        return ServerReply(response, [question.id])


def question_of(message: str, form: Form) -> tuple[Question, Callable[[Any], dict[str, Any] | None]]:
    """Return the question that asks a form, and how to make the form's content of its answer; None declines."""
    fields = form["properties"]
    if not fields:
        confirm = Question(id=CONFIRM, text=message or "Continue?", answer_type="Boolean")
        return confirm, lambda sure: {} if sure else None
    if len(fields) == 1:
        ((name, field),) = fields.items()
        single = _single(name, field, message)
        if single is not None and name in form["required"]:
            question, values = single
            return question, lambda answer: {name: values.get(answer, answer)}
    default = {name: field["default"] for name, field in fields.items() if "default" in field}
    whole = bool(default) and problem_of(form, default) is None
    question = Question(
        id=FORM, text=message or "Fill in the form", answer_type={"Form": form}, default=default if whole else None
    )
    return question, lambda answer: filled(form, answer)


def _single(name: str, field: Mapping[str, Any], message: str) -> tuple[Question, Mapping[Any, Any]] | None:
    """Return the only field of a form as a question, with its values by answer; None if it needs a form."""
    options = options_of(field)
    if field["type"] not in ("boolean", "string") or field.keys() & {"format", "minLength", "maxLength"}:
        return None
    values = {title: value for value, title in options or ()}
    kind: Any = "Boolean" if field["type"] == "boolean" else {"Select": {"options": [*values]}} if values else "Text"
    default = field.get("default")
    question = Question(
        id=name or "field",
        text=message or field.get("description") or field.get("title") or name,
        answer_type=kind,
        pre_amble=(field.get("description") if message else None) or None,
        default=next((title for title, value in values.items() if value == default), None) if values else default,
    )
    return question, values
