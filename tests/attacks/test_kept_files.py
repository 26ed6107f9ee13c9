"""Files beside the store that a repository, or another program, put there in place of ours (R7, E6)."""

import asyncio
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.patience import PATIENCE

from keephold import Runtime
from keephold.errors import KeepholdError
from keephold.tools import marks
from keephold.tools.keeper.children import Hooks
from keephold.tools.keeper.client import Keeper
from keephold.tools.keeper.record import KeptRecord, boot_id, read_record, record_file
from keephold.tools.keeper.times import read_times, times_file


def ignored(*_: object) -> None: ...


HOOKS = Hooks(output=ignored, exit=ignored, failed=ignored, displaced=ignored)


def record_of(uid: str, path: str) -> bytes:
    record = KeptRecord(
        uid=uid, host=socket.gethostname(), boot=boot_id(), keeper=marks.new_runtime_mark(), socket=path, since=1.0,
        keep_secs=60.0, head=1, ring=1, ahead=1,
    )  # fmt: skip
    return msgspec.json.encode(record) + b"\n"


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A pipe with a record in it; without, its reader would wait."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)
    os.write(end, record_of("pipe", "s"))
    yield path
    os.close(end)


def test_R7_links_and_pipes_are_no_records(tmp_path: Path, pipe: Path) -> None:
    (tmp_path / "true").write_bytes(record_of("link", "s"))
    for uid, target in (("link", tmp_path / "true"), ("zeros", Path("/dev/zero"))):
        record_file(tmp_path, uid).symlink_to(target)
        times_file(tmp_path, uid).symlink_to(target)
    record_file(tmp_path, "pipe").hardlink_to(pipe)
    times_file(tmp_path, "pipe").hardlink_to(pipe)
    for uid in ("link", "pipe", "zeros"):
        assert read_record(tmp_path, uid) is None
        assert read_times(tmp_path, uid) == []


@pytest.mark.parametrize(
    "content", [b'{"uid":' + b"[" * 100_000 + b"\n", record_of("another", "s"), b"[]\n", b"\xff\n"]
)
def test_R7_a_record_that_no_keeper_wrote_counts_as_none(tmp_path: Path, content: bytes) -> None:
    """That of another call would have that call's process ended."""
    record_file(tmp_path, "u").write_bytes(content)
    assert read_record(tmp_path, "u") is None


async def test_R7_a_record_cannot_name_the_socket_of_a_stranger(tmp_path: Path) -> None:
    """Others can put sockets into a directory that is not private; and an abstract one has no owner at all."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    for address in (str(open_to_all / "k"), f"\0keephold-test-{os.getpid()}"):
        record_file(tmp_path, "u").write_bytes(record_of("u", address))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as stranger:
            stranger.bind(address)
            stranger.listen()
            taking = asyncio.create_task(Keeper(tmp_path).take_back("u", 1, HOOKS))
            with pytest.raises(KeepholdError, match="nothing listens"):
                await asyncio.wait_for(taking, PATIENCE)
            with pytest.raises(BlockingIOError):
                stranger.accept()


async def test_R7_a_runtime_opens_a_store_with_strange_files_beside_it(tmp_path: Path, pipe: Path) -> None:
    output = tmp_path / "s.db-output"
    output.mkdir(mode=0o700)
    (output / "pipe.kept").hardlink_to(pipe)
    (output / "zeros.kept").symlink_to("/dev/zero")
    (output / "folder.kept").mkdir()
    (output / os.fsdecode(b"\xff.kept")).write_bytes(b"")
    (output / "late.kept").write_bytes(b"")
    owners = tmp_path / "s.db-owners"
    owners.mkdir(mode=0o700)
    (owners / "pipe").hardlink_to(pipe)
    (owners / "zeros").symlink_to("/dev/zero")
    names = ["folder.kept", os.fsdecode(b"\xff.kept")]  # these are none of ours
    async with Runtime(store=f"sqlite:///{tmp_path}/s.db"), asyncio.timeout(PATIENCE):
        while sorted(each.name for each in output.iterdir()) != sorted(names):  # noqa: ASYNC110 (in the background)
            await asyncio.sleep(0.01)
    assert list(owners.iterdir()) == []


@pytest.mark.parametrize("end", ["output", "owners", "gate", "wal", "shm"])
async def test_E6_nothing_elsewhere_is_written_or_deleted_through_a_link(tmp_path: Path, end: str) -> None:
    """A repository can have a link of that name to any directory or file of its user."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "key").write_text("mine")
    async with Runtime(store=f"sqlite:///{tmp_path}/s.db"):
        pass
    link = tmp_path / f"s.db-{end}"
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(precious if end in ("output", "owners") else precious / "key")
    with pytest.raises(KeepholdError, match=f"s.db-{end}` is a link"):
        async with Runtime(store=f"sqlite:///{tmp_path}/s.db"):
            pass
    assert [file.read_text() for file in precious.iterdir()] == ["mine"]
