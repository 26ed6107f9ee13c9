"""The archive of deleted handles (S5, W8): nothing is deleted unarchived, and crashes do no harm."""

import asyncio
import gzip
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.durable.lives import START, HandClock, stored_in
from tests.patience import until
from tests.soak import postgres_in_soak
from tests.trusting import write_trusted
from tests.unit.sqlite_stores import uid

from keephold import KeepholdError, Runtime
from keephold.cli import main
from keephold.handles.state import Failure, Ok, Stopped
from keephold.store.archive import Archive, archived
from keephold.store.base import HandleQuery, KeptOutput, Record, Registered
from keephold.store.housekeeping import SupportsSole

DAY = 86_400.0


def over(number: int, *, at: float = START, **more: Any) -> Record:
    fields: dict[str, Any] = {"state": Stopped(at, at, at + 1, Ok({"n": number})), "arguments": {"x": number}, **more}
    return Record(
        uid=uid(number), id=f"h{number}", tool="deploy", conversation="main", turn="t1", batch=1, position=0,
        call_id=f"c{number}", stateful=True, **fields,
    )  # fmt: skip


def unpacked(file: Path) -> list[bytes]:
    """What `zcat` says."""
    return gzip.decompress(file.read_bytes()).splitlines()


def uids(directory: Path) -> list[str]:
    return [line["uid"] for line in archived(directory)]


def test_a_line_has_what_the_handle_had_and_zcat_reads_it(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "a", [tmp_path])
    kept = KeptOutput(total=5, head=5, ring=0, data=b"hello")
    failed = Stopped(START, START, START + 40 * DAY, Failure("no", "tool_error"))
    archive.add([over(1, output=kept, metadata={"k": "v"}), over(2, state=failed)])
    archive.add([over(3)])
    assert [file.name for file in sorted((tmp_path / "a").iterdir())] == ["2026-01.jsonl.gz", "2026-02.jsonl.gz"]
    first, third = map(json.loads, unpacked(tmp_path / "a" / "2026-01.jsonl.gz"))
    assert (first["result"], first["output"], first["metadata"], first["arguments"]) == (
        {"n": 1}, "hello", {"k": "v"}, {"x": 1},
    )  # fmt: skip
    assert third["uid"] == uid(3)
    (second,) = archived(tmp_path / "a", since=START + 30 * DAY)
    assert (second["error"], second["code"], second["status"]) == ("no", "tool_error", "failed")
    assert (tmp_path / "a" / "2026-01.jsonl.gz").stat().st_mode & 0o777 == 0o600


def test_a_member_that_was_cut_off_anywhere_is_removed_by_the_next_one(tmp_path: Path) -> None:
    archive, file = Archive(tmp_path, [tmp_path]), tmp_path / "2026-01.jsonl.gz"
    archive.add([over(1)])
    whole = file.stat().st_size
    archive.add([over(2)])
    both = file.read_bytes()
    for cut in range(whole, len(both)):
        file.write_bytes(both[:cut])
        assert uids(tmp_path) == [uid(1)]
    for cut in range(whole, len(both), 7):
        file.write_bytes(both[:cut])
        archive.add([over(3)])
        assert uids(tmp_path) == [uid(1), uid(3)]
        assert len(unpacked(file)) == 2


def test_an_archive_with_a_damaged_member_or_a_foreign_file_is_not_cut(tmp_path: Path) -> None:
    archive, file = Archive(tmp_path, [tmp_path]), tmp_path / "2026-01.jsonl.gz"
    archive.add([over(1)])
    archive.add([over(2)])
    damaged = bytearray(file.read_bytes())
    damaged[0] ^= 1
    for found in (bytes(damaged), gzip.compress(b"{}\n")):
        file.write_bytes(found)
        with pytest.raises(KeepholdError, match="is damaged"):
            archive.add([over(3)])
        with pytest.raises(KeepholdError, match="is damaged"):
            uids(tmp_path)
        assert file.read_bytes() == found


def test_a_handle_that_is_archived_twice_is_read_once(tmp_path: Path) -> None:
    archive = Archive(tmp_path, [tmp_path])
    archive.add([over(1), over(2)])
    archive.add([over(2), over(3)])
    assert uids(tmp_path) == [uid(1), uid(2), uid(3)]


def test_keephold_store_archive_lists_and_filters(tmp_path: Path) -> None:
    Archive(tmp_path / "a", [tmp_path]).add([over(1), over(2, at=START + 40 * DAY)])
    listed = CliRunner().invoke(main, ["store", "archive", str(tmp_path / "a")])
    assert listed.exit_code == 0
    assert [line.split()[2] for line in listed.output.splitlines()[1:]] == ["h1", "h2"]
    for words, ids in (((), ["h1", "h2"]), (("--tool", "x"), []), (("--conversation", "main"), ["h1", "h2"])):
        asked = CliRunner().invoke(main, ["store", "archive", str(tmp_path / "a"), "--json", *words])
        assert [json.loads(line)["id"] for line in asked.output.splitlines()] == ids
    weeks = int((time.time() - START) / DAY / 7) - 2  # after the first, before the second
    recent = CliRunner().invoke(main, ["store", "archive", str(tmp_path / "a"), "--json", "--since", f"{weeks}w"])
    assert [json.loads(line)["id"] for line in recent.output.splitlines()] == ["h2"]


def test_K7_a_link_that_leads_out_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "a").symlink_to(tmp_path)
    with pytest.raises(KeepholdError, match="outside of the project"):
        Archive(tmp_path / "inside" / "a", [tmp_path / "inside"]).add([over(1)])


