"""Questions a tool asks while it runs (Q1), the check of an answer against its type (C6), and typed answers."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from keephold.handles.form import Form, expected_form, form_from, is_text, problem_of, read_field
from keephold.text import exact

_REQUEST = "handle-"
"""Prefix of a request's id if it is a question."""


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question that a tool asks while it runs, and the type of its answer."""

    id: str
    text: str
    answer_type: Any = msgspec.field(default_factory=lambda: "Text")  # not a default: shown also when it is Text
    """`bool`, `str` or `Literal["a", "b"]`; kept as `"Boolean"`, `"Text"` or `{"Select": {"options": ["a", "b"]}}`. For
    several fields: `{"Form": {"properties": {…}, "required": […]}}`; the answer is an object."""
    pre_amble: str | None = None
    default: Any = None
    secret: bool = False
    """The answer is a password or the like: only the user may give it, and it is never shown, stored or logged."""

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("a question needs a non-empty id")
        msgspec.structs.force_setattr(self, "answer_type", _recorded(self.answer_type))
        if isinstance(self.answer_type, dict) and set(self.answer_type) == {"Form"}:
            msgspec.structs.force_setattr(self, "answer_type", {"Form": form_from(self.answer_type["Form"])})
        elif self.answer_type not in ("Boolean", "Text"):
            options = select_options(self)
            if not options or not all(isinstance(option, str) for option in options):
                raise ValueError(
                    f'answer_type of question `{self.id}` must be "Boolean", "Text" or '
                    '{"Select": {"options": ["…"]}} with at least one option, or the type bool, str or Literal["…"]; '
                    'for several fields {"Form": {"properties": {…}, "required": […]}}'
                )


def _recorded(answer_type: Any) -> Any:
    """Return the recorded form of an answer's type, given as a Python type or in that form (Q1)."""
    if answer_type is bool:
        return "Boolean"
    if answer_type is str:
        return "Text"
    return {"Select": {"options": list(get_args(answer_type))}} if get_origin(answer_type) is Literal else answer_type


class Open(NamedTuple):
    """Who may answer an open question (Q3)."""

    caller: bool
    """By `apply`."""
    person: bool
    assistant: bool
    """By an inquiry: at once, or, if the caller may answer too, as soon as an `await` watches."""


def question_key(question: Question, number: int) -> str:
    """Return which question of a call this is, for every reader of the store: an id may be asked twice."""
    return f"{question.id}.{number}"


def question_request(uid: str, number: int) -> str:
    """Return the id by which every process that shares the store lists and decides this question of a handle."""
    return f"{_REQUEST}{uid}-{number}"


def requested_question(request: str) -> tuple[str, str] | None:
    """Return the uid and the question's number, as text, if the request is a question."""
    uid, _, number = request.removeprefix(_REQUEST).partition("-")
    return (uid, number) if request.startswith(_REQUEST) else None


def question_text(question: Question, problem: str | None) -> str:
    """Return all that a client shows of a question. A yes may allow something, so nothing hides there (K4)."""
    text = "\n\n".join(part for part in (problem, question.pre_amble, question.text) if part)
    return exact(text) if question.answer_type == "Boolean" or form_of(question) is not None else text


def form_of(question: Question) -> Form | None:
    """Return the fields of a form, None for any other question."""
    kind = question.answer_type
    return kind["Form"] if isinstance(kind, dict) and "Form" in kind else None


def answer_schema(question: Question) -> dict[str, Any]:
    """Return the JSON schema of an answer."""
    form, options = form_of(question), select_options(question)
    if form is not None:
        return {"type": "object", **form}
    kind: dict[str, Any] = {"type": "boolean" if question.answer_type == "Boolean" else "string"}
    return kind if options is None else {**kind, "enum": options}


def question_form(question: Question, problem: str | None) -> tuple[str, dict[str, Any]]:
    """Return a question as a form, most often of one field: its message, and the JSON schema of the answer."""
    text, field = question_text(question, problem), answer_schema(question)
    if form_of(question) is not None:
        return text, field
    boolean = question.answer_type == "Boolean"
    if isinstance(question.default, bool if boolean else str):
        field["default"] = question.default
    field["description"] = exact(question.text) if boolean else question.text
    return text, {"type": "object", "properties": {question.id: field}, "required": [question.id]}


def form_answer(question: Question, content: Mapping[str, Any]) -> Any:
    """Return the answer from the content of a filled-in `question_form`. Null leaves a field out."""
    if form_of(question) is None:
        return content.get(question.id)
    return {name: value for name, value in content.items() if value is not None}


def select_options(question: Question) -> list[str] | None:
    """Return the options of a Select question, None for any other."""
    kind = question.answer_type
    if not isinstance(kind, dict) or set(kind) != {"Select"} or not isinstance(kind["Select"], dict):
        return None
    options = kind["Select"].get("options")
    return options if isinstance(options, list) else None


def expected(question: Question) -> str:
    """Describe the answers that this question accepts."""
    if question.answer_type == "Boolean":
        return "true or false"
    form, options = form_of(question), select_options(question)
    if form is not None:
        return expected_form(form)
    return "a string" if options is None else "one of " + ", ".join(f'"{option}"' for option in options)


def problem_with(question: Question, answer: Any) -> str:
    """Return why an answer does not fit, for the one who gave it."""
    form = form_of(question)
    problem = problem_of(form, answer) if form is not None else None
    return problem or f"the answer must be {expected(question)}"


def answer_fits(question: Question, answer: Any) -> bool:
    """Whether the answer is of the question's type. Nothing is converted: `"yes"` is not `true`."""
    form = form_of(question)
    if form is not None:
        return problem_of(form, answer) is None
    if question.answer_type == "Boolean":
        return isinstance(answer, bool)
    if not isinstance(answer, str) or not is_text(answer):
        return False
    options = select_options(question)
    return options is None or answer in options


def read_answer(question: Question, text: str) -> Any:
    """Return the answer of the question's type that a typed text stands for, or the text itself."""
    if form_of(question) is None:
        return read_field(answer_schema(question), text)
    try:
        return msgspec.json.decode(text.strip())
    except (msgspec.DecodeError, RecursionError):
        return text
