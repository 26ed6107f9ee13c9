"""When what was printed: cheap to note, bounded, kept with the output (O5), and never later than it was."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.sqlite_stores import NOON, commit, end, opened, registered, uid

from keephold.handles import timeline as timeline_module
from keephold.handles.output import Output
from keephold.handles.spool import Spool
from keephold.handles.timeline import MARKS, Resized, Timeline
from keephold.store.base import Changed, KeptOutput
from keephold.store.memory.store import MemoryStore
from keephold.tools.keeper import times as keeper_times


@pytest.fixture
def spool() -> Iterator[Spool]:
    spool = Spool()
    yield spool
    spool.close()


def timeline(*notes: tuple[int, float]) -> Timeline:
    timeline = Timeline(NOON, 24, 80)
    for offset, after in notes:
        timeline.note(offset, NOON + after)
    return timeline


def marks(timeline: Timeline) -> list[tuple[int, float]]:
    return [(offset, round(after, 3)) for offset, after in timeline.marks()]


def count(timeline: Timeline) -> int:
    return len(list(timeline.marks())) + len(list(timeline.sizes()))


def test_what_was_printed_within_ten_milliseconds_has_one_time() -> None:
    noted = timeline((3, 0.5), (5, 0.501), (9, 0.509), (10, 0.511), (20, 7.0))
    assert marks(noted) == [(9, 0.5), (10, 0.511), (20, 7.0)]
    assert noted.started == (NOON, 24, 80)


def test_a_clock_that_is_set_back_counts_as_no_time_passed() -> None:
    noted = timeline((1, 10.0), (2, 3.0), (3, 3.5), (4, 2.0), (5, 4.0))
    assert marks(noted) == [(2, 10.0), (4, 10.5), (5, 12.5)]


def test_sizes_hold_from_an_offset_on() -> None:
    noted = timeline((10, 1.0))
    noted.resized(10, NOON + 2.0, 50, 120)
    noted.resized(10, NOON + 2.005, 50, 132)  # a window that is being dragged
    noted.resized(30, NOON + 3.0, 24, 40)
    assert list(noted.sizes()) == [Resized(10, 2.0, 50, 132), Resized(30, 3.0, 24, 40)]
    assert [noted.cols(offset) for offset in (0, 9, 10, 29, 30, 99)] == [80, 80, 132, 132, 40, 40]


def test_marks_are_bounded_and_quiet_stretches_keep_theirs() -> None:
    noted = timeline((1, 0.0), (2, 100.0), (3, 200.0))
    for number in range(100_000):
        noted.note(4 + number, NOON + 300 + number * 0.01)
        assert len(noted._times) <= MARKS
    found = marks(noted)
    assert MARKS // 4 < len(found) <= MARKS
    assert found[:3] == [(1, 0.0), (2, 100.0), (3, 200.0)]
    assert found[-1][0] == 100_003
    assert 0.1 < noted.interval < 2


def test_sizes_are_bounded_with_them() -> None:
    noted = timeline((1, 0.0))
    for number in range(20_000):
        noted.resized(1, NOON + number, 24, 80 + number % 7)
        assert count(noted) <= MARKS
    assert list(noted.sizes())[-1].cols == 80 + 19_999 % 7


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(0, 0.05)), min_size=1, max_size=100), st.sampled_from([8, MARKS])
)
@example([(1, pause / 64) for pause in (0, 2, 1, 2, 2, 2, 2.5, 1, 2)], 8)
def test_nothing_is_shown_later_than_it_was_nor_much_earlier(pieces: list[tuple[int, float]], most: int) -> None:
    noted, offset, at, truth = Timeline(NOON, 24, 80), 0, NOON, []
    with patch.object(timeline_module, "MARKS", most):
        for size, pause in pieces:
            offset, at = offset + size, at + pause
            noted.note(offset, at)
            truth.append((offset, at - NOON))
    found = list(noted.marks())
    assert len(found) <= most
    assert found[-1][0] == offset
    assert found == sorted(found)
    for printed, after in truth:
        shown = next(time for stop, time in found if stop >= printed)
        assert -1e-6 <= after - shown <= 2 * noted.interval


def test_it_is_kept_in_few_bytes_and_goes_on() -> None:
    noted = timeline(*((100 * number, number * 0.05) for number in range(4000)))
    noted.resized(1000, NOON + 300.0, 50, 132)
    data = noted.dump()
    assert len(data) < 16_000
    loaded = Timeline.load(data)
    assert marks(loaded) == marks(noted)
    assert (list(loaded.sizes()), loaded.started, loaded.interval) == (
        list(noted.sizes()),
        noted.started,
        noted.interval,
    )
    loaded.note(500_000, NOON + 400.0)
    assert marks(loaded)[-1] == (500_000, 400.0)
    assert Timeline.load(Timeline(NOON, 1, 2).dump()).started == (NOON, 1, 2)


# --- with the output


def test_O5_an_output_is_kept_with_its_times(spool: Spool) -> None:
    output = Output(spool, 1 << 20, "uid")
    output.append(b"hello")
    assert output.keep(1 << 16).times == b""
    assert Output.restored(spool, output.keep(1 << 16)).timeline is None
    output.terminal, output.timeline = True, timeline((5, 1.0))
    restored = Output.restored(spool, output.keep(1 << 16), "uid")
    assert restored.terminal and restored.timeline is not None
    assert marks(restored.timeline) == [(5, 1.0)]
    assert restored.read(0).data == b"hello"
    restored.append(b" again")
    restored.timeline.note(11, NOON + 2.0)
    assert marks(Output.restored(spool, restored.keep(1 << 16), "uid").timeline or timeline()) == [(5, 1.0), (11, 2.0)]


def test_O5_also_when_the_disk_took_only_a_part_of_it() -> None:
    spool = Spool(Path("/nowhere/at/all"))
    output = Output(spool, 1 << 20, "uid")
    output.append(b"x" * 100_000)
    output.terminal, output.timeline = True, timeline((100_000, 1.0))
    kept = output.keep(1000)
    assert output.failure is not None and len(kept.data) == 1000
    assert marks(Timeline.load(kept.times)) == [(100_000, 1.0)]
    output.discard()
    assert output.timeline is None


def failed(error: Exception) -> None:
    raise error


def ending(kept: KeptOutput) -> Changed:
    done = end(1)
    return Changed(done.uid, 1, done.event, done.state, kept)


async def test_E10_stores_give_it_back(tmp_path: Path, spool: Spool) -> None:
    output = Output(spool, 1 << 20, "uid")
    output.append(b"hello")
    output.timeline = timeline((3, 0.5), (5, 1.0))
    kept = output.keep(1 << 16)
    memory = MemoryStore()
    for op in (registered(1), ending(kept)):
        memory.commit((op,), lambda _: None, failed)
    async with opened(tmp_path / "store.db") as store:
        await commit(store, registered(1))
        await commit(store, ending(kept))
        for found in (await memory.handle(uid(1)), await store.handle(uid(1))):
            assert found is not None and found.output == kept
            restored = Output.restored(spool, found.output)
            assert restored.timeline is not None
            assert marks(restored.timeline) == [(3, 0.5), (5, 1.0)]


def test_each_byte_has_the_time_at_which_it_was_printed() -> None:
    noted = timeline((3, 0.5), (10, 2.0))
    assert [noted.when(offset) for offset in (0, 2, 3, 9)] == [(NOON + 0.5, 3)] * 2 + [(NOON + 2.0, 10)] * 2
    assert noted.when(10) is None, "it was not printed yet"


def test_output_without_a_terminal_has_a_time_a_second(spool: Spool) -> None:
    noted = Timeline(NOON)
    for offset, after in [(3, 0.0), (5, 0.9), (9, 1.2), (20, 90.0)]:
        noted.note(offset, NOON + after)
    assert marks(noted) == [(5, 0.0), (9, 1.2), (20, 90.0)]
    output = Output(spool, 1000)
    output.append(b"x" * 20)
    output.timeline = noted
    restored = Output.restored(spool, output.keep(1000))
    assert restored.timeline is not None and marks(restored.timeline) == marks(noted)
    assert not restored.terminal and len(output.keep(1000).times) < 40


def test_what_a_kept_command_printed_has_times() -> None:
    made = keeper_times.timeline([keeper_times.Record(0, NOON), keeper_times.Record(5, NOON + 3)])
    assert made is not None and made.started.cols == 0 and made.when(0) == (NOON + 3, 5)


def test_without_a_terminal_the_clock_is_read_ten_times_a_second_at_most() -> None:
    noted, read = Timeline(NOON), iter([NOON, NOON + 5])
    for offset, steady in ((1, 0.0), (2, 0.05), (3, 0.2), (4, 0.29)):
        noted.printed(offset, lambda: next(read), steady)
    assert marks(noted) == [(2, 0.0), (4, 5.0)]
