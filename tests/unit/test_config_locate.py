"""The line of a key in a TOML text (L4): whatever the notation, and whatever stands in the values."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keephold.config.source import KeyPath, Lines

VALUES = [
    "1979-05-27T07:32:00Z",
    "-1.5e3",
    '""',
    "''",
    '"\\" # ] = [ \'"',
    "'\\'",
    '"""\n[fake]\nx = 1 # "\n"""',
    "'''\n[[fake]]\n\"\"\"\n'''",
    '""""quoted""""',
    "''''quoted''''",
    '"""a\\\n   \\""" b"""',
    '[ # ]\n  1, # "\n  "]",\n  [\'#\'],\n]',
    '{ a = "}", b.c = [1, "#"], "d # e" = { } }',
    "[]  # comment = 1",
]
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f", max_codepoint=0x2FF), max_size=5)
TABLES = st.recursive(
    st.sampled_from(VALUES),
    lambda inner: (
        st.dictionaries(KEYS, inner, max_size=4) | st.lists(st.dictionaries(KEYS, inner, max_size=3), min_size=1)
    ),
    max_leaves=25,
)


class Writer:
    """Writes a document in every notation TOML has, and notes the line on which each key is first named."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.text = ""
        self.lines: dict[KeyPath, int] = {}

    def table(self, path: KeyPath, header: list[str], content: dict[str, Any]) -> None:
        later: dict[str, Any] = {}
        for key, value in content.items():
            if isinstance(value, str):
                self.emit(f"{self.key([key])} = {value}", (*path, key))
            elif self.is_flat(value) and self.draw(st.booleans()):
                for inner, text in value.items():
                    self.emit(f"{self.key([key, inner])} = {text}", (*path, key), (*path, key, inner))
            else:
                later[key] = value
        for key, value in later.items():
            inside = [*header, key]
            if isinstance(value, dict):
                self.emit(f"[{self.key(inside)}]", (*path, key))
                self.table((*path, key), inside, value)
            else:
                for index, item in enumerate(value):
                    self.emit(f"[[{self.key(inside)}]]", (*path, key), (*path, key, index))
                    self.table((*path, key, index), inside, item)

    def emit(self, text: str, *paths: KeyPath) -> None:
        self.text += self.draw(st.sampled_from(["", "\n", "# [x] = '\n", "\r\n  "]))
        for path in paths:
            self.lines.setdefault(path, self.text.count("\n") + 1)
        self.text += text + self.draw(st.sampled_from(["\n", " # = [\n", "\r\n"]))

    def key(self, parts: list[str]) -> str:
        return self.draw(st.sampled_from([".", " . "])).join(map(self.quoted, parts))

    def quoted(self, part: str) -> str:
        bare = part.isascii() and part.replace("_", "").replace("-", "").isalnum()
        literal = part.isprintable() and "'" not in part
        escaped = "".join(f"\\u{ord(c):04x}" if c in '"\\' or not c.isprintable() else c for c in part)
        notations = [f'"{escaped}"'] + [part] * bare + [f"'{part}'"] * literal
        return self.draw(st.sampled_from(notations))

    @staticmethod
    def is_flat(value: Any) -> bool:
        return isinstance(value, dict) and bool(value) and all(isinstance(item, str) for item in value.values())


@given(st.dictionaries(KEYS, TABLES, max_size=5), st.data())
@pytest.mark.slow
def test_L4_the_line_of_every_key_is_found(content: dict[str, Any], data: st.DataObject) -> None:
    writer = Writer(data)
    writer.table((), [], content)
    tomllib.loads(writer.text)
    lines = Lines(writer.text)
    assert {path: lines.line(path) for path in writer.lines} == writer.lines


def test_L4_a_key_that_is_not_written_gets_the_line_of_its_table() -> None:
    lines = Lines("a = 1\n[b.c]\nd = [\n  { e = 1 },\n]\n[b]\n")
    assert [lines.line(path) for path in [("z",), ("b",), ("b", "c", "x"), ("b", "c", "d", 0, "e"), ()]] == [
        1,
        2,
        2,
        3,
        1,
    ]
