"""What is shown of an output (O1–O3), and what never is (K4)."""

import json
import re
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from keephold.handles.output import Output
from keephold.handles.spool import Spool
from keephold.text import strip_controls
from keephold.tools.base import OutputView
from keephold.turn.budget import Projector, shares, size_of

HINT = "<how to read the rest>"
MARKER = re.compile(r"\.\.\.(\d+) (bytes|tokens|lines) truncated\.\.\.")

projector = Projector()

texts = st.text("ab\né漢😀", max_size=200)
views = st.builds(
    OutputView,
    limit=st.integers(0, 120),
    mode=st.sampled_from(["bytes", "tokens"]),
    max_lines=st.integers(0, 30),
    window=st.sampled_from(["head", "tail", "head_tail"]),
)


@pytest.fixture
def spool() -> Iterator[Spool]:
    spool = Spool()
    yield spool
    spool.close()


def printed(data: bytes, max_output: int = 1 << 20) -> Output:
    output = Output(Spool(), max_output)
    output.append(data)
    return output


def parts(shown: str) -> tuple[str, int, str, str]:
    """Head, number, unit and tail of a text that was cut."""
    marker = MARKER.search(shown)
    assert marker is not None
    left, right = shown.split(f"{marker[0]}\n\n{HINT}")
    assert left.endswith("\n\n") or not left
    assert right.startswith("\n\n") or not right
    return left[:-2], int(marker[1]), marker[2], right[2:]


def cap_of(view: OutputView) -> int:
    return view.limit * (4 if view.mode == "tokens" else 1)


def lines(text: str) -> int:
    return text.count("\n") + (text != "" and not text.endswith("\n"))


def tokens(size: int) -> int:
    return (size + 3) // 4


def check(text: str, view: OutputView, shown: str) -> None:
    """`shown` is the view of `text`, exactly."""
    cap, size = cap_of(view), len(text.encode())
    if size <= cap and lines(text) <= view.max_lines:
        assert shown == text
        return
    head, number, unit, tail = parts(shown)
    seen = len(head.encode()) + len(tail.encode())
    assert text.startswith(head)
    assert text.endswith(tail)
    assert seen <= cap
    assert lines(head) + lines(tail) <= view.max_lines
    assert not tail or view.window != "head"
    assert not head or view.window != "tail"
    if size <= cap:
        assert (unit, number) == ("lines", lines(text) - view.max_lines)
    elif view.mode == "bytes":
        assert (unit, number) == ("bytes", size - seen)
    else:
        assert (unit, number) == ("tokens", tokens(size) - tokens(seen))
    check_is_full(text, view, head, tail)


