"""Output and its bounds (O5), for readers that take nothing away (C5)."""

import errno
import os
import resource
import signal
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keephold.handles import output as output_module
from keephold.handles.output import Output, unfinished
from keephold.handles.spool import Spool

MiB = 1 << 20


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spool]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = Spool()
    yield spool
    spool.close()
    assert list(tmp_path.glob("keephold-spool-*")) == []


@contextmanager
def small(memory: int, gather: int) -> Iterator[Spool]:
    """A spool, and outputs that leave memory after a few bytes instead of a MiB."""
    with (
        patch.object(output_module, "_MEMORY", memory),
        patch.object(output_module, "_GATHER", gather),
    ):
        spool = Spool()
        try:
            yield spool
        finally:
            spool.close()


def pages(output: Output, size: int | None = None) -> list[tuple[int, bytes, int]]:
    """Everything a reader meets who goes from end to end: offset, data, missing."""
    met, at = [], 0
    while at < output.total:
        piece = output.read(at, None if size is None else at + size)
        assert piece.start == at < piece.end
        assert len(piece.data) + piece.missing == piece.end - at
        met.append((at, piece.data, piece.missing))
        at = piece.end
    return met


def kept(output: Output, size: int | None = None) -> bytes:
    """What is kept, with `?` for each byte that is gone."""
    return b"".join(data or b"?" * missing for _, data, missing in pages(output, size))


def model(printed: bytes, max_output: int) -> bytes:
    head = max_output // 2
    tail = max(head, len(printed) - (max_output - head))
    return printed[:head] + b"?" * (tail - head) + printed[tail:]


def files(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("keephold-spool-*/*"))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@given(
    pieces=st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=30),
    max_output=st.integers(0, 90),
    memory=st.sampled_from([8, 32]),
    gather=st.sampled_from([1, 10]),
    page=st.integers(1, 50),
)
def test_O5_keeps_the_first_half_and_the_last_half(
    pieces: list[tuple[bytes, bool]], max_output: int, memory: int, gather: int, page: int
) -> None:
    printed = b""
    with small(memory, gather) as spool:
        output = Output(spool, max_output)
        for piece, is_read in pieces:
            output.append(piece)
            printed += piece
            if not is_read:
                continue
            expected = model(printed, max_output)
            assert output.total == len(printed)
            assert kept(output) == expected
            assert kept(output, page) == expected
            gap = expected.find(b"?"), expected.rfind(b"?") + 1
            if len(printed) <= max_output:
                assert output.gap is None
            elif b"?" not in printed:
                assert output.gap == gap
        output.close()
        assert kept(output, page) == model(printed, max_output)
        output.discard()


@contextmanager
def disk_that_breaks(writes: int, last: int) -> Iterator[None]:
    """The disk takes a number of writes, `last` bytes of another, and then nothing."""
    pwrite, left = os.pwrite, iter(range(writes + 1, 0, -1))

    def write(descriptor: int, data: memoryview, place: int) -> int:
        match next(left, 0):
            case 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            case 1:
                data = data[:last]
        return pwrite(descriptor, data, place)

    with patch.object(os, "pwrite", write):
        yield


@given(
    sizes=st.lists(st.integers(1, 20) | st.integers(40, 80), max_size=25),
    max_output=st.integers(20, 50),
    writes=st.integers(0, 20),
    last=st.integers(1, 20),
    gather=st.sampled_from([1, 10]),
)
def test_O5_a_broken_disk_costs_bytes_but_never_shows_wrong_ones(
    sizes: list[int], max_output: int, writes: int, last: int, gather: int
) -> None:
    printed = b""
    with small(16, gather) as spool, disk_that_breaks(writes, last):
        output = Output(spool, max_output)
        for size in sizes:
            piece = bytes((len(printed) + index) % 251 for index in range(size))
            output.append(piece)
            printed += piece
            for start, data, _ in pages(output, 7):
                assert data == printed[start : start + len(data)]
            latest = min(8, size)
            assert output.before(len(printed), latest) == printed[len(printed) - latest :]
        output.discard()


@pytest.mark.parametrize(
    ("max_output", "quarters", "writes", "gap"),
    [(6, 16, 0, (3, 15)), (8, 7, 1, (4, 5))],
    ids=["in the ring", "where the ring begins again"],
)
def test_O5_what_a_failed_write_may_have_overwritten_is_gone(
    spool: Spool, max_output: int, quarters: int, writes: int, gap: tuple[int, int]
) -> None:
    quarter = MiB // 4
    output = Output(spool, max_output * quarter)
    printed = b"".join(bytes([number]) * quarter for number in range(quarters))
    output.append(printed)
    with disk_that_breaks(writes, 100):
        output.append(b"x" * (2 * quarter))
    printed += b"x" * (2 * quarter)
    assert output.gap == (gap[0] * quarter, gap[1] * quarter)
    assert output.read(0).data == printed[: gap[0] * quarter]
    assert output.read(gap[1] * quarter).data == printed[gap[1] * quarter :]
    output.discard()


