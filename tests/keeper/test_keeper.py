"""Kept processes outlive the runtime that started them, and the next one takes them back whole (R7)."""

import asyncio
import os
import signal
import socket
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.keeper.runtimes import Driver, Followed, Runtime, gone, keeper_of, runs, runtime
from tests.patience import PATIENCE

from keephold.cli import main
from keephold.errors import KeepholdError
from keephold.handles.output import Layout
from keephold.tools import marks
from keephold.tools.keeper import protocol
from keephold.tools.keeper.children import ProcessEnd
from keephold.tools.keeper.record import read_record
from keephold.tools.keeper.times import read_times, timeline
from keephold.tools.session import Exit

pytestmark = pytest.mark.slow

COUNTS = "i=0; while [ $i -lt {0} ]; do i=$((i+1)); echo line $i; sleep 0.001; done; exit 7"


def lines(count: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(1, count + 1))


async def test_R7_output_has_neither_gap_nor_repetition_after_kills(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "u", "command", COUNTS.format(1500))
    driver.do("printed line 20\n")
    driver.kill()
    for fence in (2, 3):
        async with runtime(tmp_path) as after:
            followed = await after.take_back("u", fence)
            assert lines(1500).startswith(followed.data)
            await followed.printed(b"line %d\n" % (400 * fence - 600))
    async with runtime(tmp_path) as last:
        followed = await last.take_back("u", 4)
        ended = await followed.end()
        assert followed.data == lines(1500)
        assert ended == ProcessEnd(Exit(7, None), len(lines(1500)))


@pytest.mark.parametrize(("script", "how"), [("exit 5", Exit(5, None)), ("kill -9 $$", Exit(None, 9))])
async def test_R7_an_end_while_no_runtime_is_there_is_known(tmp_path: Path, script: str, how: Exit) -> None:
    dead = tmp_path.with_name(f"{tmp_path.name}-dead")
    driver = Driver(
        tmp_path, "u", "command", f"echo up; read line; echo $line; until [ -e {dead} ]; do sleep 0.01; done; {script}"
    )
    driver.do("printed up")
    keeper = keeper_of(tmp_path, "u")
    driver.do("type hello")
    driver.kill()
    dead.touch()
    await gone(keeper)  # nothing runs and nobody is connected
    async with runtime(tmp_path) as after:
        followed = Followed(tmp_path, "u")
        assert await after.keeper.take_back("u", 2, followed.hooks) == ProcessEnd(how, 9, causes=(b"cause hello",))
        assert (tmp_path / "u").read_bytes() == b"up\nhello\n"
        after.keeper.forget("u", output=True)
        await followed.until(lambda: not list(tmp_path.iterdir()))
        assert await after.keeper.take_back("u", 2, followed.hooks) is None


async def test_R7_input_that_comes_twice_is_taken_once(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "u", "command", 'echo up; while read line; do echo "got $line"; done')
    driver.do("type one")
    driver.kill()
    async with runtime(tmp_path) as after:
        followed = await after.take_back("u", 2)
        followed.child.write(b"one\n", b"cause one")  # it may not have been taken, for all this one knows
        followed.child.write(b"two\n", b"cause two")
        followed.child.close_stdin()
        assert (await followed.end()).exit == Exit(0, None)
        assert followed.data == b"up\ngot one\ngot two\n"


async def test_R7_keep_secs_end_the_whole_tree(tmp_path: Path) -> None:
    script = "trap '' HUP TERM; setsid sh -c 'echo other $$; sleep 60' & echo up $$; sleep 60"
    driver = Driver(tmp_path, "u", "command", script, keep_secs=0.3)
    driver.do("printed other")
    driver.do("printed up")
    keeper = keeper_of(tmp_path, "u")
    mark = read_record(tmp_path, "u").keeper  # type: ignore[union-attr]
    assert len(marks.find(mark)) >= 3
    driver.kill()
    await gone(keeper)
    assert marks.find(mark) == []
    async with runtime(tmp_path) as after:
        ended = await after.keeper.take_back("u", 2, Followed(tmp_path, "u").hooks)
        assert isinstance(ended, ProcessEnd)
        assert ended.exit == Exit(None, signal.SIGKILL)
        assert ended.reason == "no runtime came back within 0.3 s"


async def test_R7_the_record_says_until_when_it_is_kept(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "u", "command", "sleep 60")
    attached = read_record(tmp_path, "u")
    assert attached is not None and attached.until is None and attached.where == "here"
    driver.kill()
    followed = Followed(tmp_path, "u")
    await followed.until(lambda: (record := read_record(tmp_path, "u")) and record.until)
    record = read_record(tmp_path, "u")
    assert record is not None and record.until is not None and record.until - record.since > 59
    async with runtime(tmp_path) as after:
        again = await after.take_back("u", 2)
        assert read_record(tmp_path, "u") == attached
        again.child.end(0.0)
        assert (await again.end()).exit.signal is not None


