"""The file a configuration came from: what is written where, with the defaults of `"*"` merged under every tool.

A setting of a tool may stand in the tool's own table or in `[conversation.tools."*"]`. `Source.at` finds out which, so
that a problem always names the line a person has to edit.

Where in a TOML text a key stands, because `tomllib` keeps no positions and an error without a line is a riddle.

`Lines(text).line(path)` is the line (from 1) on which the key was first named: in a table's header, as a dotted or
quoted key, or in the header of an array of tables, whose items are counted in the path. What stands inside a value
(an inline table, a list) has no line of its own here and gets that of the key the value belongs to. A key that is not
in the text gets the line of the innermost table around it that is.

The text must be valid TOML: `tomllib` has read it before. Therefore the scan only has to find where keys begin and
values end.
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

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY_PART = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*'""")
# What of a value has no bracket and no line end that counts: strings, comments, and the rest. A multi-line string may
# end in up to two quotes of its own before the three that close it.
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
    """The line of every key of a TOML text."""

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
        """The line of the key, or of the innermost table around it that the text names."""
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
        """The key and, where they are named for the first time, the tables it implies."""
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
        """The key as a path: an array of tables stands for its latest item."""
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


TOOLS: KeyPath = ("conversation", "tools")
DEFAULTS = "*"


@dataclass(frozen=True, slots=True)
class Source:
    """A configuration file as written."""

    path: Path
    data: Mapping[str, Any]
    lines: Lines

    def at(self, key: KeyPath) -> str:
        """`keephold.toml:12: conversation.tools.check.run`, with the place where the setting is really written."""
        return f"{shown(self.path)}:{self.line(key)}: {dotted(self._written_as(key))}"

    def line(self, key: KeyPath) -> int:
        """The line on which the setting is really written."""
        return self.lines.line(self._written_as(key))

    def has(self, key: KeyPath) -> bool:
        """Whether exactly this key is written; defaults of `"*"` do not count."""
        return _depth(self.data, key) == len(key)

    def inherited(self, key: KeyPath) -> bool:
        """Whether the setting of a tool is really one of the defaults."""
        return self._written_as(key) != key

    def tool(self, name: str) -> dict[str, Any]:
        """The tool's table with the defaults merged under it."""
        own = _table(self.data, (*TOOLS, name))
        defaults = {} if name == DEFAULTS else _table(self.data, (*TOOLS, DEFAULTS))
        return merged(_without_contradiction(defaults, own), own)

    def _written_as(self, key: KeyPath) -> KeyPath:
        inside = len(TOOLS) + 1
        if key[: len(TOOLS)] != TOOLS or len(key) <= inside:
            return key
        default = (*TOOLS, DEFAULTS, *key[inside:])
        return default if _depth(self.data, default) > max(_depth(self.data, key), inside) else key


def shown(path: Path) -> str:
    """The path as a person in the working directory would write it."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def dotted(key: KeyPath) -> str:
    """The key as TOML writes it: `conversation.tools."*".run`."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else _quoted(part) for part in map(str, key))


def _quoted(part: str) -> str:
    return json.dumps(part, ensure_ascii=False)


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables in one: tables are merged all the way down, of anything else `over` wins."""
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _without_contradiction(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """The defaults less what the tool's own table overrules under another name: `actions` imply `stateful`."""
    spawn, ours = _table(defaults, ("spawn",)), _table(own, ("spawn",))
    if ours.get("stateful") is False:
        overruled = "actions"
    elif "actions" in ours and spawn.get("stateful") is False:
        overruled = "stateful"
    else:
        return defaults
    return {**defaults, "spawn": {key: value for key, value in spawn.items() if key != overruled}}


def _table(data: Mapping[str, Any], key: KeyPath) -> dict[str, Any]:
    value: Any = data
    for part in key:
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _depth(data: Any, key: KeyPath) -> int:
    """How many parts of the key are there."""
    for depth, part in enumerate(key):
        inside = range(len(data)) if isinstance(data, list) else data if isinstance(data, dict) else ()
        if part not in inside:
            return depth
        data = data[part]
    return len(key)
