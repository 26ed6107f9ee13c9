"""Output that outlives its process: what a store is told of it, and what is made of that (O5, E10)."""

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.test_output import descriptors, disk_that_breaks, file_size_limit, kept, model, pages

from keephold.handles import output as output_module
from keephold.handles.output import Output, Piece
from keephold.handles.spool import Spool
from keephold.store.base import KeptOutput

MiB = 1 << 20


@contextmanager
def small(memory: int, gather: int, durable: bool) -> Iterator[Spool]:
    """A spool, and outputs that leave memory after a few bytes instead of a MiB."""
    with (
        patch.object(output_module, "_MEMORY", memory),
        patch.object(output_module, "_GATHER", gather),
        tempfile.TemporaryDirectory() as directory,
    ):
        spool = Spool(Path(directory) if durable else None)
        try:
            yield spool
        finally:
            spool.close()


def restored(spool: Spool, told: KeptOutput) -> Output:
    """What another process makes of it, or the same one."""
    if spool.durable:
        told = msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=KeptOutput)
    return Output.restored(spool, told, "uid")


def reads(output: Output) -> list[object]:
    """All that can be read of a small output, from and to everywhere."""
    ends = range(output.total + 1)
    return [
        output.total,
        output.gap,
        output.whole,
        output.span(3, 9)[1:],
        *(output.read(start, stop) for start in ends for stop in (start + 1, start + 7, None)),
        *(output.before(stop, 5) for stop in ends),
    ]


pieces = st.lists(st.binary(max_size=12) | st.binary(min_size=30, max_size=60), max_size=10)


@given(
    before=pieces,
    after=pieces,
    last=pieces,
    max_output=st.integers(0, 90),
    inline=st.integers(0, 40),
    memory=st.sampled_from([8, 32]),
    gather=st.sampled_from([1, 10]),
    durable=st.booleans(),
    closed=st.booleans(),
)
@pytest.mark.slow
def test_E10_kept_output_reads_the_same_and_goes_on_the_same(
    before: list[bytes],
    after: list[bytes],
    last: list[bytes],
    max_output: int,
    inline: int,
    memory: int,
    gather: int,
    durable: bool,
    closed: bool,
) -> None:
    with small(memory, gather, durable) as spool:
        output, never_kept = Output(spool, max_output, "uid"), Output(spool, max_output, "other")
        printed = b""
        for more in (before, after, last):
            for piece in more:
                output.append(piece)
                never_kept.append(piece)
                printed += piece
            told = output.keep(inline)
            if closed:
                output.close()
            assert told.total == len(printed)
            assert len(told.data) <= inline
            assert told.file in (None, "uid")
            assert reads(output) == reads(never_kept)
            was, output = output, restored(spool, told)
            assert reads(output) == reads(never_kept)
            assert kept(output) == model(printed, max_output)
            assert output.keep(inline) == told
            was.close()
        for each in (output, never_kept):
            each.close()


@pytest.mark.slow
@given(
    before=pieces,
    after=pieces,
    max_output=st.integers(0, 90),
    inline=st.integers(0, 40),
    gather=st.sampled_from([1, 10]),
    durable=st.booleans(),
    by=st.sampled_from(["itself", "restored"]),
)
def test_O5_what_comes_after_all_never_makes_a_kept_output_show_wrong_bytes(
    before: list[bytes], after: list[bytes], max_output: int, inline: int, gather: int, durable: bool, by: str
) -> None:
    with small(32, gather, durable) as spool:
        output = Output(spool, max_output, "uid")
        for piece in before:
            output.append(piece)
        printed = b"".join(before)
        told = output.keep(inline)
        writer = output if by == "itself" else restored(spool, told)
        for piece in after:
            writer.append(piece)
        assert kept(writer) == model(b"".join(before + after), max_output)
        if len(printed) + len(b"".join(after)) < max_output or told.file is None:
            assert kept(restored(spool, told)) == model(printed, max_output)
        for start, data, _ in pages(restored(spool, told)):
            assert data == printed[start : start + len(data)]
        for each in (writer, output):
            each.close()