async def test_R7_the_guard_ends_everything_if_the_keeper_is_killed(tmp_path: Path) -> None:
    async with runtime(tmp_path) as rt:
        followed = await rt.command("u", "trap '' TERM HUP; setsid sleep 60 & echo up; sleep 60")
        await followed.printed(b"up")
        mark = read_record(tmp_path, "u").keeper  # type: ignore[union-attr]
        os.kill(keeper_of(tmp_path, "u"), signal.SIGKILL)
        await followed.until(lambda: followed.failed)
        assert followed.failed is not None and followed.failed.code == "crashed"
        await followed.until(lambda: not marks.find(mark))
        ended = await rt.keeper.take_back("u", 2, followed.hooks)
        assert isinstance(ended, ProcessEnd) and ended.exit == Exit(None, None) and ended.total == 3
        # The next call gets another keeper.
        other = await rt.command("v", "echo again")
        await other.end()
        assert other.data == b"again\n"


async def test_R7_K5_a_secret_is_masked_while_no_runtime_is_there(tmp_path: Path) -> None:
    async with runtime(tmp_path) as rt:
        says = f"until [ -e {tmp_path}/nobody ]; do sleep 0.01; done; echo it was $a"
        followed = await rt.terminal("u", ["sh", "-c", f"stty -echo; echo up; read a; {says}"])
        await followed.printed(b"up")
        followed.child.hide("tops3cret")
        followed.child.write(b"tops3cret\r", b"1")
        await followed.handed_over()
        keeper = keeper_of(tmp_path, "u")
    (tmp_path / "nobody").touch()
    await gone(keeper)
    assert (tmp_path / "u").read_bytes() == b"up\r\nit was ********\r\n"


async def test_R7_O5_the_first_and_the_last_half_are_kept(tmp_path: Path) -> None:
    whole = b"".join(b"%06d\n" % number for number in range(1, 100_001))
    async with runtime(tmp_path) as rt:
        alone = await rt.command("alone", "read go; seq -w 1 100000; true", max_output=200_000)
        alone.child.write(b"go\n", b"1")
        await alone.handed_over()
        keeper = keeper_of(tmp_path, "alone")
    await gone(keeper)
    async with runtime(tmp_path) as rt:
        followed = await rt.command("u", "seq -w 1 100000", max_output=200_000)
        assert (await followed.end()).total == len(whole)
        assert followed.data == whole  # however fast it was
        for each in (followed, rt.following("alone", 200_000)):
            if each is not followed:
                record = read_record(tmp_path, "alone")
                assert record is not None and record.exit is not None
                each.output.follow_again(Layout(record.head, record.ring, record.ahead, record.exit.total))
            each.output.unfollow()
            assert each.output.gap is not None
            start, end = each.output.gap
            assert start == 100_000 and 100_000 <= len(whole) - end <= 200_000
            assert each.output.read(0).data == whole[:start]
            assert each.output.read(end).data == whole[end:]


async def test_R7_a_displaced_runtime_is_refused(tmp_path: Path) -> None:
    async with runtime(tmp_path) as old, runtime(tmp_path) as new:
        first = await old.command("u", 'echo up; while read line; do echo "got $line"; done')
        await first.printed(b"up")
        second = await new.take_back("u", 2)
        await first.until(lambda: first.displaced)
        first.child._link.send(protocol.Write(uid="u", number=1, data=b"old\n"))  # it may not know yet
        await old.command("v", "true")  # the keeper has handled that
        second.child.write(b"new\n")
        with pytest.raises(KeepholdError, match="another runtime"):
            await old.keeper.take_back("u", 1, first.hooks)
        second.child.close_stdin()
        await second.end()
        assert second.data == b"up\ngot new\n"


async def test_R7_only_the_own_user_can_connect(tmp_path: Path) -> None:
    async with runtime(tmp_path) as rt:
        followed = await rt.command("u", "sleep 60")
        record = read_record(tmp_path, "u")
        assert record is not None
        assert stat.S_IMODE(Path(record.socket).stat().st_mode) == 0o600
        assert stat.S_IMODE(Path(record.socket).parent.stat().st_mode) == 0o700
        with socket.socket(socket.AF_UNIX) as other:  # it talks nonsense, and is disconnected
            other.connect(record.socket)
            other.send(b"GET / HTTP/1.1\r\n\r\n")
            other.settimeout(30)
            assert other.recv(1) == b""
        followed.child.end(0.0)
        await followed.end()


async def test_R7_failures_to_start_are_the_same_as_of_ordinary_commands(tmp_path: Path) -> None:
    async with runtime(tmp_path) as rt:
        failed = await rt.terminal("u", ["no-such-program"])
        assert failed.failed is not None and failed.failed.code == "command_not_started"
        assert "there is no program `no-such-program` in any directory of PATH" in str(failed.failed)
        assert read_record(tmp_path, "u") is None


