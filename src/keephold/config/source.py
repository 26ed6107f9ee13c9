"""The file of a configuration: what is written where, with the defaults of `"*"` merged under every tool.

`tomllib` keeps no positions, so `Lines` finds the line of every key, and `Source.at` the line to edit: a tool's own, or
that of `[conversation.tools."*"]`.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KeyPath = tuple[str | int, ...]
Problem = tuple[KeyPath, str]
"""A key and what is wrong with it."""

TOOLS: KeyPath = ("conversation", "tools")
DEFAULTS = "*"

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY_PART = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*'""")
# The parts of a value whose brackets and line ends do not count: strings, comments, and the rest. A multi-line string
# may end in up to two quotes of its own before the three that close it.
_INERT = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\]|\\.)*"'
    r"|'[^']*'"
    r"|\#[^\n]*"
    r"|[^\[\]{}\"'#\n]+",
    re.DOTALL,
)


class Lines:
    """The lines of the keys of a valid TOML text, from 1.

    A key has the line on which it was first named: in a header, or as a dotted or quoted key. Keys inside a value (an
    inline table, a list) have the line of the value's key.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: dict[KeyPath, int] = {(): 1}
        self._counts: dict[KeyPath, int] = {}
        # Lines are counted forwards only, so that a long file costs one pass.
        self._counted_to = 0
        self._line = 1
        self._scan()

    def line(self, path: KeyPath) -> int:
        """Return the line of the key, or of the innermost table around it that the text names."""
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]

    def _scan(self) -> None:
        table: KeyPath = ()
        while True:
            self._skip(_BLANK)
            if self._at >= len(self._text):
                return
            line = self._here()
            if self._text.startswith("[[", self._at):
                table = self._array_item(self._key(2))
                self._note(table, line)
                self._at = self._text.index("]]", self._at) + 2
            elif self._text[self._at] == "[":
                table = self._resolve(self._key(1))
                self._note(table, line)
                self._at = self._text.index("]", self._at) + 1
            else:
                self._note(table + self._key(0), line)
                self._at = self._text.index("=", self._at) + 1
                self._skip_value()

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        return self._line

    def _note(self, path: KeyPath, line: int) -> None:
        """Record the key and, if they are new, the tables it implies."""
        for length in range(1, len(path) + 1):
            self._lines.setdefault(path[:length], line)

    def _key(self, skip: int) -> tuple[str, ...]:
        self._at += skip
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            match = _KEY_PART.match(self._text, self._at)
            assert match is not None, "tomllib has accepted this text"
            self._at = match.end()
            parts.append(_unquoted(match.group()))
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return tuple(parts)
            self._at += 1

    def _resolve(self, key: tuple[str, ...]) -> KeyPath:
        """Return the key as a path; an array of tables means its latest item."""
        path: KeyPath = ()
        for part in key:
            path += (part,)
            if path in self._counts:
                path += (self._counts[path] - 1,)
        return path

    def _array_item(self, key: tuple[str, ...]) -> KeyPath:
        array = (*self._resolve(key[:-1]), key[-1])
        index = self._counts.get(array, 0)
        self._counts[array] = index + 1
        return (*array, index)

    def _skip_value(self) -> None:
        """Go to the end of the line on which the value ends."""
        depth = 0
        while self._at < len(self._text):
            before = self._at
            self._skip(_INERT)
            if self._at > before:
                continue
            character = self._text[self._at]
            if character == "\n" and depth == 0:
                return
            depth += (character in "[{") - (character in "]}")
            self._at += 1


def _unquoted(part: str) -> str:
    if part[0] not in "\"'":
        return part
    value = tomllib.loads(f"key = {part}")["key"]
    assert isinstance(value, str)
    return value


@dataclass(frozen=True, slots=True)
class Source:
    """A configuration file as written."""

    path: Path
    data: Mapping[str, Any]
    lines: Lines

    def at(self, key: KeyPath) -> str:
        """Return `keephold.toml:12: conversation.tools.check.run`, where the setting is really written."""
        return f"{shown(self.path)}:{self.line(key)}: {dotted(self._written_as(key))}"

    def line(self, key: KeyPath) -> int:
        """Return the line on which the setting is really written."""
        return self.lines.line(self._written_as(key))

    def has(self, key: KeyPath) -> bool:
        """Return whether exactly this key is written; defaults of `"*"` do not count."""
        return _depth(self.data, key) == len(key)

    def inherited(self, key: KeyPath) -> bool:
        """Return whether the setting of a tool is really one of the defaults."""
        return self._written_as(key) != key

    def tool(self, name: str) -> dict[str, Any]:
        """Return the tool's table with the defaults merged under it."""
        own = table_at(self.data, (*TOOLS, name))
        defaults = {} if name == DEFAULTS else table_at(self.data, (*TOOLS, DEFAULTS))
        return merged(_without_contradiction(defaults, own), own)

    def _written_as(self, key: KeyPath) -> KeyPath:
        inside = len(TOOLS) + 1
        if key[: len(TOOLS)] != TOOLS or len(key) <= inside:
            return key
        default = (*TOOLS, DEFAULTS, *key[inside:])
        return default if _depth(self.data, default) > max(_depth(self.data, key), inside) else key


def shown(path: Path) -> str:
    """Return the path as the user in the working directory would write it."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def dotted(key: KeyPath) -> str:
    """Return the key as TOML writes it: `conversation.tools."*".run`."""
    bare = re.compile(r"[A-Za-z0-9_-]+").fullmatch
    return ".".join(part if bare(part) else json.dumps(part, ensure_ascii=False) for part in map(str, key))


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables, and the tables inside them; other values of `over` win."""
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _without_contradiction(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the defaults without those that contradict the tool's own table: `actions` imply `stateful`."""
    spawn, ours = table_at(defaults, ("spawn",)), table_at(own, ("spawn",))
    if ours.get("stateful") is False:
        overruled = "actions"
    elif "actions" in ours and spawn.get("stateful") is False:
        overruled = "stateful"
    else:
        return defaults
    return {**defaults, "spawn": {key: value for key, value in spawn.items() if key != overruled}}


def table_at(data: Mapping[str, Any], key: KeyPath) -> dict[str, Any]:
    """Return the table at this path; an empty one if there is none, or something else, which its model reports."""
    value: Any = data
    for part in key:
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _depth(data: Any, key: KeyPath) -> int:
    """Return how many parts of the key exist."""
    for depth, part in enumerate(key):
        inside = range(len(data)) if isinstance(data, list) else data if isinstance(data, dict) else ()
        if part not in inside:
            return depth
        data = data[part]
    return len(key)
