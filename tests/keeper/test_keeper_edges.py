"""A keeper at the edges: a full disk, other versions, a forked child, runtimes that come while it exits (R7)."""

import asyncio
import os
import resource
import shutil
import signal
import socket
from functools import cache
from pathlib import Path

import pytest
from tests.e2e.driver import until
from tests.keeper.runtimes import Driver, gone, keeper_of, runs, runtime

from keephold.errors import KeepholdError
from keephold.tools import marks
from keephold.tools.keeper import protocol
from keephold.tools.keeper import record as keeper_record
from keephold.tools.keeper.children import ProcessEnd
from keephold.tools.keeper.client import Elsewhere, Returned
from keephold.tools.keeper.record import KeptRecord, begin_record, boot_id, read_record, record_file
from keephold.tools.session import Exit

pytestmark = pytest.mark.slow


async def test_R7_a_failure_inside_the_keeper_is_logged_and_ends_nothing(tmp_path: Path) -> None:
    async with runtime(tmp_path) as rt:
        followed = await rt.terminal("u", ["sh", "-c", "read line; echo got $line"])
        record = read_record(tmp_path, "u")
        assert record is not None
        log = Path(f"{record.socket}.log")
        followed.child.resize(70_000, 10)  # which no terminal can be; a runtime does not ask for it
        await followed.until(lambda: log.exists() and "Traceback" in log.read_text())
        followed.child.write(b"on\n", b"1")
        assert (await followed.end()).exit == Exit(0, None)
        log.unlink()