def test_O5_a_disk_that_gives_nothing_back_costs_what_it_had(spool: Spool) -> None:
    output = Output(spool, 2 * MiB)
    output.append(b"a" * (4 * MiB))
    broken = os.open("/dev/full", os.O_WRONLY)
    os.dup2(broken, output._descriptor)
    os.close(broken)
    output.append(b"b" * (MiB // 2))
    assert output.read(4 * MiB - 1) == (b"", 4 * MiB - 1, 4 * MiB, 1)
    assert output.read(4 * MiB).data == b"b" * (MiB // 2)
    output.discard()


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """A write beyond `size` is cut short or refused, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_O5_a_full_disk_keeps_what_it_took_and_the_latest_in_memory(spool: Spool) -> None:
    output = Output(spool, 100 * MiB)
    printed = bytearray()
    with file_size_limit(3 * MiB + 5):
        for number in range(96):
            piece = bytes([number]) * (MiB // 16)
            output.append(piece)
            printed += piece
    assert output.failure is not None
    assert output.gap == (3 * MiB, 5 * MiB)
    assert output.read(0) == (bytes(printed[: 3 * MiB]), 0, 3 * MiB, 0)
    assert output.read(3 * MiB + 1) == (b"", 3 * MiB + 1, 5 * MiB, 2 * MiB - 1)
    assert output.read(5 * MiB) == (bytes(printed[5 * MiB :]), 5 * MiB, 6 * MiB, 0)
    output.discard()


@pytest.mark.parametrize("room", [0, MiB // 3])
def test_O5_a_disk_that_is_full_from_the_start_leaves_one_MiB(spool: Spool, tmp_path: Path, room: int) -> None:
    output = Output(spool, 100 * MiB)
    with file_size_limit(room):
        for number in range(24):
            output.append(bytes([number]) * (MiB // 8))
    assert output.failure is not None
    assert output.gap == (MiB // 2, 3 * MiB - MiB // 2)
    assert output.read(0).data == b"".join(bytes([number]) * (MiB // 8) for number in range(4))
    assert output.read(3 * MiB - MiB // 2).data == b"".join(bytes([number]) * (MiB // 8) for number in range(20, 24))
    assert files(tmp_path) == []


def test_O5_a_closed_spool_leaves_one_MiB(spool: Spool) -> None:
    spool.close()
    output = Output(spool, 100 * MiB)
    output.append(b"a" * MiB)
    output.append(b"b")
    assert output.failure is not None
    assert output.read(0).data == b"a" * (MiB // 2)
    assert output.read(output.total - 2).data == b"ab"


def test_O5_a_file_that_vanished_is_said_to_be_missing(spool: Spool, tmp_path: Path) -> None:
    output = Output(spool, 100 * MiB)
    output.append(b"a" * (2 * MiB))
    output.close()
    [file] = files(tmp_path)
    file.unlink()
    assert output.read(5, 10) == (b"", 5, 10, 5)
    assert files(tmp_path) == []


def test_O5_one_MiB_stays_in_memory_and_more_is_in_one_file(spool: Spool, tmp_path: Path) -> None:
    output = Output(spool, 100 * MiB)
    output.append(b"a" * MiB)
    assert list(tmp_path.iterdir()) == []
    output.append(b"b")
    [file] = files(tmp_path)
    output.sync()
    assert file.read_bytes() == b"a" * MiB + b"b"
    assert file.stat().st_mode & 0o777 == 0o600
    output.discard()
    assert files(tmp_path) == []


def test_O5_max_output_of_one_MiB_needs_no_file(spool: Spool, tmp_path: Path) -> None:
    output = Output(spool, MiB)
    for number in range(40):
        output.append(bytes([number]) * (MiB // 16))
    assert output.gap == (MiB // 2, 2 * MiB)
    assert output.read(2 * MiB).data == b"".join(bytes([number]) * (MiB // 16) for number in range(32, 40))
    assert list(tmp_path.iterdir()) == []


def test_O5_memory_stays_flat_over_200_MB(spool: Spool, tmp_path: Path) -> None:
    output = Output(spool, 8 * MiB)
    piece = os.urandom(200_000)
    tracemalloc.start()
    try:
        for _ in range(1000):
            output.append(piece)
        assert tracemalloc.get_traced_memory()[1] < 1.3 * MiB
    finally:
        tracemalloc.stop()
    assert output.total == 200_000_000
    assert output.gap == (4 * MiB, 200_000_000 - 4 * MiB)
    assert output.read(200_000_000 - 4).data == piece[-4:]
    assert files(tmp_path)[0].stat().st_size == 8 * MiB
    output.discard()


def test_O5_an_output_is_small(spool: Spool) -> None:
    tracemalloc.start()
    try:
        outputs = [Output(spool, 100 * MiB) for _ in range(1000)]
        assert tracemalloc.get_traced_memory()[0] < 500 * len(outputs)
    finally:
        tracemalloc.stop()


def test_O5_small_pieces_are_all_there_when_read(spool: Spool) -> None:
    output = Output(spool, 100 * MiB)
    output.append(b"x" * MiB)
    for number in range(3000):
        output.append(b"%d\n" % number)
        if number % 700 == 0:
            assert output.read(output.total - len(b"%d\n" % number)).data == b"%d\n" % number
    assert output.read(MiB).data == b"".join(b"%d\n" % number for number in range(3000))
    output.discard()


def test_O5_a_closed_output_holds_no_descriptor_and_is_still_read(spool: Spool) -> None:
    output = Output(spool, 100 * MiB)
    output.append(b"a" * MiB + b"z")
    before = descriptors()
    output.close()
    assert descriptors() == before - 1
    assert output.read(MiB).data == b"z"
    output.sync()
    assert descriptors() == before - 1
    output.append(b"late")
    assert output.read(MiB).data == b"zlate"
    output.discard()
    assert descriptors() == before - 1


def test_O5_discarded_output_says_how_much_is_gone(spool: Spool) -> None:
    output = Output(spool, 100 * MiB)
    output.append(b"a" * (2 * MiB))
    output.discard()
    output.append(b"more")
    assert output.gap == (0, 2 * MiB + 4)
    assert output.read(7) == (b"", 7, 2 * MiB + 4, 2 * MiB - 3)


def test_C5_reading_never_drains(spool: Spool) -> None:
    output = Output(spool, 100)
    output.append(b"hello ")
    assert output.read(0).data == output.read(0).data == b"hello "
    output.append(b"world")
    assert output.read(0).data == b"hello world"
    assert output.read(6).data == b"world"
    assert output.read(11) == (b"", 11, 11, 0)
    assert output.read(99) == (b"", 11, 11, 0)
    assert output.read(-5, 2).data == b"he"


def test_C5_a_reader_who_comes_again_gets_whole_characters(spool: Spool) -> None:
    output = Output(spool, 100)
    printed = "aé漢😀".encode()
    seen, cursor = "", 0
    for index in range(len(printed)):
        output.append(printed[index : index + 1])
        stop = output.whole
        seen += output.read(cursor, stop).data.decode()
        cursor = stop
    assert seen == "aé漢😀"


@given(st.text())
def test_unfinished_counts_what_a_cut_left_of_a_character(text: str) -> None:
    data = text.encode("utf-8", "replace")
    for stop in range(len(data) + 1):
        whole = data[:stop].decode("utf-8", "ignore").encode()
        assert unfinished(data[:stop]) == stop - len(whole)


def test_unfinished_takes_no_notice_of_what_is_not_utf8() -> None:
    assert unfinished(b"\x80\x80\x80\x80") == 0
    assert unfinished(b"\xff") == 0
    assert unfinished(b"") == 0


def test_spool_is_private_and_made_on_first_use(spool: Spool, tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []
    path = spool.file("a")
    assert path.parent.parent == tmp_path
    assert path.parent.name.startswith(f"keephold-spool-{os.getpid()}-")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert spool.file("b").parent == path.parent
    path.write_text("x")
    spool.close()
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_spool_removes_what_a_killed_owner_left_and_nothing_else(spool: Spool, tmp_path: Path) -> None:
    left = (
        "import os, signal; from keephold.handles.spool import Spool; "
        "Spool().file('output-1').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", left], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    [dead] = tmp_path.glob("keephold-spool-*")
    other = Spool()
    alive = other.file("a")  # its making sweeps as well
    assert not dead.exists()
    alive.write_text("x")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "keephold-spool-link"
    link.symlink_to(elsewhere)
    spool.file("a")
    assert alive.read_text() == "x"
    assert elsewhere.exists()
    link.unlink()
    other.close()
