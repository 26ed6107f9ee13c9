"""Several processes on one store: who lives, who is next to write, who hears of what, what a crash leaves behind."""

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from tests.patience import PATIENCE, until
from tests.unit.sqlite_stores import commit, end, give, line, opened, registered, uid

from keephold.errors import KeepholdError
from keephold.private_file import socket_directory
from keephold.store.base import Claimed, Record, Replied, Request, Requested
from keephold.store.sqlite import SqliteStore, opening, processes
from keephold.store.sqlite.processes import Owners, Turnstile
from keephold.store.sqlite.reads import ReadOnlyStore

pytestmark = pytest.mark.slow

_CHILD = """
import asyncio, os, signal, sys, threading
from pathlib import Path
sys.path.insert(0, {root!r})
from keephold.store.base import *
from tests.unit.sqlite_stores import *
path = Path(sys.argv[1])
def say(*words): print(*words, flush=True)
def stop():  # at once: a signal to the process may come to another thread, and later
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
{body}
asyncio.run(main())
"""


@asynccontextmanager
async def child(path: Path, body: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that runs `main`; it is killed if it does not end."""
    script = _CHILD.format(root=str(Path(__file__).parents[2]), body=body)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(path), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]


async def said(process: asyncio.subprocess.Process) -> list[str]:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return (await process.stdout.readline()).decode().split()


_HOLDS = """
async def main():
    async with opened(path) as store:
        await commit(store, registered(1), registered(2), Emitted("p", "t", 1, NOON))
        await commit(store, Requested("r", uid(9), "somebody", b"?"))
        say(store.owner)
        await asyncio.sleep(60)
"""


# Who lives


async def test_E6_a_killed_owner_is_dead_at_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with child(path, _HOLDS) as process, opened(path) as store:
        (owner,) = await said(process)
        assert store.alive(owner) and await store.owners() == [owner]
        process.send_signal(signal.SIGSTOP)
        assert store.alive(owner), "a stopped process keeps its own"
        await commit(store, registered(3))
        process.kill()
        await process.wait()
        assert not store.alive(owner)
        (claimed,) = await commit(store, Claimed(uid(1), owner))
        assert isinstance(claimed, Record) and claimed.owner == store.owner and claimed.fence == 2
    async with opened(path) as store:
        assert sorted(await store.owners()) == sorted([owner, claimed.owner])


async def test_the_next_to_open_cleans_up_after_the_dead(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with child(path, _HOLDS) as process:
        (owner,) = await said(process)
    found = list(socket_directory("x" * 33).glob(f"*-{owner}"))
    assert len(found) == 1 and (path.with_name("store.db-owners") / owner).exists()
    async with opened(path) as store:
        assert [file.name for file in path.with_name("store.db-owners").iterdir()] == [store.owner]
        assert not found[0].exists()
        assert await store.reply("r") is None and await store.requests() == []
        assert [each.uid for each in await store.owned(owner)] == [uid(1), uid(2)], "calls are for recovery"
    assert list(path.with_name("store.db-owners").iterdir()) == []


def test_nobody_takes_a_new_owner_for_a_dead_one(tmp_path: Path) -> None:
    """Its file is there before it is locked, for a moment: under a name that nobody asks for."""
    owners = [Owners(tmp_path / "owners") for _ in range(20)]
    for each in owners:
        each.enter()
        assert all(other.alive(each.me) for other in owners)
        assert each.sweep() == {}
    for each in owners:
        each.leave()
        assert not any(other.alive(each.me) for other in owners if other is not each)
    assert list((tmp_path / "owners").iterdir()) == []


def test_an_owner_whose_file_is_swept_before_it_is_locked_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners, sweeper = Owners(tmp_path), Owners(tmp_path)
    rename: Callable[[Path, Path], Path] = Path.rename
    swept: list[Path] = []

    def late(file: Path, target: Path) -> Path:
        if not swept:
            swept.append(file)
            file.unlink()
        return rename(file, target)

    monkeypatch.setattr(Path, "rename", late)
    owners.enter()
    assert swept and sweeper.alive(owners.me)
    owners.leave()


# Who writes


def test_a_writer_that_waits_comes_before_one_that_has_just_written(tmp_path: Path) -> None:
    """Or a process would wait for seconds behind a busy one."""
    busy, waiting = Turnstile(tmp_path / "store.db"), Turnstile(tmp_path / "store.db")
    busy.enter()
    thread = threading.Thread(target=waiting.enter)
    thread.start()
    with (tmp_path / "store.db-gate").open() as gate, pytest.raises(BlockingIOError):
        while True:  # until it is next
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(gate, fcntl.LOCK_UN)
            time.sleep(0.001)
    busy.leave()
    assert not busy.enter_now()
    thread.join()
    assert not busy.enter_now()
    waiting.leave()
    assert busy.enter_now()
    for each in (busy, waiting):
        each.close()


async def test_a_writer_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.05)
    async with opened(tmp_path / "store.db") as store:
        other = Turnstile(store.path)
        with other:
            kept = give(store, registered(1), keep=True)
            with pytest.raises(KeepholdError, match="another process has been writing"):
                await commit(store, registered(2))
        await kept
        other.close()


_STOPS = """
async def main():
    async with opened(path) as store:
        await commit(store, registered(1))
        for file in FILES:
            fcntl.flock(file(store._place.turnstile), fcntl.LOCK_EX)
        say(os.getpid())
        stop()
        store._place.turnstile.leave()
        await commit(store, registered(2))
        say("written")
"""


@pytest.mark.parametrize("files", ["lambda each: each._turn", "lambda each: each._gate"])
async def test_a_process_that_is_stopped_at_the_turnstile_is_passed(tmp_path: Path, files: str) -> None:
    """It is in nobody's way, and writes when it continues."""
    path = tmp_path / "store.db"
    async with child(path, f"import fcntl\nFILES = [{files}]\n{_STOPS}") as process:
        (pid,) = await said(process)
        await until_stopped(int(pid))
        async with opened(path) as store:
            await commit(store, registered(3))
            process.send_signal(signal.SIGCONT)
            assert await said(process) == ["written"]
            assert await store.handle(uid(2)) and await store.handle(uid(3))


_STOPS_WITHIN = """
async def main():
    def fault(point):
        if point == "before" and armed:
            say(os.getpid())
            stop()
    armed = []
    async with opened(path, fault=fault) as store:
        await commit(store, registered(1))
        armed.append(1)
        await commit(store, registered(2))
        say("written")
"""


async def test_a_process_that_is_stopped_in_a_transaction_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "BUSY_MS", 50)
    path = tmp_path / "store.db"
    async with opened(path) as store, child(path, _STOPS_WITHIN) as process:
        (pid,) = await said(process)
        await until_stopped(int(pid))
        with pytest.raises(KeepholdError, match=rf"process {pid} \(`.*python.*kill -CONT {pid}"):
            await commit(store, registered(3))
        with pytest.raises(KeepholdError, match=rf"process {pid} "):
            async with opened(path):
                pass
        kept = give(store, registered(4), keep=True)
        process.send_signal(signal.SIGCONT)
        await kept
        assert await said(process) == ["written"]
        assert await store.handle(uid(2)) and await store.handle(uid(4))