async def test_R7_a_terminal_is_taken_back_with_its_size_and_prompt(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "u", "terminal", "echo up; read a; stty size; echo got $a; read b; echo got $b")
    driver.do("printed up")
    driver.kill()
    async with runtime(tmp_path) as rt:
        followed = await rt.take_back("u", 2)
        await followed.until(lambda: followed.child.probe().state == "reading")
        assert followed.child.echo and followed.child.canonical and followed.child.eof == b"\x04"
        followed.child.resize(30, 100)
        followed.child.write(b"x", b"1", later=b"y\r")
        await followed.printed(b"30 100\r\ngot xy\r\n")
        await followed.until(lambda: followed.child.probe().state == "reading")
        followed.child.write(b"z\r", b"2")
        await followed.end()
        assert followed.data == b"up\r\nxy\r\n30 100\r\ngot xy\r\nz\r\ngot z\r\n"
    times = timeline(read_times(tmp_path, "u"))
    assert times is not None and [(size.offset, size.rows, size.cols) for size in times.sizes()] == [(4, 30, 100)]
    assert list(times.marks())[-1][0] == len(followed.data)


async def test_A6_a_command_that_reads_has_reported_its_output(tmp_path: Path) -> None:
    async with runtime(tmp_path) as rt:
        followed = await rt.command("u", "while read n; do seq 1 $n; echo end; done")
        for count in (1, 1000, 20000):
            del followed.data[:]
            followed.child.write(b"%d\n" % count)
            async with asyncio.timeout(PATIENCE):
                while not followed.child.probe():  # noqa: ASYNC110 (nothing tells)
                    await asyncio.sleep(0)
            assert followed.data.endswith(b"%d\nend\n" % count)
        followed.child.close_stdin()
        await followed.end()


async def test_C6_input_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    async with runtime(tmp_path) as rt:
        followed = await rt.command("u", "sleep 60")
        followed.child.write(b"x" * 60_000, b"1")
        with pytest.raises(KeepholdError, match="has not read 60000 bytes of earlier input"):
            followed.child.write(b"x" * 10_000, b"2")
        await followed.handed_over()
        with pytest.raises(KeepholdError, match="has not read 60000 bytes"):
            followed.child.write(b"x" * 10_000, b"2")
        followed.child.end(0.0)
        await followed.end()


async def test_C6_input_that_nobody_can_read_any_more_is_refused(tmp_path: Path) -> None:
    async with runtime(tmp_path) as rt:
        followed = await rt.command("u", "exec 0<&-; echo closed; exec sleep 60")
        await followed.printed(b"closed")
        with pytest.raises(KeepholdError, match="standard input is closed"):
            followed.child.write(b"x", b"1")
        followed.child.end(0.0)
        await followed.end()


async def test_R7_stderr_is_part_of_the_output(tmp_path: Path) -> None:
    async with runtime(tmp_path) as rt:
        followed = await rt.command("u", "echo out; echo err >&2; exit 1")
        ended = await followed.end()
        assert (ended.exit, bytes(followed.data)) == (Exit(1, None), b"out\nerr\n")


async def test_R7_SIGTERM_ends_the_keeper_and_its_processes(tmp_path: Path) -> None:
    async with runtime(tmp_path) as rt:
        followed = await rt.command("u", "sleep 60")
        keeper = keeper_of(tmp_path, "u")
        os.kill(keeper, signal.SIGHUP)
        os.kill(keeper, signal.SIGINT)
        os.kill(keeper, signal.SIGTERM)
        ended = await followed.end()
        assert ended.exit == Exit(None, signal.SIGTERM) and "SIGTERM" in ended.reason
        await gone(keeper)


async def test_R7_the_keeper_belongs_to_nobody_and_exits_with_the_last_runtime(tmp_path: Path) -> None:
    rt = Runtime(tmp_path)
    followed = await rt.command("u", "cat /proc/$$/environ | tr '\\0' '\\n' | grep KEEPHOLD_MARK; ulimit -n; umask")
    await followed.end()
    record = read_record(tmp_path, "u")
    assert record is not None
    assert followed.data.splitlines()[0] == f"KEEPHOLD_MARK={record.keeper}/u".encode()
    keeper = keeper_of(tmp_path, "u")
    assert os.getsid(keeper) not in (os.getsid(0), 0) and Path(f"/proc/{keeper}/cwd").resolve() == Path("/")
    assert runs(keeper)
    await rt.close()
    await gone(keeper)
    assert not Path(record.socket).exists() and not Path(record.socket + ".lock").exists()


async def test_R7_a_store_is_not_restored_over_a_kept_process(tmp_path: Path) -> None:
    output = tmp_path / "work.db-output"
    output.mkdir()
    (tmp_path / "copy.tar").touch()
    driver = Driver(output, "u", "command", "echo up; read line")
    driver.do("printed up")
    driver.kill()
    words = ["store", "restore", str(tmp_path / "copy.tar"), "--force", "--store", f"sqlite:///{tmp_path}/work.db"]
    refused = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert refused.exit_code and "the process of handle `u` is kept here" in refused.output
    async with runtime(output) as after:
        followed = await after.take_back("u", 2)
        assert followed.data == b"up\n"
        followed.child.close_stdin()
        await followed.end()
        await followed.until(lambda: (record := read_record(output, "u")) and record.exit)  # follows the report
    over = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert "not a backup of a store" in over.output
