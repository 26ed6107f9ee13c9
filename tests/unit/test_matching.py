"""The search for a line in output that grows (A9): every line counts, however it arrives, and long ones stay cheap."""

import asyncio
import time
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.soak import tries
from tests.unit.terminal.noise import noise
from tests.unit.terminal.recorded import BASH_EDITS, BASH_UNDO, BASH_WIDE, CAT_ECHO, LESS, LS, VIM, VIM_QUITS

from keephold.handles import matching
from keephold.handles.matching import LONGEST_LINE, Search
from keephold.handles.output import Output
from keephold.handles.patterns import compiled
from keephold.handles.rendering import Lines, render
from keephold.handles.spool import Spool
from keephold.testing import VirtualClock

MiB = 1 << 20
RECORDED = (BASH_EDITS, BASH_WIDE, BASH_UNDO, CAT_ECHO, b"$ vim\r\n" + VIM + VIM_QUITS + b"$ ", LESS, LS)


@pytest.fixture
def spool() -> Iterator[Spool]:
    spool = Spool()
    yield spool
    spool.close()


def in_pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return (data[start:stop] for start, stop in pairwise(places))


def lines_of(pieces: Iterator[bytes]) -> str:
    lines = Lines()
    done = "".join(lines.feed(piece) for piece in pieces)
    return done + lines.unfinished


def same(text: str) -> list[str]:
    """The lines, without the blanks at their ends: which are shown depends on where the cursor was."""
    return [line.rstrip() for line in text.split("\n")]


@given(st.sampled_from(RECORDED), st.lists(st.integers(0, 10_000), max_size=40))
def test_pieces_are_rendered_as_the_whole_is(data: bytes, cuts: list[int]) -> None:
    assert same(lines_of(in_pieces(data, cuts))) == same(render(data))


@settings(max_examples=tries(100, soak=20_000))
@given(noise, st.lists(st.integers(0, 10_000), max_size=10))
def test_nothing_that_is_printed_breaks_the_rendering_of_pieces(data: bytes, cuts: list[int]) -> None:
    text = lines_of(in_pieces(data, cuts))
    assert all(each.isprintable() or each in "\n\t" or ord(each) > 127 for each in text)


def test_a_title_that_never_ends_is_not_kept_in_memory() -> None:
    lines = Lines()
    lines.feed(b"\x1b]0;")
    for _ in range(100):
        lines.feed(b"x" * 10_000)
    assert len(lines._begun) <= matching.LONGEST_LINE


class Found:
    """A search, and how often it has called back."""

    def __init__(self, spool: Spool, pattern: str, max_output: int = 100 * MiB) -> None:
        self.output = Output(spool, max_output)
        self.calls = 0
        self.search = Search(compiled(pattern), lambda: self.output, self._looked)

    def _looked(self) -> None:
        self.calls += 1

    async def caught_up(self) -> int:
        """Wait until all is searched; return how many steps that took."""
        steps = 0
        await asyncio.sleep(0)
        while self.search.behind:
            steps += 1
            await asyncio.sleep(0)
        return steps

    def prints(self, data: bytes) -> str | None:
        self.output.append(data)
        self.search.printed()
        return self.search.matched


@pytest.mark.parametrize(
    ("pattern", "printed", "line"),
    [
        ("ready", [b"not yet\nre", b"ady", b" in 5 s\n"], "ready"),
        ("^ready in 5 s$", [b"not yet\nre", b"ady in 5 s\n"], "ready in 5 s"),
        (">>> $", [b"Python\n>>> "], ">>> "),
        (r"\Aready\z", [b"x\nready\ny\n"], "ready"),
        (r"a\sb|a[^x]b|(?s)a.b", [b"a\nb\n"], None),
        ("a.*b", [b"a\n", b"b\n"], None),
        ("^$", [b"a\n", b"b\n"], None),
        ("^$", [b"a\n", b"\n"], ""),
        (".*", [b""], None),
        ("x", ["ä".encode()[:1], "ä".encode()[1:] + b"x"], "äx"),
        ("(?i)READY", [b"\x1b[3", b"2mRe", b"\x1b[1mady\x1b[0m\r", b"\n"], "Ready"),
        ("100%", [b"10%\r", b"50%\r", b"100%\r"], "100%"),
        ("^10%", [b"50%\r10%\r\n"], "10%"),
        ("^50%", [b"50%\r10%\r\n"], None),
    ],
)
def test_A9_a_pattern_is_matched_against_one_line(
    spool: Spool, pattern: str, printed: list[bytes], line: str | None
) -> None:
    found = Found(spool, pattern)
    for piece in printed:
        found.prints(piece)
    assert found.search.matched == line and found.calls == (line is not None)


