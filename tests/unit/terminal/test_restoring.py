"""R7: what an emulator is shown to rebuild the screen of a terminal that was taken back."""

from collections.abc import Iterator

import pytest

from keephold.handles.output import Output
from keephold.handles.spool import Spool
from keephold.handles.timeline import Timeline
from keephold.tools.terminal.stream import ENOUGH, Size, first_size, start_of, steps


@pytest.fixture
def spool() -> Iterator[Spool]:
    made = Spool()
    yield made
    made.close()


def printed(
    spool: Spool, data: bytes, *, sizes: tuple[tuple[int, int, int], ...] = (), max_output: int = 100 << 20
) -> Output:
    """The output of a terminal of 24 rows; `sizes` are offsets with the size from there on."""
    output = Output(spool, max_output)
    output.append(data)
    output.timeline = Timeline(0.0, 24, 80)
    for number, (offset, rows, cols) in enumerate(sizes, 1):
        output.timeline.resized(offset, float(number), rows, cols)
    return output


def shown(output: Output) -> list[bytes | Size]:
    """The steps, with pieces that follow each other as one."""
    start = start_of(output)
    found: list[bytes | Size] = [first_size(output, start)]
    for step in steps(output, start, output.total):
        if isinstance(step, bytes) and isinstance(found[-1], bytes):
            found[-1] += step
        else:
            found.append(step)
    return found


def test_R7_a_short_output_is_shown_whole_with_the_sizes_between(spool: Spool) -> None:
    output = printed(spool, b"before" + b"after" * 20_000, sizes=((6, 10, 20), (6 + 100_000, 12, 40)))
    assert shown(output) == [Size(24, 80), b"before", Size(10, 20), b"after" * 20_000, Size(12, 40)]


def test_R7_a_long_output_is_shown_from_its_last_mebibyte_after_the_modes_that_were_set(spool: Spool) -> None:
    data = b"\x1b[?1;2004h\x1b[?1l" + b"x" * ENOUGH + b"y" * ENOUGH
    output = printed(spool, data, sizes=((5, 10, 20),))
    assert shown(output) == [Size(10, 20), b"\x1b[?2004h\x1b[?1l" + b"y" * ENOUGH]
    output.discard()


def test_R7_modes_are_found_wherever_they_were_set(spool: Spool) -> None:
    for at in range((1 << 16) - 8, (1 << 16) + 1):
        output = printed(spool, b"x" * at + b"\x1b[?2004h" + b"y" * (2 * ENOUGH))
        assert shown(output) == [Size(24, 80), b"\x1b[?2004h" + b"y" * ENOUGH], at
        output.discard()


def test_R7_a_long_output_is_shown_from_its_last_full_clear(spool: Spool) -> None:
    for clear in (b"\x1b[2J", b"\x1bc", b"\x1b[?1049h"):
        drawn = clear + b"d" * (ENOUGH + 300_000)
        output = printed(spool, b"x" * 3 * ENOUGH + b"\x1b[2J" + b"x" * 100_000 + drawn)
        assert shown(output) == [Size(24, 80), drawn], clear
        output.discard()


def test_R7_bytes_that_are_lost_are_passed_over(spool: Spool) -> None:
    output = printed(spool, b"a" * 3 * ENOUGH, max_output=ENOUGH // 2)
    (_, data) = shown(output)
    assert data == b"a" * (ENOUGH // 4)
    output.discard()
