"""Where in a TOML text a key stands, because `tomllib` keeps no positions and an error without a line is a riddle.

`Lines(text).line(path)` is the line (from 1) on which the key was first named: in a table's header, as a dotted or
quoted key, or in the header of an array of tables, whose items are counted in the path. What stands inside a value
(an inline table, a list) has no line of its own here and gets that of the key the value belongs to. A key that is not
in the text gets the line of the innermost table around it that is.

The text must be valid TOML: `tomllib` has read it before. Therefore the scan only has to find where keys begin and
values end.
"""

import re
import tomllib

KeyPath = tuple[str | int, ...]

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
