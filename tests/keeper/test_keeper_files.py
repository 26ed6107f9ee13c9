"""The files of a kept process: its output, as a runtime reads it, its times, and its record."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keephold.handles.output import Output
from keephold.handles.spool import Spool
from keephold.tools.keeper.files import Files, SpoolFile
from keephold.tools.keeper.record import KeptExit, KeptRecord, begin_record, change_record, read_record
from keephold.tools.keeper.times import MOST, Record, Times, read_times, timeline, times_file


@contextmanager
def spooling(directory: Path, output: Output) -> Iterator[SpoolFile]:
    """The keeper's end of an output that is followed."""
    layout, files = output.follow(), Files()
    spool = SpoolFile(files, directory / "u", layout.head, layout.ring, layout.total)
    spool.bound = layout.total + layout.ahead
    try:
        yield spool
    finally:
        spool.close()
        output.close()


PIECES = st.lists(st.tuples(st.booleans(), st.integers(1, 60_000)), max_size=20)


@given(before=st.integers(0, 200), pieces=PIECES)
def test_R7_O5_a_runtime_reads_what_its_keeper_wrote(
    tmp_path_factory: pytest.TempPathFactory, before: int, pieces: list[tuple[bool, int]]
) -> None:
    """Written by splice or from memory, from any start, with a reader that follows at once."""
    directory = tmp_path_factory.mktemp("spool")
    output = Output(Spool(directory), 140_000, "u")
    whole = bytearray(b"." * before)
    output.append(bytes(whole))
    read, write = os.pipe()
    with spooling(directory, output) as spool:
        for moves, size in pieces:
            piece = bytes((len(whole) + each) % 251 for each in range(size))
            if moves:
                os.write(write, piece)
                while size:
                    size -= spool.move(read, size)
            else:
                spool.append(piece)
            seen = len(whole)
            whole += piece
            while seen < len(whole):
                output.followed(spool.total)
                assert output.read(seen, spool.total).data == whole[seen : spool.total]
                seen = spool.total
                spool.bound = seen + 35_000
                spool.release()
        assert spool.total == len(whole) and not spool.holds
        output.followed(spool.total)
        output.unfollow()
        assert output.read(0).data == whole[: output.read(0).end]
        if output.gap is not None:
            start, end = output.gap
            assert end - start <= len(whole) - 140_000
            assert output.read(end).data == whole[end:]
    os.close(read)
    os.close(write)


def test_R7_a_reader_that_lags_is_waited_for(tmp_path: Path) -> None:
    output = Output(Spool(tmp_path), 140_000, "u")
    with spooling(tmp_path, output) as spool:
        spool.append(b"x" * 100_000)
        assert (spool.total, spool.holds) == (35_000, 65_000)
        spool.bound = None  # it has left
        spool.release()
        assert (spool.total, spool.holds) == (100_000, 0)


@pytest.mark.parametrize("size", [10, 5000])
def test_R7_a_small_output_is_described_inline_and_a_large_one_by_its_file(tmp_path: Path, size: int) -> None:
    output = Output(Spool(tmp_path), 1 << 20, "u")
    with spooling(tmp_path, output) as spool:
        spool.append(b"x" * size)
        output.followed(spool.total)
        output.unfollow()
        kept = output.keep(1000)
        assert (tmp_path / "u").exists()  # until the description is stored
        if size == 10:
            assert (kept.file, bytes(kept.data)) == (None, b"x" * 10)
            (tmp_path / "u").unlink()
        else:
            assert (kept.file, bytes(kept.data)) == ("u", b"")
        assert Output.restored(Spool(tmp_path), kept).read(0).data == b"x" * size
        assert output.read(0).data == b"x" * size


def test_R7_a_terminal_has_its_size_before_it_prints(tmp_path: Path) -> None:
    Times(Files(), times_file(tmp_path, "u"), Record(0, 1000.0, 24, 80)).close()
    made = timeline(read_times(tmp_path, "u"))
    assert made is not None and made.started == (1000.0, 24, 80)
    Times(Files(), times_file(tmp_path, "v"), Record(0, 1000.0)).close()
    assert timeline(read_times(tmp_path, "v")) is None


