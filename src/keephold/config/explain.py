"""What is wrong with a setting, in words for the person who wrote it: what was given and what would be right.

`problems` checks a table against its model and turns pydantic's findings into such sentences. Values of settings that
may be secret (K5: the environment, a store's address, a password) are never repeated.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from keephold.config.key_suggestions import belongs, nearly_belongs
from keephold.config.locate import KeyPath
from keephold.config.model import Table

_EXPECTED = {
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
}
_SECRET = frozenset({"env", "url", "password", "headers"})


def problems(model: type[Table], data: Mapping[str, Any], where: KeyPath = ()) -> list[tuple[KeyPath, str]]:
    """Every problem of the table as the key's path inside it and a sentence. `where` is its place in the file."""
    try:
        model.model_validate(data)
    except ValidationError as error:
        return [_explain(model, details, where) for details in error.errors(include_url=False)]
    return []


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The sentence for a key nobody knows, with the nearest one that is known (L4)."""
    known = list(known)
    return f"unknown key; {_nearest(key, known, '`') or 'known here: ' + ', '.join(known)}"


def _misplaced_key(key: str, known: Iterable[str], table: KeyPath, value: Any) -> str:
    """The same for a key of a table of the file: it may be right in another one."""
    place = belongs(table, key, value)
    sentence = unknown_key(key, known)
    if not place and "did you mean" not in sentence:
        place = nearly_belongs(table, key, value)
    return f"unknown key; {place}" if place else sentence


def not_one_of(value: Any, choices: Iterable[str]) -> str:
    """The sentence for a value that is not among the choices."""
    choices = list(choices)
    nearest = _nearest(value, choices, '"') if isinstance(value, str) else ""
    listed = ", ".join(f'"{choice}"' for choice in choices)
    return f"must be one of {listed}, not {given(value)}" + (f"; {nearest}" if nearest else "")


def given(value: Any) -> str:
    """A value as a person wrote it, or in a word what it is; short whatever it is."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str():
            return json.dumps(value if len(value) <= 40 else f"{value[:40]}…", ensure_ascii=False)
    return kind(value)


def kind(value: Any) -> str:
    """What sort of value it is, without the value."""
    match value:
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "a table"
    return "a date or time"


def _explain(model: type[Table], details: ErrorDetails, where: KeyPath) -> tuple[KeyPath, str]:
    path, error, value = details["loc"], details["type"], details["input"]
    context = details.get("ctx", {})
    if path and path[-1] == "[key]":
        return path[:-1], unknown_key(str(value), _choices(context))
    show = kind if _SECRET & set(path) else given
    match error:
        case "extra_forbidden":
            known = _known_keys(model, path[:-1])
            return path, _misplaced_key(str(path[-1]), known, (*where, *path[:-1]), value)
        case "literal_error":
            return path, not_one_of(value, _choices(context))
        case "greater_than_equal":
            return path, f"must be at least {context['ge']:g}, not {show(value)}"
        case "less_than_equal":
            return path, f"must be at most {context['le']:g}, not {show(value)}"
        case "too_short":
            return path, "must not be empty"
        case "greater_than":
            return path, f"must be above {context['gt']:g}, not {show(value)}; leave it out for none"
        case "value_error":
            return path, f"{context['error']}, not {show(value)}"
    expected = _EXPECTED.get(error)
    if expected is None:
        return path, details["msg"]
    return path, f"must be {expected}, not {show(value)}" + _quotes_hint(expected, value, show)


def _quotes_hint(expected: str, value: Any, show: Any) -> str:
    if expected == "a string" and isinstance(value, bool | int | float):
        return "; put it in quotes"
    if show is kind or not isinstance(value, str):
        return ""
    looks_right = {
        "a whole number": r"-?\d+",
        "a number": r"-?\d+(\.\d+)?",
        "true or false": "true|false",
    }.get(expected)
    return f"; without the quotes: {value}" if looks_right and re.fullmatch(looks_right, value) else ""


def _nearest(word: str, known: list[str], quote: str) -> str:
    nearest = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {quote}{nearest[0]}{quote}?" if nearest else ""


def _choices(context: Mapping[str, Any]) -> list[str]:
    """The values of a Literal, which pydantic names as `'ask', 'edit' or 'skip'`."""
    return re.findall(r"'([^']*)'", str(context.get("expected", "")))


def _known_keys(model: type[Table], path: KeyPath) -> list[str]:
    """The keys of the table at `path`, seen from `model`."""
    annotation: Any = model
    for part in path:
        if get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
        else:
            annotation = annotation.model_fields[part].annotation
    return list(annotation.model_fields)
