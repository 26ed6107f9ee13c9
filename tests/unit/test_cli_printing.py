"""What commands print: nothing that a terminal obeys (K4), tables that fit, times that people read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keephold.cli import printing
from keephold.cli.printing import duration, one_line, print_json, printable, relative, table

NASTY = "a\x1b[31mb\x1b]0;title\x07c\x9b2Jd\u202ee\rf\x00\x7fg"


def test_K4_texts_lose_what_a_terminal_would_obey() -> None:
    assert printable(NASTY) == "abcd<U+202E>e\nfg"
    assert one_line(NASTY) == "abcd<U+202E>e fg"


@given(st.text() | st.dictionaries(st.text(), st.text()))
def test_K4_json_keeps_every_character_and_shows_none_that_a_terminal_obeys(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr("click.echo", said.append)
        print_json(value)
    (line,) = said
    assert json.loads(line) == json.loads(json.dumps(value))
    assert not any(ord(each) < 0x20 or 0x7F <= ord(each) < 0xA0 or 0x2028 <= ord(each) <= 0x202E for each in line)


@given(st.lists(st.tuples(*[st.text(st.characters(exclude_categories=("C", "Z")), max_size=60)] * 3), min_size=1))
def test_a_table_fits_the_terminal(rows: list[tuple[str, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printing, "terminal_width", lambda: 40)
        shown = table(rows, shrinking=(0, 1, 2))
    widths = {sum(map(printing._columns, row)) + 4 for row in shown}
    assert len(widths) == 1  # columns stand below each other, wide characters or not
    assert max(widths) <= 40
    for row, cells in zip(rows, shown, strict=True):
        for text, cell in zip(row, cells, strict=True):
            kept = cell.strip("\u2068\u2069").rstrip()
            assert kept == text or text.startswith(kept.removesuffix("…"))


def test_without_a_terminal_nothing_is_cut() -> None:
    assert table([("a" * 500, "b"), ("c", "d")], shrinking=(0, 1)) == [["a" * 500, "b"], ["c" + " " * 499, "d"]]


def test_a_line_is_cut_with_a_mark() -> None:
    assert one_line("a" * 10, 10) == "a" * 10
    assert one_line("a" * 11, 10) == "a" * 9 + "…"
    assert one_line("日本語", 5) == "日本…"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0s"), (0.9, "0s"), (59, "59s"), (60, "1m 0s"), (3723, "1h 2m"), (273_600, "3d 4h"), (864_000, "10d 0h")],
)
def test_durations_have_two_units_at_most(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_times_are_seen_from_now() -> None:
    assert relative(100, 40) == "in 1m 0s"
    assert relative(40, 100) == "1m 0s ago"