def test_R7_times_are_bounded_and_end_with_the_total(tmp_path: Path) -> None:
    times = Times(Files(), times_file(tmp_path, "u"), Record(0, 1000.0, 24, 80))
    for number in range(3 * MOST):
        times.note(number + 1, 1000.0 + number / 50)
        if number % 3 == 0:
            times.resized(number + 1, 1000.0 + number / 50, 24, 81 + number % 2)
        assert number % 500 or max(record.total for record in read_times(tmp_path, "u")) == number + 1
    times.close()
    records = read_times(tmp_path, "u")
    assert len(records) <= MOST and records[0] == Record(0, 1000.0, 24, 80)
    made = timeline(records)
    assert made is not None
    marks = list(made.marks())
    assert marks[-1][0] == 3 * MOST
    assert all(offset / 50 - 4 < after <= offset / 50 for offset, after in marks)


def test_R7_a_disk_that_fails_while_room_is_made_loses_times_and_nothing_else(tmp_path: Path) -> None:
    class Failing(Files):
        fails = False

        def get(self, path: str) -> int:
            if self.fails:
                raise OSError(errno.EIO, "the disk fails")
            return super().get(path)

    files = Failing()
    times = Times(files, times_file(tmp_path, "u"), Record(0, 1000.0, 24, 80))
    for number in range(MOST - 1):
        times.note(number, 1001.0 + number)
    files.fails = True
    times.note(MOST, 1001.0 + MOST)
    files.fails = False
    times.note(MOST + 1, 1002.0 + MOST)
    times.close()
    records = read_times(tmp_path, "u")
    assert len(records) <= MOST // 2 + 1 and records[-1].total == MOST + 1


def test_R7_a_record_that_was_being_written_counts_as_before(tmp_path: Path) -> None:
    record = KeptRecord(
        uid="u", host="h", boot="b", keeper="k", socket="s", since=1.0, keep_secs=60.0, head=1, ring=1, ahead=1
    )
    begin_record(tmp_path, record)
    assert read_record(tmp_path, "u") == record
    change_record(tmp_path, "u", until=5.0)
    exited = KeptExit(None, 9, 10, 6.0, "why", (b"\xff",))
    change_record(tmp_path, "u", until=None, exit=exited)
    with (tmp_path / "u.kept").open("ab") as file:
        file.write(b'{"until":7.')
    found = read_record(tmp_path, "u")
    assert found is not None and found.exit == exited and found.until is None
    (tmp_path / "v.kept").write_bytes(b"nonsense\n")
    assert read_record(tmp_path, "v") is None and read_record(tmp_path, "w") is None


def test_R7_a_record_that_the_disk_took_in_part_can_be_changed_again(tmp_path: Path) -> None:
    record = KeptRecord(
        uid="u", host="h", boot="b", keeper="k", socket="s", since=1.0, keep_secs=60.0, head=1, ring=1, ahead=1
    )
    begin_record(tmp_path, record)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "u.kept").stat().st_size + 5, before[1]))
    try:
        with pytest.raises(OSError, match="No space left"):
            change_record(tmp_path, "u", until=5.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    change_record(tmp_path, "u", until=6.0)
    found = read_record(tmp_path, "u")
    assert found is not None and found.until == 6.0


def test_R7_only_some_files_are_open(tmp_path: Path) -> None:
    files = Files()
    before = len(list(Path("/proc/self/fd").iterdir()))
    spools = [SpoolFile(files, tmp_path / f"u{number}", 100, 100, 0) for number in range(300)]
    for spool in spools * 2:
        spool.append(b"x")
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 128
    for spool in spools:
        spool.close()
    assert {(tmp_path / f"u{number}").read_bytes() for number in range(300)} == {b"xx"}
