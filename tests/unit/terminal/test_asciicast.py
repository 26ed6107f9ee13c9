"""Recordings: every kept byte in order, whole characters, times that never go back."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.terminal.recorded import LS

from keephold.handles.output import Output
from keephold.handles.spool import Spool
from keephold.handles.timeline import Timeline, asciicast


@pytest.fixture
def spool() -> Iterator[Spool]:
    spool = Spool()
    yield spool
    spool.close()


class Session:
    """An output and its timeline, as a terminal writes them."""

    def __init__(self, spool: Spool, max_output: int = 1 << 20) -> None:
        self.output = Output(spool, max_output)
        self.timeline = Timeline(1000.25, 24, 80)

    def print(self, after: float, data: bytes) -> None:
        self.output.append(data)
        self.timeline.note(self.output.total, 1000.25 + after)

    def resize(self, after: float, rows: int, cols: int) -> None:
        self.timeline.resized(self.output.total, 1000.25 + after, rows, cols)

    def events(self) -> list[Any]:
        lines = list(asciicast(self.timeline, self.output))
        assert not any("\n" in line for line in lines)
        header, *events = [json.loads(line) for line in lines]
        assert header == {"version": 2, "width": 80, "height": 24, "timestamp": 1000}
        return events


def test_a_session_is_what_was_printed_and_when(spool: Spool) -> None:
    session = Session(spool)
    session.print(0.5, b"$ ")
    session.print(2.0, b"ls\r\n")
    session.print(2.1, LS)
    assert session.events() == [[0.5, "o", "$ "], [2.0, "o", "ls\r\n"], [2.1, "o", LS.decode()]]


def test_sizes_stand_between_the_bytes_they_stood_between(spool: Spool) -> None:
    session = Session(spool)
    session.print(1.0, b"a")
    session.resize(1.001, 50, 132)
    session.print(1.002, b"b")  # one mark with what was before
    session.resize(3.0, 10, 20)
    session.print(5.0, b"c")
    session.resize(6.0, 24, 80)
    assert session.events() == [
        [1.0, "o", "a"],
        [1.001, "r", "132x50"],
        [1.001, "o", "b"],
        [3.0, "r", "20x10"],
        [5.0, "o", "c"],
        [6.0, "r", "80x24"],
    ]


def test_a_character_that_was_cut_in_two_is_whole_in_the_later_event(spool: Spool) -> None:
    session = Session(spool)
    data = "x你".encode()
    session.print(1.0, data[:2])
    session.print(2.0, data[2:3])
    session.print(3.0, data[3:] + b"!\xe4")
    assert session.events() == [[1.0, "o", "x"], [3.0, "o", "你!"], [3.0, "o", "\ufffd"]]


def test_what_was_not_kept_is_a_line_of_the_recording(spool: Spool) -> None:
    session = Session(spool, 20)
    for number in range(10):
        session.print(number, b"%d2345678\r\n" % number)
    assert session.output.gap == (10, 90)
    assert session.events() == [
        [0.0, "o", "02345678\r\n"],
        [1.0, "o", "\x1b[0m\r\n[80 bytes were not kept]\r\n"],
        [9.0, "o", "92345678\r\n"],
    ]


def test_what_nobody_noted_comes_last(spool: Spool) -> None:
    session = Session(spool)
    session.print(1.0, b"a")
    session.output.append(b"b")
    assert session.events() == [[1.0, "o", "a"], [1.0, "o", "b"]]
    empty = Session(spool)
    assert empty.events() == []


def test_an_output_that_was_discarded_is_a_gap(spool: Spool) -> None:
    session = Session(spool)
    session.print(1.0, b"abc")
    session.output.discard()
    assert session.events() == [[1.0, "o", "\x1b[0m\r\n[3 bytes were not kept]\r\n"]]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(str.encode)


@given(st.lists(st.tuples(texts, st.floats(0, 0.1), st.integers(0, 8), st.booleans()), max_size=40))
def test_every_byte_is_in_it_in_order(pieces: list[tuple[bytes, float, int, bool]]) -> None:
    spool = Spool()
    session, at, sent = Session(spool), 0.0, b""
    for data, pause, cut, resized in pieces:
        at += pause
        for part in (data[:cut], data[cut:]):
            session.print(at, part)
        if resized:
            session.resize(at, 30, 30)
        sent += data
    events = session.events()
    assert "".join(data for _, kind, data in events if kind == "o").encode() == sent
    assert [time for time, _, _ in events] == sorted(time for time, _, _ in events)
    spool.close()
