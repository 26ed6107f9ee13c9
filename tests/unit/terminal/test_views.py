"""What is shown of a terminal's output (O1–O4): text, cut by the bytes that were printed."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.terminal.noise import noise
from tests.unit.terminal.recorded import BASH_EDITS, VIM, VIM_QUITS

import keephold
from keephold.handles.output import Output
from keephold.handles.spool import Spool
from keephold.handles.timeline import Timeline
from keephold.tools.base import OutputView, Window
from keephold.turn.budget import Projector

projector = Projector()


@pytest.fixture
def spool() -> Iterator[Spool]:
    spool = Spool()
    yield spool
    spool.close()


def printed(spool: Spool, data: bytes, max_output: int = 1 << 20, cols: int | None = None) -> Output:
    output = Output(spool, max_output)
    output.terminal = True
    if cols is not None:
        output.timeline = Timeline(0.0, 24, cols)
    output.append(data)
    return output


def view(output: Output, limit: int = 16_384, **settings: Any) -> str:
    return projector.text(output.span(), OutputView(limit=limit, **settings), "<hint>")


def test_O1_a_terminal_is_shown_as_a_person_would_read_it(spool: Spool) -> None:
    assert view(printed(spool, BASH_EDITS)) == "$ ehko hi!\nbash: ehko: command not found\n$ "
    output = printed(spool, BASH_EDITS)
    output.terminal = False
    assert view(output).startswith("$ ecko hih!\n")  # what a pipe got is shown as it was printed


def test_O1_a_carriage_return_ends_no_line_of_a_terminal(spool: Spool) -> None:
    progress = b"".join(b"\r%d%%" % done for done in range(101)) + b"\r\ndone\r\n"
    assert view(printed(spool, progress), max_lines=2) == "100%\ndone\n"
    assert view(printed(spool, progress), max_lines=1) == "100%\n\n...1 lines truncated...\n\n<hint>"


def test_O1_the_marker_counts_bytes_as_they_were_printed(spool: Spool) -> None:
    data = b"".join(b"\x1b[3%dmline %03d\x1b[0m\r\n" % (number % 8, number) for number in range(100))
    assert len(data) == 19 * 100
    assert view(printed(spool, data), 20, window="tail") == "...1880 bytes truncated...\n\n<hint>\n\n\nline 099\n"
    assert view(printed(spool, data), 22, window="head") == "line 000\n\n\n...1878 bytes truncated...\n\n<hint>"


@pytest.mark.parametrize("window", ["head", "tail"])
def test_O1_a_cut_within_a_full_screen_program_shows_nothing_of_it(spool: Spool, window: Window) -> None:
    data = VIM + b"\x1b[Hdrawn" * 10_000 + VIM_QUITS
    output = printed(spool, data)
    for start in (len(VIM) // 2, len(data) // 2, len(data) - len(VIM_QUITS)):
        span = output.span(start, len(data) - len(VIM_QUITS))
        assert "drawn" not in projector.text(span, OutputView(limit=64, window=window), "")
    assert projector.text(output.span(len(data) // 2), OutputView(limit=1 << 20), "") == ""


def test_O1_the_width_of_the_terminal_says_where_a_carriage_return_goes(spool: Spool) -> None:
    assert view(printed(spool, b"0123456789abc\rX", cols=10)) == "0123456789Xbc"
    output = printed(spool, b"0123456789abc\r", cols=10)
    assert output.timeline is not None
    output.timeline.resized(output.total, 1.0, 24, 5)
    output.append(b"56789\rX")
    assert projector.text(output.span(14), OutputView(), "") == "X6789"


@given(data=noise, limit=st.integers(0, 60), window=st.sampled_from(["head", "tail", "head_tail"]))
def test_O1_a_window_never_exceeds_its_cap(data: bytes, limit: int, window: Window) -> None:
    spool = Spool()
    output = printed(spool, data)
    shown = projector.text(output.span(), OutputView(limit=limit, window=window), "")
    parts = (
        [part for part in shown.split("\n\n") if not part.lstrip("\n").startswith("...")]
        if "truncated..." in shown
        else [shown]
    )
    assert len("".join(parts).replace("\n", "").encode()) <= limit
    spool.close()


# --- read_output


@keephold.tool
async def session(call: keephold.Call, data: str) -> str:
    """Print something."""
    call.emit(data)
    return ""


async def read(data: str, **arguments: Any) -> dict[str, Any]:
    terminal = dataclasses.replace(session, source="terminal")
    async with keephold.Runtime([terminal]) as rt, rt.turn("main") as turn:
        await turn.run([keephold.ToolCall("1", "session", {"data": data})])
        [response] = await turn.run([keephold.ToolCall("2", "read_output", {"call_id": "1", **arguments})])
        assert not response.is_error, response.result
        found: dict[str, Any] = json.loads(response.result)
        return found


async def test_O4_a_piece_of_a_terminal_is_text_and_its_offsets_are_bytes() -> None:
    data = "one\r\n10%\r20%\r\n\x1b[31mred\x1b[0m\r\n"
    found = await read(data)
    assert (found["content"], found["total"]) == ("one\n20%\nred\n", len(data))
    found = await read(data, offset=len("one\r\n10%\r20%\r\n\x1b[3"), limit=100)
    assert found["content"] == "red\n"


async def test_O4_a_match_is_shown_with_its_line_as_it_is_or_as_it_was() -> None:
    found = await read("one\r\nworking 50%\rdone       \r\n\x1b[1mtwo\x1b[0m and three\r\n", pattern="three")
    assert [match["line"] for match in found["matches"]] == ["two and three"]
    found = await read("one\r\nworking 50%\rdone       \r\n", pattern="50%")
    assert [match["line"].split("\n")[0] for match in found["matches"]] == ["working 50%"]
