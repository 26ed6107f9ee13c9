"""The wire form of a tool's state (S7), whole and line by line."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keephold.handles.question import Question
from keephold.handles.state import Failure, Ok
from keephold.tools.wire import (
    LINE_LIMIT,
    WHOLE_LIMIT,
    Asks,
    Ends,
    Lines,
    Whole,
    Wire,
    WireState,
    answer_line,
    parse_line,
    parse_whole,
)

SURE = Question(id="sure", text="Sure?", answer_type="Boolean")
ASKED = {"id": "sure", "text": "Sure?", "answer_type": "Boolean"}
FAILED = {"message": "no", "trace": ["a", "b"], "transient": True}
ERROR = Failure("no", trace=("a", "b"), transient=True)

FORMS: list[tuple[dict[str, Any], Wire]] = [
    ({"type": "running", "content": "half"}, WireState("half")),
    ({"type": "running", "content": None}, WireState()),
    ({"type": "running"}, WireState()),
    ({"type": "spawned", "content": "half"}, WireState("half")),
    ({"type": "waiting", "content": "diff", "question": ASKED}, Asks(SURE, "diff")),
    ({"type": "waiting", "content": None, "question": ASKED}, Asks(SURE)),
    ({"type": "waiting", "question": ASKED}, Asks(SURE)),
    ({"type": "needs_input", "question": ASKED}, Asks(SURE)),
    (
        {
            "type": "waiting",
            "question": {"id": "q", "text": "?", "pre_amble": "p", "default": "a"} | {"answer_type": "Text"},
        },
        Asks(Question(id="q", text="?", pre_amble="p", default="a")),
    ),
    (
        {"type": "waiting", "question": {"id": "q", "text": "?", "answer_type": {"Select": {"options": ["a", "b"]}}}},
        Asks(Question(id="q", text="?", answer_type={"Select": {"options": ["a", "b"]}})),
    ),
    ({"type": "stopped", "result": {"Ok": "done"}}, Ends(Ok("done"))),
    ({"type": "stopped", "result": {"ok": "done"}}, Ends(Ok("done"))),
    ({"type": "stopped", "result": {"Err": FAILED}}, Ends(ERROR)),
    ({"type": "stopped", "result": {"err": FAILED}}, Ends(ERROR)),
    ({"type": "stopped", "result": {"Err": {"message": "no"}}}, Ends(Failure("no"))),
    ({"type": "stopped", "content": "done", "error": None}, Ends(Ok("done"))),
    ({"type": "stopped", "content": "done"}, Ends(Ok("done"))),
    ({"type": "stopped", "content": "", "error": FAILED}, Ends(ERROR)),
    ({"type": "stopped", "content": "half", "error": FAILED}, Ends(ERROR, "half")),
    ({"type": "stopped", "error": FAILED}, Ends(ERROR)),
    ({"type": "success", "content": "done"}, Ends(Ok("done"))),
    ({"type": "success"}, Ends(Ok(""))),
    ({"type": "error", **FAILED}, Ends(ERROR)),
    ({"type": "error", "message": "no"}, Ends(Failure("no"))),
]

NEAR_MISSES: list[Any] = [
    {"type": "running", "content": "half", "id": "x"},
    {"type": "running", "content": 7},
    {"type": "Running", "content": "half"},
    {"type": "pending"},
    {"content": "half"},
    {"type": ["running"]},
    {"type": "waiting", "content": "x"},
    {"type": "waiting", "question": "Sure?"},
    {"type": "waiting", "question": {"id": "sure"}},
    {"type": "waiting", "question": {**ASKED, "id": ""}},
    {"type": "waiting", "question": {**ASKED, "answer_type": "Number"}},
    {"type": "waiting", "question": {**ASKED, "answer_type": {"Select": {"options": []}}}},
    {"type": "waiting", "question": {**ASKED, "more": 1}},
    {"type": "needs_input", "question": ASKED, "content": "x"},
    {"type": "stopped", "result": "done"},
    {"type": "stopped", "result": None},
    {"type": "stopped", "result": {}},
    {"type": "stopped", "result": {"Ok": 7}},
    {"type": "stopped", "result": {"Ok": "a", "ok": "a"}},
    {"type": "stopped", "result": {"Ok": "a", "Err": FAILED}},
    {"type": "stopped", "result": {"Err": "no"}},
    {"type": "stopped", "result": {"Err": {"trace": []}}},
    {"type": "stopped", "result": {"Err": {**FAILED, "code": "x"}}},
    {"type": "stopped", "result": {"Ok": "a"}, "content": None},
    {"type": "stopped", "content": "a", "error": "no"},
    {"type": "success", "content": "done", "message": "x"},
    {"type": "error", "content": "no"},
    {"type": "error", "message": "no", "trace": "a"},
    {"type": "error", "message": "no", "transient": 1},
    [{"type": "running"}],
    "running",
    None,
]


@pytest.mark.parametrize(("form", "meaning"), FORMS)
def test_S7_every_form_is_read(form: dict[str, Any], meaning: Wire) -> None:
    assert parse_whole(b"\n " + json.dumps(form, indent=1).encode() + b" \r\n\n") == meaning
    assert parse_line(json.dumps(form).encode() + b"\r\n") == meaning
    backwards = dict(reversed(form.items()))
    assert parse_whole(json.dumps(backwards).encode()) == meaning


@pytest.mark.parametrize("near", NEAR_MISSES)
def test_S7_anything_else_is_text(near: Any) -> None:
    assert parse_whole(json.dumps(near).encode()) is None
    assert parse_line(json.dumps(near).encode()) is None


RUNNING = b'{"type":"running","content":"x"}'


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"done",
        RUNNING + b"\n" + RUNNING,
        RUNNING + b"\ndone",
        b"ok " + RUNNING,
        RUNNING.replace(b"x", b"\xff"),
        RUNNING.replace(b"x", b"\\ud800"),
        b'{"type":"running","content":' + b"[" * 100_000,
    ],
)
def test_S7_what_is_not_one_object_is_text(text: bytes) -> None:
    assert parse_whole(text) is None


def test_S7_too_long_is_text() -> None:
    room = len(RUNNING) - 1
    for parse, limit in ((parse_whole, WHOLE_LIMIT), (parse_line, LINE_LIMIT)):
        assert parse(RUNNING.replace(b"x", b"x" * (limit - room))) == WireState("x" * (limit - room))
        assert parse(RUNNING.replace(b"x", b"x" * (limit - room + 1))) is None


def test_S7_an_answer_is_one_line() -> None:
    assert answer_line(SURE, True) == b'{"type":"answer","id":"sure","answer":true}\n'
    assert answer_line(SURE, "a\nb").count(b"\n") == 1


# Streams


def whole(*chunks: bytes) -> tuple[list[bytes], Wire | None]:
    text: list[bytes] = []
    stream = Whole(text.append)
    for chunk in chunks:
        stream.feed(chunk)
    return text, stream.close()


def test_S7_a_whole_form_is_not_output() -> None:
    assert whole(b" \n", RUNNING[:10], RUNNING[10:], b"\n") == ([], WireState("x"))


def test_S7_text_of_a_one_shot_goes_through_at_once() -> None:
    text: list[bytes] = []
    stream = Whole(text.append)
    stream.feed(b"\n a")
    stream.feed(RUNNING)
    assert text == [b"\n a", RUNNING]
    assert stream.close() is None


def test_S7_json_that_is_no_form_comes_out_whole_at_the_end() -> None:
    assert whole(b'{"a":', b"1}\n") == ([b'{"a":1}\n'], None)
    assert whole(b" ", b"\n") == ([b" \n"], None)
    assert whole() == ([], None)


def test_S7_a_one_shot_is_held_back_no_further_than_the_limit() -> None:
    text: list[bytes] = []
    stream = Whole(text.append)
    stream.feed(b"{" + b" " * (WHOLE_LIMIT - 1))
    assert text == []
    stream.feed(b" ")
    assert sum(map(len, text)) == WHOLE_LIMIT + 1


def lines(*chunks: bytes) -> list[bytes | Wire]:
    """What comes out of the chunks, in order, text joined."""
    out: list[bytes | Wire] = []

    def on_text(text: bytes) -> None:
        assert text
        if out and isinstance(out[-1], bytes):
            out[-1] += text
        else:
            out.append(text)

    stream = Lines(on_text, out.append)
    for chunk in chunks:
        stream.feed(chunk)
    stream.close()
    return out


def refuse(form: Wire) -> None:
    pytest.fail(f"{form} is no form here")


def test_S7_lines_that_are_forms_are_taken_out_of_the_text() -> None:
    assert lines(b"a\n" + RUNNING + b"\nb\n  " + RUNNING + b"\r\n\n" + RUNNING) == [
        b"a\n",
        WireState("x"),
        b"b\n",
        WireState("x"),
        b"\n",
        WireState("x"),
    ]


def test_S7_a_form_in_the_middle_of_a_line_is_text() -> None:
    assert lines(b"a", RUNNING + b"\n", RUNNING + b" b\n") == [b"a" + RUNNING + b"\n" + RUNNING + b" b\n"]


def test_S7_a_prompt_without_line_end_is_seen_at_once() -> None:
    text: list[bytes] = []
    stream = Lines(text.append, refuse)
    stream.feed(b"a\nname? ")
    assert b"".join(text) == b"a\nname? "


def test_S7_a_long_line_is_text_and_not_held_back() -> None:
    text: list[bytes] = []
    stream = Lines(text.append, refuse)
    stream.feed(b"{" + b"x" * (LINE_LIMIT - 1))
    assert text == []
    for _ in range(100):
        stream.feed(b"x" * LINE_LIMIT)
        assert len(stream._held) <= LINE_LIMIT
    stream.feed(RUNNING + b"\n")
    assert sum(map(len, text)) == 101 * LINE_LIMIT + len(RUNNING) + 1


@given(
    parts=st.lists(
        st.sampled_from([RUNNING, b"{", b"{}", b"a", b" ", b"\t", b"\n", b"\r\n", b"\r", b"x{", b"\xff"]), max_size=20
    ),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_S7_where_the_output_is_cut_makes_no_difference(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    at = sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})
    chunks = [data[start:end] for start, end in pairwise(at)]
    expected: list[bytes | Wire] = []
    for line in data.split(b"\n"):
        expected.append(parse_line(line) or line + b"\n")
    if isinstance(expected[-1], bytes):
        expected[-1] = expected[-1][:-1]
    joined: list[bytes | Wire] = []
    for one in expected:
        if isinstance(one, bytes) and joined and isinstance(joined[-1], bytes):
            joined[-1] += one
        elif one != b"":
            joined.append(one)
    assert lines(*chunks) == joined
