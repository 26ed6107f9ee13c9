"""Explains what is wrong with a setting: what was given, what would be right, and where a misplaced key belongs.

`problems` turns pydantic's findings into sentences. Values of settings that may be secret (K5: the environment, a
store's address, a password) are never repeated.
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from keephold.config.model import Config, Table
from keephold.config.source import TOOLS, KeyPath, dotted

_ANY = "<name>"
"""Stands in a path for a name that the file chooses: of a tool, of a question."""

_COMMAND: KeyPath = (*TOOLS, _ANY, "command")
_COMMAND_KEYS = ("program", "args", "shell")
_NO_TABLES: tuple[Any, ...] = (str, str | None, bool, bool | None, int, float, list[str], list[str] | None)


def _place(table: KeyPath, key: str, meant: str, value: Any) -> str:
    """Return where `key`, unknown in `table`, belongs if it was `meant` so; the end of a sentence, or empty."""
    found = [
        (_as_in(path, table), path)
        for path, keys in _tables().items()
        if meant in keys and (keys[meant] or not isinstance(value, dict))
    ]
    if not found:
        return ""
    nearest = min(_distance(place, table) for place, _ in found)
    found = [(place, path) for place, path in found if _distance(place, table) == nearest]
    place, path = found[0]
    if path == _COMMAND:
        return "belongs in `command = { program, args, shell }`"
    if isinstance(value, dict):
        # If the file chooses the names, use the first: [tools.a] should be [conversation.tools.a].
        names = [next(iter(value))] if value and (*path, meant, _ANY) in _tables() else []
        return f"did you mean {_header((*place, meant, *names))}?"
    listed = " or ".join(_header(place) for place, _ in found[:2] if place)
    return listed and f"belongs in {listed}" + ("" if meant == key else f" as `{meant}`")


def _header(path: KeyPath) -> str:
    """Return the header of the table; a name that the user chooses stays `<name>`."""
    return "[" + ".".join(str(part) if part == _ANY else dotted((part,)) for part in path) + "]"


@cache
def _tables() -> dict[KeyPath, dict[str, bool]]:
    """Return every table of the file with its keys, and whether a key may be a table itself."""
    return {**dict(_below(Config, ())), _COMMAND: dict.fromkeys(_COMMAND_KEYS, False)}


def _below(model: type[Table], path: KeyPath) -> Iterator[tuple[KeyPath, dict[str, bool]]]:
    yield path, {name: field.annotation not in _NO_TABLES for name, field in model.model_fields.items()}
    for name, field in model.model_fields.items():
        annotation: Any = field.annotation
        inner: KeyPath = (*path, name)
        if get_origin(annotation) is dict:
            annotation, inner = get_args(annotation)[1], (*inner, _ANY)
        if isinstance(annotation, type) and issubclass(annotation, Table):
            yield from _below(annotation, inner)


def _as_in(path: KeyPath, table: KeyPath) -> KeyPath:
    """Return the path with the names of `table`, as far as the two are the same."""
    named: list[str | int] = []
    for depth, part in enumerate(path):
        same_way = part == _ANY and table[:depth] == tuple(named) and len(table) > depth
        named.append(table[depth] if same_way else part)
    return tuple(named)


def _distance(path: KeyPath, table: KeyPath) -> int:
    """Return the number of steps between two tables."""
    shared = 0
    while shared < min(len(path), len(table)) and path[shared] == table[shared]:
        shared += 1
    return len(path) + len(table) - 2 * shared


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


_KINDS = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "a table"}


def problems(model: type[Table], data: Mapping[str, Any], where: KeyPath = ()) -> list[tuple[KeyPath, str]]:
    """Return every problem of the table as a key's path and a sentence. `where` is the table's path in the file."""
    try:
        model.model_validate(data)
    except ValidationError as error:
        return [_explain(model, details, where) for details in error.errors(include_url=False)]
    return []


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the sentence for an unknown key, with the nearest known one (L4)."""
    known = list(known)
    return f"unknown key; {_nearest(key, known, '`') or 'known here: ' + ', '.join(known)}"


def _misplaced_key(key: str, known: Iterable[str], table: KeyPath, value: Any) -> str:
    """Like `unknown_key`, for a key that may belong in another table."""
    place = _place(table, key, key, value)
    sentence = unknown_key(key, known)
    if not place and "did you mean" not in sentence:
        tables, is_table = _tables().values(), isinstance(value, dict)
        elsewhere = {name for keys in tables for name, may_be_table in keys.items() if may_be_table or not is_table}
        near = difflib.get_close_matches(key, sorted(elsewhere), n=1, cutoff=0.8)
        place = _place(table, key, near[0], value) if near else ""
    return f"unknown key; {place}" if place else sentence


def not_one_of(value: Any, choices: Iterable[str]) -> str:
    """Return the sentence for a value that is not among the choices."""
    choices = list(choices)
    nearest = _nearest(value, choices, '"') if isinstance(value, str) else ""
    listed = ", ".join(f'"{choice}"' for choice in choices)
    return f"must be one of {listed}, not {given(value)}" + (f"; {nearest}" if nearest else "")


def given(value: Any) -> str:
    """Return a short form of a value as it was written, or its kind."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str():
            return json.dumps(value if len(value) <= 40 else f"{value[:40]}…", ensure_ascii=False)
    return kind(value)


def kind(value: Any) -> str:
    """Return the kind of a value, without the value."""
    return _KINDS.get(type(value), "a date or time")


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
            return path, f"must be above {context['gt']:g}, not {show(value)}; leave it out for the default"
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
    forms = {"a whole number": r"-?\d+", "a number": r"-?\d+(\.\d+)?", "true or false": "true|false"}
    looks_right = forms.get(expected)
    return f"; without the quotes: {value}" if looks_right and re.fullmatch(looks_right, value) else ""


def _nearest(word: str, known: list[str], quote: str) -> str:
    nearest = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {quote}{nearest[0]}{quote}?" if nearest else ""


def _choices(context: Mapping[str, Any]) -> list[str]:
    """Return the values of a Literal, which pydantic names as `'ask', 'edit' or 'skip'`."""
    return re.findall(r"'([^']*)'", str(context.get("expected", "")))


def _known_keys(model: type[Table], path: KeyPath) -> list[str]:
    """Return the keys of the table at `path` below `model`."""
    annotation: Any = model
    for part in path:
        if get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
        else:
            annotation = annotation.model_fields[part].annotation
        if type(None) in get_args(annotation):  # a table that may be missing
            annotation = get_args(annotation)[0]
    return list(annotation.model_fields)
