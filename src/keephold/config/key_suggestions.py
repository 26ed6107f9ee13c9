"""Where a key that is unknown in its table would be right: one level deeper, one higher, or in another table.

The tables are read off their models, so a new setting is found without a line here. Only `command` is no table of its
own model: it has three forms.
"""

import difflib
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_origin

from keephold.config.locate import KeyPath
from keephold.config.model import Config, Table
from keephold.config.source import TOOLS, dotted

_ANY = "<name>"
"""Stands in a path for a name that the file gives: of a tool, of a question."""

_COMMAND: KeyPath = (*TOOLS, _ANY, "command")
_COMMAND_KEYS = ("program", "args", "shell")
_NO_TABLES: tuple[Any, ...] = (str, str | None, bool, bool | None, int, float, list[str], list[str] | None)


def belongs(table: KeyPath, key: str, value: Any) -> str:
    """Where `key`, unknown in `table`, would be right, as the end of a sentence; empty if nowhere."""
    return _place(table, key, key, value)


def nearly_belongs(table: KeyPath, key: str, value: Any) -> str:
    """The same for a key that is misspelt as well."""
    tables = _tables().values()
    known = {
        name for keys in tables for name, may_be_table in keys.items() if may_be_table or not isinstance(value, dict)
    }
    near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.8)
    return _place(table, key, near[0], value) if near else ""


def _place(table: KeyPath, key: str, meant: str, value: Any) -> str:
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
        # Where the file gives the names, the first of them: what was written as [tools.a] is [conversation.tools.a].
        names = [next(iter(value))] if value and (*path, meant, _ANY) in _tables() else []
        return f"did you mean {_header((*place, meant, *names))}?"
    listed = " or ".join(_header(place) for place, _ in found[:2] if place)
    return listed and f"belongs in {listed}" + ("" if meant == key else f" as `{meant}`")


def _header(path: KeyPath) -> str:
    """The header of the table, as far as it can be written: a name to be chosen stays `<name>`."""
    return "[" + ".".join(str(part) if part == _ANY else dotted((part,)) for part in path) + "]"


@cache
def _tables() -> dict[KeyPath, dict[str, bool]]:
    """Every table of the file with its keys, and whether they may be tables themselves."""
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
    """The path with the names of `table` as far as the two go the same way."""
    named: list[str | int] = []
    for depth, part in enumerate(path):
        same_way = part == _ANY and table[:depth] == tuple(named) and len(table) > depth
        named.append(table[depth] if same_way else part)
    return tuple(named)


def _distance(path: KeyPath, table: KeyPath) -> int:
    """How many steps lie between two tables."""
    shared = 0
    while shared < min(len(path), len(table)) and path[shared] == table[shared]:
        shared += 1
    return len(path) + len(table) - 2 * shared