async def until_stopped(pid: int) -> None:
    await until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


# Who hears


async def test_two_stores_of_one_process_hear_of_each_other(tmp_path: Path) -> None:
    heard: asyncio.Queue[frozenset[str] | None] = asyncio.Queue()
    own: list[frozenset[str] | None] = []
    path = tmp_path / "store.db"
    async with opened(path, heard=own.append) as store, opened(path, heard=heard.put_nowait) as other:
        await commit(store, registered(1), registered(2))
        assert await heard.get() == frozenset({uid(1), uid(2)})
        await commit(store, line(1, "a"))  # a step: told at most ten times a second
        await commit(store, end(1))
        assert await heard.get() == frozenset({uid(1)})
        await commit(store, *(registered(number) for number in range(100, 400)))
        assert await heard.get() is None, "too many to name"
        await commit(store, Requested("r", uid(2), other.owner, b"abort"))
        assert await heard.get() == frozenset({uid(2)})
        assert await other.requests() == [Request("r", uid(2), b"abort")]
        assert own == []
        await commit(other, Replied("r", b"done"))
        await until(lambda: frozenset({"r", uid(2)}) in own)
        assert await store.reply("r") == b"done"


async def test_stores_of_other_files_hear_nothing(tmp_path: Path) -> None:
    heard: list[frozenset[str] | None] = []
    async with opened(tmp_path / "a.db", heard=heard.append), opened(tmp_path / "b.db") as store:
        await commit(store, registered(1))
        await asyncio.sleep(0.05)
        assert heard == []


async def test_a_peer_that_does_not_listen_is_passed_over(tmp_path: Path) -> None:
    """Its bell is full after a while: rows are the truth, nobody waits for it."""
    path = tmp_path / "store.db"
    async with child(path, _HOLDS) as process, opened(path) as store:
        await said(process)
        process.send_signal(signal.SIGSTOP)
        for number in range(600):
            await commit(store, registered(100 + number))
        assert store.trouble is None


# What a crash leaves


_DIES = """
async def main():
    def fault(point):
        if point == POINT and armed:
            os.kill(os.getpid(), signal.SIGKILL)
    armed = []
    async with opened(path, fault=fault) as store:
        await commit(store, registered(1), Emitted("p", "t", 1, NOON))
        say("told")
        armed.append(1)
        await commit(store, end(1), Emitted("p", "t", 2, NOON), registered(2))
"""