@pytest.mark.slow
@given(
    sizes=st.lists(st.integers(1, 20) | st.integers(40, 80), max_size=12),
    more=st.lists(st.integers(1, 20) | st.integers(40, 80), max_size=12),
    max_output=st.integers(0, 90),
    inline=st.integers(0, 16),
    writes=st.integers(0, 12),
    last=st.integers(1, 20),
    gather=st.sampled_from([1, 10]),
    heals=st.booleans(),
    gone=st.booleans(),
)
def test_O5_keeping_on_a_broken_disk_costs_bytes_but_never_shows_wrong_ones(
    sizes: list[int],
    more: list[int],
    max_output: int,
    inline: int,
    writes: int,
    last: int,
    gather: int,
    heals: bool,
    gone: bool,
) -> None:
    printed = b""

    def check(output: Output, inline: int) -> None:
        assert output.total == len(printed)
        for start, data, _ in pages(output, 7):
            assert data == printed[start : start + len(data)]
        latest = min(inline // 2, max_output // 2, len(printed))
        assert output.before(len(printed), latest) == printed[len(printed) - latest :]

    def append(output: Output, size: int) -> None:
        nonlocal printed
        piece = bytes((len(printed) + index) % 251 for index in range(size))
        output.append(piece)
        printed += piece

    with small(16, gather, durable=True) as spool:
        output = Output(spool, max_output, "uid")
        with disk_that_breaks(writes, last):
            for size in sizes:
                append(output, size)
            told = output.keep(inline)
            assert len(told.data) <= inline
            check(output, inline)
            again = restored(spool, told)
            check(again, inline)
            if not heals:
                for size in more:
                    append(again, size)
                    check(again, 0)
                check(restored(spool, again.keep(inline)), 0)
        if heals:
            for size in more:
                append(again, size)
                check(again, 0)
            check(restored(spool, again.keep(inline)), 0)
        told = again.keep(inline)
        if gone and told.file is not None:
            spool.file(told.file).unlink()
            check(restored(spool, told), 0)
        output.close()
        again.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where a durable store has output files."""
    directory = tmp_path / "output"
    directory.mkdir()
    return directory


def test_O5_a_durable_spool_makes_sweeps_and_removes_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    (directory / "keephold-spool-1-dead").mkdir()
    spool = Spool(directory)
    assert spool.durable
    assert spool.file("uid") == directory / "uid"
    spool.file("uid").write_text("x")
    spool.close()
    spool.close()
    assert sorted(path.name for path in directory.iterdir()) == ["keephold-spool-1-dead", "uid"]
    with pytest.raises(FileNotFoundError, match="closed"):
        spool.file("other")
    assert not Spool().durable


def test_O5_a_little_is_kept_inline(directory: Path) -> None:
    output = Output(Spool(directory), 100 * MiB, "uid")
    output.append(b"hello")
    assert output.keep(1 << 16) == KeptOutput(total=5, head=50 * MiB, ring=50 * MiB, data=b"hello")
    assert list(directory.iterdir()) == []


def test_O5_much_in_memory_is_kept_inline_without_a_copy(directory: Path) -> None:
    output = Output(Spool(directory), 100 * MiB, "uid")
    output.append(b"a" * MiB)
    told = output.keep(MiB)
    again = Output.restored(Spool(directory), told)
    assert id(output._memory) == id(told.data) == id(again._memory)
    again.append(b"b")
    output.append(b"c")
    assert told.data == b"a" * MiB
    assert again.read(MiB - 1).data == b"ab"
    assert output.read(MiB - 1).data == b"ac"
    output.discard()
    again.discard()


def test_O5_more_is_kept_in_a_file_that_another_process_reads(directory: Path) -> None:
    output = Output(Spool(directory), MiB, "uid")
    for number in range(40):
        output.append(bytes([number]) * (MiB // 16))
    told = output.keep(1 << 16)
    assert told == KeptOutput(total=40 * (MiB // 16), head=MiB // 2, ring=MiB // 2, in_file=MiB, file="uid")
    assert [(path.name, path.stat().st_mode & 0o777) for path in directory.iterdir()] == [("uid", 0o600)]
    output.close()
    reader = (
        "import sys; from pathlib import Path; import msgspec; from keephold.handles.output import Output; "
        "from keephold.handles.spool import Spool; from keephold.store.base import KeptOutput; "
        "kept = msgspec.json.decode(sys.argv[2], type=KeptOutput); "
        "sys.stdout.buffer.write(Output.restored(Spool(Path(sys.argv[1])), kept).read(2 * (1 << 20)).data)"
    )
    command = [sys.executable, "-c", reader, str(directory), msgspec.json.encode(told).decode()]
    read = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    assert read == b"".join(bytes([number]) * (MiB // 16) for number in range(32, 40))


def test_O5_a_file_that_a_store_was_told_of_is_not_ours_to_remove(directory: Path) -> None:
    spool = Spool(directory)
    output = Output(spool, 100 * MiB, "uid")
    output.append(b"a" * (2 * MiB))
    again = Output.restored(spool, output.keep(0))
    before = descriptors()
    output.discard()
    assert descriptors() == before - 1
    assert output.gap == (0, 2 * MiB)
    again.append(b"b")
    again.discard()
    assert [path.name for path in directory.iterdir()] == ["uid"]
    unkept = Output(spool, 100 * MiB, "another")
    unkept.append(b"a" * (2 * MiB))
    unkept.discard()
    assert [path.name for path in directory.iterdir()] == ["uid"]


def test_O5_a_temporary_file_is_found_through_its_spool_and_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = Spool()
    output = Output(spool, 100 * MiB)
    output.append(b"a" * MiB + b"b")
    told = output.keep(MiB)
    assert told.file is not None
    output.close()
    again = Output.restored(spool, told)
    assert again.read(MiB - 1).data == b"ab"
    again.discard()
    assert list(tmp_path.glob("*/*")) == []
    spool.close()
    assert Output.restored(spool, told).read(5) == (b"", 5, MiB + 1, MiB - 4)


def test_O5_what_a_crash_left_under_our_name_is_overwritten(directory: Path) -> None:
    (directory / "uid").write_bytes(b"x" * (3 * MiB))
    output = Output(Spool(directory), 100 * MiB, "uid")
    output.append(b"a" * MiB + b"b")
    output.close()
    assert (directory / "uid").read_bytes() == b"a" * MiB + b"b"


def test_O5_of_a_file_that_vanished_the_bytes_are_in_the_gap(directory: Path) -> None:
    spool = Spool(directory)
    output = Output(spool, 100 * MiB, "uid")
    output.append(b"a" * (2 * MiB))
    told = output.keep(1 << 16)
    output.close()
    (directory / "uid").unlink()
    again = Output.restored(spool, told)
    assert again.gap == (0, 2 * MiB)
    assert again.read(5, 10) == (b"", 5, 2 * MiB, 2 * MiB - 5)
    again.append(b"more")
    assert again.gap == (0, 2 * MiB)
    assert again.read(2 * MiB).data == b"more"
    assert list(directory.iterdir()) == []


def test_O5_a_file_that_vanished_before_it_was_kept_is_no_error(directory: Path) -> None:
    spool = Spool(directory)
    output = Output(spool, 100 * MiB, "uid")
    output.append(b"a" * (2 * MiB))
    output.close()
    (directory / "uid").unlink()
    assert Output.restored(spool, output.keep(1 << 16)).gap == (0, 2 * MiB)


@pytest.mark.parametrize("max_output", [100 * MiB, MiB // 2], ids=["not cut", "cut"])
def test_O5_a_full_disk_leaves_the_first_and_last_halves_inline(directory: Path, max_output: int) -> None:
    spool = Spool(directory)
    output = Output(spool, max_output, "uid")
    printed = b"".join(bytes([number]) * 1024 for number in range(200)) * 5
    output.append(printed)
    with file_size_limit(MiB // 3):
        told = output.keep(1 << 16)
    assert output.failure is not None
    assert list(directory.iterdir()) == []
    assert told.file is None
    again = Output.restored(spool, told)
    half, total = 1 << 15, len(printed)
    assert again.gap == (half, total - half)
    assert pages(again) == [
        (0, printed[:half], 0),
        (half, b"", total - 2 * half),
        (total - half, printed[-half:], 0),
    ]
    assert output.read(total - 100_000).data == printed[-100_000:]
    # The disk has room again.
    assert kept(Output.restored(spool, output.keep(1 << 16))) == kept(output)
    output.close()


def test_O5_a_disk_that_got_full_keeps_what_it_took_and_the_latest_inline(directory: Path) -> None:
    spool = Spool(directory)
    output = Output(spool, 100 * MiB, "uid")
    printed = b"".join(bytes([number]) * (MiB // 16) for number in range(96))
    with file_size_limit(3 * MiB + 5):
        for start in range(0, len(printed), MiB // 16):
            output.append(printed[start : start + MiB // 16])
        told = output.keep(1 << 16)
    assert (told.file, told.in_file, len(told.data)) == ("uid", 3 * MiB, 1 << 16)
    assert pages(Output.restored(spool, told)) == [
        (0, printed[: 3 * MiB], 0),
        (3 * MiB, b"", 3 * MiB - (1 << 16)),
        (6 * MiB - (1 << 16), printed[-(1 << 16) :], 0),
    ]
    with file_size_limit(3 * MiB + 5):
        everything = output.keep(MiB)
    assert kept(Output.restored(spool, everything)) == kept(output)
    output.discard()
    (directory / "uid").unlink()
    assert Output.restored(spool, told).gap == (0, 6 * MiB - (1 << 16))


def test_O5_a_disk_that_breaks_twice_shows_no_byte_that_was_gone() -> None:
    printed = bytes(range(1, 25))
    with small(16, 1, durable=True) as spool:
        output = Output(spool, 20, "uid")
        output.append(printed[:20])
        with patch.object(os, "pwrite", side_effect=OSError(errno.EIO, "broken")):
            output.append(printed[20:21])
        assert output.gap == (10, 11)
        again = restored(spool, output.keep(4))
        assert (again.gap, again._in_file) == ((10, 11), output_module._ALL)
        with patch.object(os, "pwrite", side_effect=OSError(errno.EIO, "broken")):
            again.append(printed[21:])
        assert kept(again) == printed[:10] + b"?" + printed[11:]
        output.close()
        again.close()


def test_O5_a_directory_that_takes_nothing_is_no_error(directory: Path) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    output = Output(Spool(directory), 100 * MiB, "uid")
    output.append(b"a" * 1000)
    with patch.object(os, "open", refused), patch.object(Path, "unlink", refused):
        told = output.keep(100)
        output.append(b"b" * (2 * MiB))
        output.discard()
    assert told == KeptOutput(total=1000, head=50, ring=50, kept_from=950, data=b"a" * 100)


def test_E10_the_ring_of_a_kept_output_is_not_shown_once_it_was_overwritten(directory: Path) -> None:
    spool = Spool(directory)
    output = Output(spool, 2 * MiB, "uid")
    output.append(b"a" * (4 * MiB))
    told = output.keep(1 << 16)
    output.close()
    again = Output.restored(spool, told)
    again.append(b"b" * MiB)
    # The process dies here. The next one only knows what was kept.
    left = Output.restored(spool, told)
    assert left.gap == (MiB, 4 * MiB)
    assert left.read(0).data == b"a" * MiB
    assert left.read(MiB) == Piece(b"", MiB, 4 * MiB, 3 * MiB)
    left.append(b"c")
    assert left.read(4 * MiB).data == b"c"
    left.close()
    again.close()