async def test_S5_a_handle_is_archived_before_it_is_deleted_or_stays(tmp_path: Path) -> None:
    config = write_trusted(
        tmp_path / "keephold.toml", '[store]\nurl = "sqlite:///work.db"\narchive = "old"\nretention_secs = 60\n'
    )
    clock = HandClock()
    async with Runtime(config=config, clock=clock) as rt:
        await rt.registry.write([Registered(over(number)) for number in range(1, 301)])
        clock.at += DAY
        (tmp_path / "old").write_text("in the way")
        with pytest.raises(KeepholdError, match=r"nothing was deleted \(\[store\] archive\)"):
            await rt.registry.collect()
        assert len(await rt.registry.store.handles()) == 300
        (tmp_path / "old").unlink()
        await rt.registry.collect()
        assert await rt.registry.store.handles() == []
    assert uids(tmp_path / "old") == [uid(number) for number in range(1, 301)]


PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.patience import until
from tests.durable.lives import START, HandClock, stored_in
from keephold import Runtime

class Slow:
    def __init__(self, archive): self.archive = archive
    async def __call__(self, records):
        await self.archive(records)
        print("archived", flush=True)
        if "hold" in sys.argv:
            await asyncio.get_running_loop().create_future()

async def main():
    clock = HandClock(START + 10)
    async with Runtime(config=Path(sys.argv[1]), clock=clock) as rt:
        rt.registry.archive = Slow(rt.registry.archive)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        clock.at += 86_400
        await rt.registry.collect()
        print("done", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


class Process:
    """A runtime of its own on the store, which deletes what is old when it is told to."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None and process.stdout is not None
        self._to, self._said = process.stdin, process.stdout

    @classmethod
    async def start(cls, config: Path, *more: str) -> "Process":
        pipe, words = asyncio.subprocess.PIPE, (sys.executable, "-c", PROGRAM, str(config), *more)
        made = cls(await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe))
        await made.says("ready")
        return made

    async def says(self, word: str) -> None:
        while (line := await self._said.readline()) and line.strip() != word.encode():
            pass
        assert line, "it has ended"

    def tell(self) -> None:
        self._to.write(b"\n")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    async def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def end(self) -> None:
        self._to.close()
        await self._process.wait()


async def stocked(directory: Path, store: str, count: int) -> Path:
    settings = f'[store]\nurl = "{store}"\narchive = "old"\nretention_secs = 60\n'
    config = write_trusted(directory / "keephold.toml", settings)
    async with Runtime(config=config, clock=HandClock(START + 10)) as rt:
        await rt.registry.write([Registered(over(number)) for number in range(1, count + 1)])
    return config


def lines(directory: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for file in directory.glob("*.gz"):
        found.update(json.loads(line)["uid"] for line in unpacked(file))
    return found


@postgres_in_soak
async def test_W8_of_two_processes_that_share_a_store_one_archives_each_handle_once(tmp_path: Path, store: str) -> None:
    config = await stocked(tmp_path, store, 400)
    both = [await Process.start(config) for _ in range(2)]
    for each in both:
        each.tell()
    for each in both:
        await each.says("done")
    for each in both:
        await each.end()
    async with Runtime(store=store) as rt:
        assert await rt.registry.store.handles(HandleQuery(stateful=None)) == []
    assert lines(tmp_path / "old") == Counter(uid(number) for number in range(1, 401))


@postgres_in_soak
async def test_S5_killed_between_archiving_and_deleting_nothing_is_lost(tmp_path: Path, store: str) -> None:
    config = await stocked(tmp_path, store, 200)
    first = await Process.start(config)
    first.tell()
    await first.says("archived")
    await first.kill()
    second = await Process.start(config)
    second.tell()
    await second.says("done")
    await second.end()
    expected = {uid(number) for number in range(1, 201)}
    found = lines(tmp_path / "old")
    assert set(found) == expected and max(found.values()) <= 2
    assert sorted(uids(tmp_path / "old")) == sorted(expected), "the reader returns each once"


async def test_W8_a_process_that_is_stopped_while_it_archives_is_passed(tmp_path: Path) -> None:
    """The kernel says that a process of this machine is stopped. A client of PostgreSQL may be on another machine."""
    store = stored_in(tmp_path)
    config = await stocked(tmp_path, store, 100)
    first, second = await Process.start(config, "hold"), await Process.start(config)
    first.tell()
    await first.says("archived")
    first.stop()
    second.tell()
    await second.says("done")
    await first.kill()
    await second.end()
    async with Runtime(store=store) as rt:
        assert await rt.registry.store.handles() == []
    assert len(uids(tmp_path / "old")) == 100


async def test_W8_the_lock_ends_with_its_process_and_excludes_others(store: str) -> None:
    async with Runtime(store=store) as one, Runtime(store=store) as other:
        first, second = one.registry.store, other.registry.store
        assert isinstance(first, SupportsSole) and isinstance(second, SupportsSole)
        async with first.sole() as alone, second.sole() as too:
            assert (alone, too) == (True, False)
        async with second.sole() as alone:
            assert alone


async def test_S5_cancelling_an_archive_does_not_stop_the_loop(tmp_path: Path) -> None:
    begun, release = threading.Event(), threading.Event()
    late = threading.Timer(20, release.set)  # instead of waiting for ever
    late.start()

    class Slow(Archive):
        def add(self, records: Sequence[Record]) -> None:
            begun.set()
            release.wait()

    archiving = asyncio.create_task(Slow(tmp_path, [tmp_path])([]))
    await until(begun.is_set)
    archiving.cancel()
    await asyncio.wait([archiving])
    assert archiving.cancelled() and not release.is_set()
    release.set()
    late.cancel()
    late.join()