@given(st.lists(st.integers(0, 60), max_size=20))
def test_A9_the_pieces_of_a_line_do_not_matter(cuts: list[int]) -> None:
    spool = Spool()
    found = Found(spool, r"^\[server\] listening on \S+ \(pid \d+\)$")
    for piece in in_pieces("grüße\n\x1b[2K[server] listening on :80 (pid 17)\r\nmore\n".encode(), cuts):
        found.prints(piece)
    assert found.search.matched == "[server] listening on :80 (pid 17)"
    spool.close()


async def test_A9_a_very_long_line_is_matched_in_bounded_memory_and_time(spool: Spool) -> None:
    found = Found(spool, "end of it$", max_output=MiB)
    tracemalloc.start()
    found.prints(b"x" * 1000)
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(2000):
        found.prints(b"y" * 1000)
        await found.caught_up()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 3 * MiB
    line = found.prints(b" end of it")
    found.output.discard()
    assert line is not None and line.endswith(" end of it") and len(line) < 1100


async def test_A9_the_beginning_of_a_long_line_is_its_only_beginning(spool: Spool) -> None:
    found = Found(spool, "^y")
    for _ in range(10):
        assert found.prints(b"x" * 1000 + b"y" * LONGEST_LINE) is None
        await found.caught_up()
    assert found.prints(b"\ny") == "y"


async def test_A9_a_long_output_is_searched_in_steps(spool: Spool, clock: VirtualClock) -> None:
    found = Found(spool, "last line")
    found.output.append((b"x" * 99 + b"\n") * 100_000 + b"the last line\n")
    found.search.printed()
    assert found.search.behind
    assert await found.caught_up() > 100 and found.search.matched == "the last line" and found.calls == 1
    found.output.discard()


async def test_A9_a_search_that_has_caught_up_says_so(spool: Spool, clock: VirtualClock) -> None:
    found = Found(spool, "never")
    found.output.append((b"x" * 99 + b"\n") * 10_000)
    found.search.printed()
    await found.caught_up()
    assert found.calls == 1
    found.prints(b"more\n")
    assert found.calls == 1


async def test_A9_lines_in_the_gap_cannot_match_and_halves_are_not_joined(spool: Spool, clock: VirtualClock) -> None:
    found = Found(spool, "lost|ab", max_output=200)
    found.output.append(b"x" * 99 + b"a" + b"lost\n" * 100 + b"b" + b"y" * 99)
    found.search.printed()
    await found.caught_up()
    assert found.search.matched is None
    assert found.prints(b"\nlost") == "lost"


async def test_K8_the_slowest_pattern_leaves_the_loop_to_others(spool: Spool) -> None:
    found = Found(spool, r"[\w]{500}!")
    found.output.append(b"xy" * 50_000)
    began, steps = time.thread_time(), 0
    found.search.printed()
    assert found.search.behind
    while time.thread_time() - began < 0.5 and found.search.behind:
        steps += 1
        await asyncio.sleep(0)
    found.search.cancel()
    assert steps > 5 and not found.search.behind


async def test_K8_many_slow_patterns_leave_the_loop_to_others_as_one_does(spool: Spool, clock: VirtualClock) -> None:
    """Steps of different searches are not taken in one round of the loop, neither at the beginning nor later."""
    output = Output(spool, 100 * MiB)
    output.append(b"xy" * 50_000)
    searches = [Search(compiled(rf"[\w]{{{500 - number}}}!"), lambda: output, lambda: None) for number in range(16)]
    for search in searches:
        search.printed()
    for _ in range(20):
        before = [search.offset for search in searches]
        await asyncio.sleep(0.01)
        assert sum(search.offset > start for search, start in zip(searches, before, strict=True)) < 10
    assert all(search.behind for search in searches) and any(search.offset for search in searches)
    for search in searches:
        search.cancel()