def check_is_full(text: str, view: OutputView, head: str, tail: str) -> None:
    """Neither half could show one character more."""
    for window, half, room, room_lines in (
        ("head", head, -(-cap_of(view) // 2), -(-view.max_lines // 2)),
        ("tail", tail, cap_of(view) // 2, view.max_lines // 2),
    ):
        if view.window == window:
            room, room_lines = cap_of(view), view.max_lines
        elif view.window != "head_tail":
            continue
        more = text[: len(half) + 1] if window == "head" else text[len(text) - len(half) - 1 :]
        # The newline that ends the last line of a head is not shown, and is the character before the next line.
        full = lines(half) == room_lines or (more.endswith("\n") and lines(more) == room_lines)
        assert full or len(more.encode()) > room


@given(texts, views)
def test_O3_the_number_is_exact_and_no_cap_exceeded(text: str, view: OutputView) -> None:
    check(text, view, projector.text(text, view, HINT))


@given(texts, views)
def test_O3_output_is_cut_like_text(text: str, view: OutputView) -> None:
    output = printed(text.encode())
    check(text, view, projector.text(output.span(), view, HINT))


@given(texts, texts, views)
def test_C5_a_view_of_what_is_new_does_not_look_at_what_is_not(old: str, new: str, view: OutputView) -> None:
    output = printed((old + new).encode())
    check(new, view, projector.text(output.span(len(old.encode())), view, HINT))


@given(st.text("aé😀", max_size=10), texts.filter(bool), views, st.floats(0, 0.99))
def test_O5_what_is_gone_counts_as_cut(old: str, new: str, view: OutputView, kept: float) -> None:
    data, start = (old + new).encode(), len(old.encode())
    output = printed(data, int(len(data) * kept))
    gap = output.gap
    assert gap is not None
    assume(start < gap[1])
    head, number, unit, tail = parts(projector.text(output.span(start), view, HINT))
    seen = len((head + tail).encode())
    size = len(data) - start
    assert seen <= cap_of(view)
    assert (unit, number) in (("bytes", size - seen), ("tokens", tokens(size) - tokens(seen)))
    front, behind = data[start : gap[0]].decode("utf-8", "ignore"), data[gap[1] :].decode("utf-8", "ignore")
    assert (front or behind).startswith(head)
    assert (behind or front).endswith(tail)


@given(st.lists(st.sampled_from([b"a", b"\n", b"\xff", b"\x80", b"\xe6\xbc", "é".encode(), "漢".encode()])), views)
def test_O3_bytes_that_are_not_text_are_counted_and_keep_the_caps(pieces: list[bytes], view: OutputView) -> None:
    assume(view.mode == "bytes")
    data = b"".join(pieces)
    output = printed(data)
    shown = projector.text(output.span(), view, HINT)
    if not MARKER.search(shown):
        assert shown == data.decode("utf-8", "replace")
        assert len(shown.encode()) <= view.limit
        return
    head, number, unit, tail = parts(shown)
    assert len((head + tail).encode()) <= view.limit
    assert lines(head) + lines(tail) <= view.max_lines
    if unit == "bytes" and view.window == "head":
        assert data[: len(data) - number].decode("utf-8", "replace") == head
    if unit == "bytes" and view.window == "tail":
        assert data[number:].decode("utf-8", "replace") == tail


def test_O1_equal_passes_and_one_more_is_cut() -> None:
    view = OutputView(limit=10, max_lines=3)
    assert projector.text("0123456789", view, HINT) == "0123456789"
    assert projector.text("01234567é", view, HINT) == "01234567é"
    assert projector.text("a\nb\nc\n", view, HINT) == "a\nb\nc\n"
    assert projector.text("0123456789a", view, HINT) == f"0123456789\n\n...1 bytes truncated...\n\n{HINT}"
    assert projector.text("012345678é", view, HINT) == f"012345678\n\n...2 bytes truncated...\n\n{HINT}"
    assert projector.text("a\nb\nc\nd", view, HINT) == f"a\nb\nc\n\n...1 lines truncated...\n\n{HINT}"


def test_O1_tokens_are_bytes_by_four_rounded_up() -> None:
    view = OutputView(limit=2, mode="tokens")
    assert projector.text("12345678", view, HINT) == "12345678"
    assert projector.text("123456789", view, HINT) == f"12345678\n\n...1 tokens truncated...\n\n{HINT}"
    assert size_of("123456789", "tokens") == 3


def test_O1_defaults_are_16384_bytes_and_400_lines() -> None:
    assert projector.text("x" * 16384, OutputView(), HINT) == "x" * 16384
    assert "...1 bytes truncated..." in projector.text("x" * 16385, OutputView(), HINT)
    assert projector.text("\n" * 400, OutputView(), HINT) == "\n" * 400
    assert "...1 lines truncated..." in projector.text("x\n" * 401, OutputView(), HINT)


def test_O3_windows() -> None:
    text = "one\ntwo\nthree\nfour\n"
    assert projector.text(text, OutputView(limit=9, window="tail"), HINT) == (
        f"...10 bytes truncated...\n\n{HINT}\n\nree\nfour\n"
    )
    assert projector.text(text, OutputView(limit=9, window="head_tail"), HINT) == (
        f"one\nt\n\n...10 bytes truncated...\n\n{HINT}\n\nour\n"
    )
    assert projector.text(text, OutputView(max_lines=2, window="head_tail"), HINT) == (
        f"one\n\n...2 lines truncated...\n\n{HINT}\n\nfour\n"
    )


def test_O3_the_size_unit_when_both_caps_are_exceeded() -> None:
    assert projector.text("a\nb\nc\nd\n", OutputView(limit=6, max_lines=1), HINT) == (
        f"a\n\n...7 bytes truncated...\n\n{HINT}"
    )


def test_O3_a_line_longer_than_the_limit_is_cut_not_dropped() -> None:
    shown = projector.text("漢" * 100, OutputView(limit=10), HINT)
    assert shown == f"漢漢漢\n\n...291 bytes truncated...\n\n{HINT}"


def test_O3_a_character_that_begins_before_the_tail_is_not_in_it() -> None:
    for limit in range(4, 8):
        assert projector.text("😀😀", OutputView(limit=limit, window="tail"), "") == "...4 bytes truncated...\n\n😀"


def test_O3_no_hint_leaves_no_trace() -> None:
    assert projector.text("abcd", OutputView(limit=2), "") == "ab\n\n...2 bytes truncated..."


def test_O3_text_that_cannot_be_encoded_is_made_whole() -> None:
    assert projector.text("a\udcffb", OutputView(), HINT) == "a\ufffdb"
    assert projector.value(["a\udcffb", 1], OutputView(), HINT) == '["a\ufffdb",1]'


def test_O5_a_view_of_much_output_reads_little(spool: Spool) -> None:
    output = Output(spool, 64 << 20)
    for _ in range(160):
        output.append(b"some line\n" * 40_000)
    tracemalloc.start()
    try:
        shown = projector.text(output.span(), OutputView(max_lines=10_000, window="head_tail"), HINT)
        assert tracemalloc.get_traced_memory()[1] < 1 << 19
    finally:
        tracemalloc.stop()
    head, number, unit, tail = parts(shown)
    assert (len(head), number, unit, len(tail)) == (8192, 64_000_000 - 16384, "bytes", 8192)
    output.discard()


# --- values

leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.text('ab\n"\\é漢\x01', max_size=80))
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text("abc", max_size=4), inner, max_size=6)
)