async def test_R7_a_full_disk_makes_the_process_wait_and_loses_nothing(tmp_path: Path) -> None:
    whole = b"".join(b"%06d\n" % number for number in range(1, 100_001))
    async with runtime(tmp_path) as rt:
        followed = await rt.command("u", "read go; seq -w 1 100000; exit 3")
        keeper = keeper_of(tmp_path, "u")
        full = resource.prlimit(keeper, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
        followed.child.write(b"go\n")
        await followed.until(lambda: followed.child.stalled)
        assert len(followed.data) == 50_000 and followed.ended is None
        resource.prlimit(keeper, resource.RLIMIT_FSIZE, full)
        ended = await followed.end()
        assert (ended.exit, ended.total, bytes(followed.data)) == (Exit(3, None), len(whole), whole)
        assert not followed.child.stalled


async def test_R7_a_keeper_of_another_version_is_named(tmp_path: Path) -> None:
    async with runtime(tmp_path) as rt:
        path = rt.keeper._socket()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            content = protocol._encode(protocol.Welcome(version=99))
            writer.write(protocol._HEAD.pack(len(content), 0) + content)
            await reader.read()
            writer.close()
            left.set()

        left = asyncio.Event()
        server = await asyncio.start_unix_server(serve, path)
        try:
            followed = await rt.command("u", "true")
            assert followed.failed is not None
            assert "speaks version 99 of its protocol, and this keephold version 1" in str(followed.failed)
            await left.wait()
            mark = marks.new_runtime_mark()
            begin_record(tmp_path, KeptRecord(
                uid="v", host=socket.gethostname(), boot=boot_id(), keeper=mark, socket=path, since=1.0, keep_secs=60.0,
                head=1, ring=1, ahead=1,
            ))  # fmt: skip
            left.clear()
            with pytest.raises(KeepholdError, match="speaks version 99"):
                await rt.keeper.take_back("v", 2, followed.hooks)
            await left.wait()
        finally:
            server.close()
            Path(path).unlink(missing_ok=True)


async def test_R7_a_newer_runtime_takes_over_the_processes_of_an_older_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runtime(tmp_path) as old:
        await old.command("u", "read a; echo $a")
    monkeypatch.setattr(protocol, "VERSION", protocol.VERSION + 1)
    async with runtime(tmp_path) as new:
        again = await new.take_back("u", 2)
        again.child.write(b"still\n")
        await again.end()
        assert again.data == b"still\n"


async def test_R7_a_message_of_a_newer_runtime_is_ignored(tmp_path: Path) -> None:
    class Newer(protocol._Message, tag="newer", kw_only=True):
        surprise: int

    class Hello(protocol._Message, tag="hello", kw_only=True):
        version: int = 1
        surprise: int = 2

    async with runtime(tmp_path) as rt:
        followed = await rt.command("u", "read a; echo $a")
        followed.child._link.send(Newer(uid="u", surprise=1))
        followed.child._link.send(Hello())
        followed.child.write(b"still\n")
        await followed.end()
        assert followed.data == b"still\n"


async def test_R7_a_forked_child_of_a_dead_runtime_does_not_count(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "u", "command", "echo up; sleep 60", forks=True)
    driver.do("printed up")
    driver.kill()
    async with runtime(tmp_path) as rt:
        followed = await rt.take_back("u", 1)  # the same fence: nobody has it
        followed.child.end(0.0)
        await followed.end()
    os.kill(driver.forked, signal.SIGKILL)


async def test_R7_output_that_nobody_has_read_is_known(tmp_path: Path) -> None:
    more = f"until [ -e {tmp_path}/dead ]; do sleep 0.01; done; echo more"
    driver = Driver(tmp_path, "u", "terminal", f"echo up; read a; {more}; sleep 60")
    driver.do("printed up")
    driver.do("type x")
    driver.kill()
    (tmp_path / "dead").touch()
    async with runtime(tmp_path) as rt:
        followed = rt.following("u")
        await followed.until(lambda: b"more" in (tmp_path / "u").read_bytes())
        again = await rt.take_back("u", 2)
        assert 4 <= again.child.answered <= len(b"up\r\nx\r\n") < again.child.total
        again.child.end(0.0)
        await again.end()


async def test_R7_a_start_does_not_wait_for_a_keeper_that_a_take_back_looked_for(tmp_path: Path) -> None:
    async with runtime(tmp_path) as rt:
        looking = asyncio.create_task(rt.keeper.take_back("u", 2, rt.following("u").hooks))
        await asyncio.sleep(0)
        followed = await rt.command("v", "echo v")
        await followed.end()
        assert await looking is None and followed.data == b"v\n"


async def test_R7_a_process_that_a_runtime_lets_go_is_kept_for_another(tmp_path: Path) -> None:
    async with runtime(tmp_path) as old, runtime(tmp_path) as new:
        first = await old.command("u", "read a; seq -w 1 2000000; exit 4")  # more than may be ahead of a reader
        first.child.write(b"go\n", b"1")
        await first.handed_over()
        first.child.release()
        await first.until(lambda: (record := read_record(tmp_path, "u")) and (record.until or record.exit))
        found = await new.keeper.take_back("u", 1, new.following("u").hooks)
        if isinstance(found, Returned):
            again = await new.take_back("u", 1)
            found = await again.end()
        assert found == ProcessEnd(Exit(4, None), 8 * 2_000_000, causes=(b"1",))
        assert not first.ended and not first.displaced


async def test_R7_runtimes_that_come_while_the_keeper_exits_find_one(tmp_path: Path) -> None:
    async def come_and_go(name: str) -> None:
        for number in range(6):
            async with runtime(tmp_path) as rt:
                followed = await rt.command(f"{name}-{number}", f"echo {name}")
                assert (await followed.end()).exit == Exit(0, None)
                assert followed.data == f"{name}\n".encode()

    await asyncio.gather(*(come_and_go(name) for name in ("a", "b", "c")))
    keepers = {keeper_of(tmp_path, f"{name}-{number}") for name in ("a", "b", "c") for number in range(6)}
    for keeper in keepers:
        await gone(keeper)


async def test_R7_a_start_that_is_still_on_its_way_is_found(tmp_path: Path) -> None:
    async with runtime(tmp_path) as old, runtime(tmp_path) as new:
        await old.command("warm", "true")
        followed = old.following("u")
        old.keeper.start_process(
            "u", ["sleep", "60"], env={"PATH": os.environ["PATH"]}, cwd="/", stdin=False, grace=1.0,
            keep_secs=60, fence=1, layout=followed.output.follow(), hooks=followed.hooks,
        )  # fmt: skip
        again = await new.take_back("u", 2)
        again.child.end(0.0)
        await again.end()
        assert followed.displaced


async def test_R7_a_stopped_keeper_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keephold.tools.keeper.client.START_SECS", 0.2)
    driver = Driver(tmp_path, "u", "command", "sleep 60")
    keeper = keeper_of(tmp_path, "u")
    os.kill(keeper, signal.SIGSTOP)
    driver.kill()
    async with runtime(tmp_path) as rt:
        followed = rt.following("u")
        with pytest.raises(KeepholdError, match="lives but does not answer"):
            await rt.keeper.take_back("u", 2, followed.hooks)
    os.kill(keeper, signal.SIGCONT)
    os.kill(keeper, signal.SIGTERM)
    await gone(keeper)


async def test_R7_a_keeper_ends_whose_store_was_removed(tmp_path: Path) -> None:
    directory = tmp_path / "spool"
    directory.mkdir()
    driver = Driver(directory, "u", "command", "read a; seq 1 100000; exit 1", keep_secs=60)
    keeper = keeper_of(directory, "u")
    shutil.rmtree(directory)
    driver.do("type x")
    driver.kill()
    await gone(keeper)
    assert not directory.exists()


@pytest.mark.parametrize("other", [b'{"host":"elsewhere.example"}', b'{"machine":"another of that name"}'])
async def test_R7_processes_of_another_host_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: bytes
) -> None:
    (tmp_path / "machine-id").write_text("0123456789abcdef\n")
    monkeypatch.setattr(keeper_record, "_MACHINE", str(tmp_path / "machine-id"))
    monkeypatch.setattr(keeper_record, "machine_id", cache(keeper_record.machine_id.__wrapped__))
    driver = Driver(tmp_path, "u", "command", "sleep 60")
    record = read_record(tmp_path, "u")
    assert record is not None
    keeper = keeper_of(tmp_path, "u")
    with record_file(tmp_path, "u").open("ab") as file:
        file.write(other + b'\n{"host":"torn')
    async with runtime(tmp_path) as rt:
        found = await rt.keeper.take_back("u", 2, rt.following("u").hooks)
        assert isinstance(found, Elsewhere), found
    assert runs(keeper)
    driver.kill()
    os.kill(keeper, signal.SIGTERM)
    await gone(keeper)


def test_R7_nobody_else_may_connect(tmp_path: Path) -> None:
    """The directory is private, and so is the socket; the keeper also asks who connects."""
    driver = Driver(tmp_path, "u", "command", "sleep 60")
    record = read_record(tmp_path, "u")
    assert record is not None
    try:
        if os.geteuid() != 0:
            pytest.skip("only root can become another user")
        child = os.fork()
        if child == 0:
            with socket.socket(socket.AF_UNIX) as other:
                try:
                    os.setuid(65534)
                    other.connect(record.socket)
                except PermissionError:
                    os._exit(7)
                os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        keeper = keeper_of(tmp_path, "u")
        driver.kill()
        os.kill(keeper, signal.SIGTERM)
        until(lambda: not runs(keeper))