@pytest.mark.parametrize("point", ["before", "after"])
async def test_R4_a_killed_process_leaves_all_of_a_commit_or_nothing(tmp_path: Path, point: str) -> None:
    path = tmp_path / "store.db"
    body = f"POINT = {point!r}\n{_DIES}"
    async with child(path, body) as process:
        assert await said(process) == ["told"]
        assert await process.wait() == -signal.SIGKILL
    async with opened(path) as store:
        happened = point == "after"
        first = await store.handle(uid(1))
        assert first is not None and (first.owner is None) is happened
        assert len(await store.process_events("p")) == (2 if happened else 1)
        assert (await store.handle(uid(2)) is not None) is happened
        told = ["handle.created", "process.event", "handle.stopped", "process.event", "handle.created"]
        assert [event.type for event in await store.events()] == (told if happened else told[:2])
        assert await store.events_range() == (1, len(told) if happened else 2)


_KILLED = """
async def main():
    async with opened(path) as store:
        await commit(store, *(registered(number) for number in range(50)))
        say("written")
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("left", [None, 0, 20_000])
async def test_a_store_whose_newest_changes_are_gone_is_not_taken_for_an_empty_one(
    tmp_path: Path, left: int | None
) -> None:
    """A killed process leaves them in the WAL. SQLite reads a database without its WAL, and says nothing."""
    path = tmp_path / "store.db"
    async with child(path, _KILLED) as process:
        assert await said(process) == ["written"]
        await process.wait()
    wal, aside = path.with_name("store.db-wal"), tmp_path / "aside"
    shutil.copy(wal, aside)
    wal.unlink() if left is None else os.truncate(wal, left)
    for store in (SqliteStore(path), ReadOnlyStore(path)):
        with pytest.raises(KeepholdError, match=r"store.db-wal`, which was removed or cut; put that file back"):
            await store.open(lambda _: None)
    shutil.copy(aside, wal)
    async with opened(path) as whole:
        assert await whole.handle(uid(49)) is not None


_FULL = """
mount -t tmpfs -o size={size} none "$1" || exit 77
{before}
"$2" -c "$3" "$1/store.db"
"""

_OPENS = """
async def main():
    try:
        async with opened(path):
            say("opened")
    except KeepholdError as error:
        say(error.message)
"""


@pytest.mark.parametrize(
    ("size", "before"),
    [("16k", ""), ("2m,nr_inodes=4", ""), ("2m", '"$2" -c "$3" "$1/store.db"; cat /dev/zero > "$1/x"')],
)
async def test_a_disk_that_is_full_when_a_store_is_opened_is_said_to_be_full(
    tmp_path: Path, size: str, before: str
) -> None:
    """On a real small disk; mounting one needs a user namespace."""
    body = "from keephold.errors import KeepholdError" + _OPENS
    script = _CHILD.format(root=str(Path(__file__).parents[2]), body=body)
    command = ["unshare", "-Urm", "sh", "-c", _FULL.format(size=size, before=before), "sh", str(tmp_path)]
    if shutil.which("unshare") is None:
        pytest.skip("there is no `unshare`")
    ran = await asyncio.to_thread(subprocess.run, [*command, sys.executable, script], capture_output=True, text=True)
    if ran.returncode:
        pytest.skip(f"no file system can be mounted here: {ran.stderr}")
    said = ran.stdout.splitlines()[-1]
    assert ("full" in said or "No space left" in said) and "free some space on" in said
    assert "may write to" not in said


_MAKES = """
async def main():
    async with opened(path) as store:
        await commit(store, Emitted("p", "t", 1, NOON))
        say("made")
"""


async def test_several_processes_may_make_a_store_at_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "store.db"

    async def make() -> None:
        async with child(path, _MAKES) as process:
            assert await said(process) == ["made"]
            assert await process.wait() == 0

    await asyncio.gather(*(make() for _ in range(4)))
    async with opened(path) as store:
        assert [event.sequence for event in await store.process_events("p")] == [1, 2, 3, 4]


_LIMITED = """
async def main():
    import resource
    async with opened(path) as store:
        await commit(store, registered(1))
        size = path.with_name(path.name + "-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, resource.RLIM_INFINITY))
        kept = give(store, line(1, "a", b'"' + b"x" * 200_000 + b'"'), keep=True)
        try:
            await commit(store, registered(2))
        except KeepholdError as error:
            say(error.code, store.trouble is not None, kept.done())
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await kept
        say(store.trouble, len(await store.journal(uid(1))))
"""


async def test_a_disk_that_takes_no_more_is_told_and_what_is_kept_is_written_later(tmp_path: Path) -> None:
    body = "from keephold.errors import KeepholdError" + _LIMITED
    async with child(tmp_path / "store.db", body) as process:
        assert await said(process) == ["store_unavailable", "True", "False"]
        assert await said(process) == ["None", "1"]
        assert await process.wait() == 0