def same_but_for_cuts(value: Any, shown: Any, view: OutputView, cut: list[str]) -> None:
    if isinstance(value, str):
        if shown != value:
            cut.append(shown)
            check_leaf(value, shown, view)
    elif isinstance(value, dict):
        assert list(value) == list(shown)
        for key, item in value.items():
            same_but_for_cuts(item, shown[key], view, cut)
    elif isinstance(value, list):
        assert len(value) == len(shown)
        for item, other in zip(value, shown, strict=True):
            same_but_for_cuts(item, other, view, cut)
    else:
        assert value == shown


def check_leaf(value: str, shown: str, view: OutputView) -> None:
    left, right = re.split(rf"{MARKER.pattern.replace('(', '(?:')}(?:\n\n{HINT})?", shown)
    marker = MARKER.search(shown)
    assert marker is not None
    head, tail = left[:-2], right[2:]
    assert value.startswith(head)
    assert value.endswith(tail)
    hidden = {
        "bytes": len(value.encode()) - len((head + tail).encode()),
        "tokens": tokens(len(value.encode())) - tokens(len((head + tail).encode())),
        "lines": lines(value) - view.max_lines,
    }
    assert int(marker[1]) == hidden[marker[2]]


@given(values, views, st.integers(0, 600))
def test_O3_json_stays_json(value: Any, view: OutputView, limit: int) -> None:
    assume(not isinstance(value, str))
    view = OutputView(limit=limit, mode=view.mode, max_lines=view.max_lines, window=view.window)
    whole = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    shown = projector.value(value, view, HINT)
    try:
        decoded = json.loads(shown)
    except ValueError:
        # The structure does not fit: it is cut as text. A marker for every string is what would have to fit.
        strings = whole.count('"') // 2
        structure = len(re.sub(r'"(?:[^"\\]|\\.)*"', "", whole))
        assert structure + 60 * strings + len(HINT) > cap_of(view)
        check(whole, view, shown)
        return
    cut: list[str] = []
    same_but_for_cuts(value, decoded, view, cut)
    assert len(shown.encode()) <= cap_of(view)
    assert [HINT in text for text in cut] == [True] * (len(cut) > 0) + [False] * (len(cut) - 1)


def test_O3_strings_of_a_value_share_what_the_structure_leaves() -> None:
    view = OutputView(limit=400)
    shown = json.loads(projector.value({"small": "abc", "big": "x" * 1000, "n": 7, "big2": "y" * 1000}, view, HINT))
    assert shown["small"] == "abc"
    assert shown["n"] == 7
    assert shown["big"].startswith("x" * 90)
    assert shown["big2"].startswith("y" * 90)
    assert shown["big"].endswith(f" bytes truncated...\n\n{HINT}")
    assert shown["big2"].endswith(" bytes truncated...")


def test_O3_lines_are_cut_in_the_string_that_has_them() -> None:
    view = OutputView(max_lines=2)
    shown = json.loads(projector.value(["a\nb", "a\nb\nc", "d"], view, HINT))
    assert shown == ["a\nb", f"a\nb\n\n...1 lines truncated...\n\n{HINT}", "d"]
    many = ["one line"] * 500
    assert json.loads(projector.value(many, view, HINT)) == many


def test_O3_a_structure_that_does_not_fit_is_cut_as_text() -> None:
    shown = projector.value(list(range(100)), OutputView(limit=20), HINT)
    assert shown == f"[0,1,2,3,4,5,6,7,8,9\n\n...271 bytes truncated...\n\n{HINT}"


