"""Elicitation as questions (M6, Q): a server's request in the middle of a call becomes questions of that call.

A form is asked field by field: a boolean, a choice, a text. A form that needs anything else is declined, and the call
keeps a note of it, which is shown if the call fails.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keephold.errors import ToolError
from keephold.handles.question import Question
from keephold.tools.call import Call

CONFIRM = "confirm"
"""The id of the question that a form without fields becomes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to the server, and the ids of the questions that were asked for it."""

    response: dict[str, Any]
    asked: list[str]


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a form as a question, with its values by answer, where the two differ."""

    question: Question
    required: bool
    values: Mapping[str, Any]


class Asker:
    """One call, as the server's questions reach it."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.notes: list[str] = []
        """The requests that were declined, and why."""
        self._asking: set[asyncio.Task[Answer]] = set()

    async def answer(self, params: Mapping[str, Any]) -> Answer:
        """Return the answer to one request. It is withdrawn, with its question, when the call ends."""
        asking = asyncio.get_running_loop().create_task(self._answer(params))
        self._asking.add(asking)
        try:
            await asyncio.wait([asking])
        finally:
            self._asking.discard(asking)
            asking.cancel()
        return Answer({"action": "cancel"}, []) if asking.cancelled() else asking.result()

    def close(self) -> None:
        """Withdraw the open requests: the call is over."""
        for asking in self._asking:
            asking.cancel()

    def decline(self, message: str, why: str) -> Answer:
        """Decline the request and note why."""
        self.notes.append(f'the server asked "{message}", which was declined: {why}')
        return Answer({"action": "decline"}, [])

    async def _answer(self, params: Mapping[str, Any]) -> Answer:
        message = str(params.get("message", ""))
        if params.get("mode", "form") != "form":
            return self.decline(message, "it wants a page to be opened, which is not done from here")
        try:
            fields = form_fields(message, params.get("requestedSchema") or {})
        except ValueError as error:
            return self.decline(message, str(error))
        asked: list[str] = []
        try:
            return await self._fill_in(message, fields, asked)
        except ToolError as error:  # nobody answers
            self.notes.append(error.message)
            return Answer({"action": "cancel"}, asked)

    async def _fill_in(self, message: str, fields: Mapping[str, _Field], asked: list[str]) -> Answer:
        if not fields:
            asked.append(CONFIRM)
            sure = await self.call.ask(Question(id=CONFIRM, text=message or "Go on?", answer_type="Boolean"))
            return Answer({"action": "accept", "content": {}} if sure else {"action": "decline"}, asked)
        content: dict[str, Any] = {}
        for name, field in fields.items():
            asked.append(field.question.id)
            answer = await self.call.ask(field.question)
            if answer != "" or field.required:
                content[name] = field.values.get(answer, answer) if isinstance(answer, str) else answer
        return Answer({"action": "accept", "content": content}, asked)


def form_fields(message: str, schema: Mapping[str, Any]) -> dict[str, _Field]:
    """Return the fields of a form as questions, in order, without optional ones that cannot be asked.

    Raises `ValueError` if a required field cannot be asked.
    """
    properties = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    known = {name: table for name, table in properties.items() if isinstance(table, Mapping) and _kind(table)}
    missing = [name for name in properties if name in required and name not in known]
    if missing:
        fields = ", ".join(f"`{name}`" for name in missing)
        raise ValueError(f"a form may have booleans, choices and texts, and {fields} is none of these")
    if properties and not known:
        raise ValueError("a form may have booleans, choices and texts, and this one has none")
    single = len(known) == 1
    return {name: _field(name, table, message, name in required, single) for name, table in known.items()}


def _field(name: str, table: Mapping[str, Any], message: str, required: bool, single: bool) -> _Field:
    kind, values = _kind(table), _choices(table)
    assert kind is not None
    about = str(table.get("description") or "")
    own = about or str(table.get("title") or "") or name
    text, before = (message or own, about) if single else (own, message)
    if kind == "Text" and not required:
        text += " (may be left empty)"
    default = table.get("default")
    if values:
        default = next((shown for shown, value in values.items() if value == default), None)
    fits = isinstance(default, bool) if kind == "Boolean" else isinstance(default, str)
    question = Question(
        id=name or "field",
        text=text,
        answer_type=kind,
        pre_amble=before or None,
        default=default if fits else None,
    )
    return _Field(question, required, values)


def _kind(table: Mapping[str, Any]) -> Any | None:
    """Return a field's type of answer; None if it cannot be asked."""
    if table.get("type") == "boolean":
        return "Boolean"
    if table.get("type", "string") != "string":
        return None
    choices = _choices(table)
    if choices:
        return {"Select": {"options": list(choices)}}
    return None if "enum" in table or "oneOf" in table or "type" not in table else "Text"


def _choices(table: Mapping[str, Any]) -> dict[str, str]:
    """Return a field's choices as shown → their values. Titles are shown where each value has a different one."""
    values: Any
    titles: Any
    if isinstance(table.get("oneOf"), list):
        parts = [part for part in table["oneOf"] if isinstance(part, Mapping)]
        values, titles = [part.get("const") for part in parts], [part.get("title") for part in parts]
    else:
        values, titles = table.get("enum") or [], table.get("enumNames") or []
    if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
        return {}
    named = len(set(map(str, titles))) == len(values) and all(isinstance(title, str) and title for title in titles)
    return dict(zip(titles if named else values, values, strict=True)) if values else {}