def test_S3_a_string_is_shown_as_it_is_and_any_other_value_as_compact_json() -> None:
    assert projector.value("a b", OutputView(), HINT) == "a b"
    assert projector.value({"a": [1, None, "é"]}, OutputView(), HINT) == '{"a":[1,null,"é"]}'
    assert projector.value(None, OutputView(), HINT) == "null"


# --- shares


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=12), st.integers(-5, 400))
def test_O3_unused_shares_pass_on(results: list[tuple[int, int]], total: int) -> None:
    sizes, limits = [size for size, _ in results], [limit for _, limit in results]
    given = shares(sizes, limits, total)
    wanted = [min(pair) for pair in results]
    assert sum(given) == min(max(total, 0), sum(wanted))
    for got, want in zip(given, wanted, strict=True):
        assert 0 <= got <= want
        assert got == want or got >= max(given) - 1


def test_O3_four_limits_among_six_results() -> None:
    assert shares([100, 1000, 1000, 1000, 1000, 1000], [100] * 6, 400) == [66, 66, 67, 67, 67, 67]
    assert shares([10, 20, 1000, 1000, 1000, 1000], [100] * 6, 400) == [10, 20, 92, 92, 93, 93]


def test_O3_size_of_counts_bytes_of_what_would_be_shown() -> None:
    output = printed(b"x" * 50, max_output=10)
    assert size_of("é") == 2
    assert size_of({"a": "é"}) == 10
    assert size_of(output.span(20)) == 30


# --- control sequences


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[H\x1b[?25lscreen\x1b[38:2::1:2:3m", "screen"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2;0\n#1\x1b\\after", "after"),
        ("\x1b_Gf=100;AAAA\x1b\\after", "after"),
        ("\x1b(Bascii\x1b7\x1b=", "ascii"),
        ("\x9b31mred\x9b0m \x9d0;t\x9c\x90q\x9cend", "red end"),
        ("bell\x07 back\x08 nul\x00 del\x7f nel\x85", "bell back nul del nel"),
        ("tab\tnewline\n", "tab\tnewline\n"),
        ("dos\r\nunix\n", "dos\nunix\n"),
        ("10%\r20%\r\n", "10%\n20%\n"),
        ("cut \x1b[3", "cut "),
        ("cut \x1b]0;tit", "cut "),
        ("never ended \x1b]0;x\nnext line", "never ended \nnext line"),
        ("never ended \x1bPx\nnext line", "never ended \nnext line"),
        ("\x1b\x1b[31m[31m", "[31m"),
        ("é漢😀", "é漢😀"),
    ],
)
def test_K4_control_sequences_are_stripped(text: str, shown: str) -> None:
    assert strip_controls(text) == shown


@given(st.text(st.sampled_from("ab\n\r\t\x00\x07\x08\x1b[]P;1m\\\x18\x7f\x90\x9b\x9c\x9dé"), max_size=80))
def test_K4_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    shown = strip_controls(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
    assert strip_controls(shown) == shown


@given(st.text())
def test_K4_text_without_controls_stays(text: str) -> None:
    assume(not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text))
    assert strip_controls(text) == text


@pytest.mark.parametrize("window", ["head", "tail", "head_tail"])
def test_K4_a_sequence_split_by_the_cut_is_not_shown(window: Any) -> None:
    text = "a\x1b[1;31mb\x1b[0mc\x1b]0;title\x07d\x1b]8;;http://x\x1b\\e\x1b]8;;\x1b\\f\x1bPq1\x1b\\g\x9b31mh"
    output = printed(text.encode())
    for limit in range(output.total):
        shown = projector.text(output.span(), OutputView(limit=limit, window=window), HINT)
        head, number, _, tail = parts(shown)
        assert "abcdefgh".startswith(head)
        assert "abcdefgh".endswith(tail)
        assert output.total - limit <= number <= output.total - limit + 2  # sequences count as what was printed


def test_K4_a_sequence_split_between_two_fetches_is_not_shown() -> None:
    text = "a\x1b[1;31mb\x1b]0;title\x07c"
    output = printed(text.encode())
    for cursor in range(output.total + 1):
        first = projector.text(output.span(0, cursor), OutputView(), HINT)
        assert first + projector.text(output.span(cursor), OutputView(), HINT) == "abc"


def test_K4_a_carriage_return_counts_as_the_end_of_a_line() -> None:
    output = printed(b"1%\r2%\r3%\r\n4%")
    assert projector.text(output.span(), OutputView(max_lines=4), HINT) == "1%\n2%\n3%\n4%"
    assert projector.text(output.span(), OutputView(max_lines=2, window="tail"), HINT) == (
        f"...2 lines truncated...\n\n{HINT}\n\n3%\n4%"
    )
