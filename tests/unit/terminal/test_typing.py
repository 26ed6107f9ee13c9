"""What is typed into a terminal reaches its program whole, whatever the program does with it (C6)."""

import asyncio
import hashlib
import os
import random
import signal
from pathlib import Path

import pytest
from tests.patience import until
from tests.unit.terminal.ptys import Run, python

from keephold.errors import ToolError
from keephold.tools.child import UNREAD_LIMIT

WAITS_TO_READ = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
if sys.argv[1] == "raw":
    tty.setraw(0)
else:
    os.system("stty -echo")
print("up", flush=True)
signal.sigwait([signal.SIGUSR1])
got, wanted = b"", int(sys.argv[2])
while len(got) < wanted:
    data = os.read(0, int(sys.argv[3]))
    if not data:
        os.write(1, b"END OF INPUT ")
        break
    got += data
import hashlib
os.write(1, hashlib.sha256(got).hexdigest().encode())
"""
"""Takes nothing until it is told to, then everything, so many bytes at once."""


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


async def test_typing_is_echoed_and_enter_ends_a_line() -> None:
    run = Run("cat")
    assert (run.pty.echo, run.pty.canonical) == (True, True)
    run.pty.write(b"one\r")
    await run.said(b"one\r\none\r\n")
    run.pty.write(b"two\r")
    run.pty.send_eof()
    await run.ended()
    assert sorted(run.output.split()) == [b"one", b"one", b"two", b"two"]


async def test_ctrl_c_reaches_the_foreground_job_and_not_the_shell() -> None:
    run = Run("bash", "--norc", "-i")
    await run.found("reading")
    run.pty.write(b"sleep 1001; echo status=$?\r")
    await until(lambda: run.foreground() == "sleep")
    run.pty.write(b"\x03")
    await run.said(b"^C")
    await run.found("reading")
    run.pty.write(b"echo still $((40 + 2))\r")
    await run.said(b"still 42")
    await run.stop()


async def test_the_end_of_input_is_the_character_that_the_program_chose() -> None:
    run = Run("sh", "-c", "stty eof ^X; echo up; cat; echo over")
    await run.said(b"up")
    await run.found("reading")
    run.pty.send_eof()
    await run.ended()
    assert run.output.endswith(b"over\r\n")


@pytest.mark.parametrize("mode", ["raw", "line"])
async def test_C6_more_than_64_KiB_unread_is_refused_and_nothing_of_it_arrives(mode: str) -> None:
    kept = random.Random(5).randbytes(UNREAD_LIMIT - 10) if mode == "raw" else b"abcdefg\n" * (UNREAD_LIMIT // 8 - 2)
    last = b"z" * (UNREAD_LIMIT - len(kept) - 1) + b"\n"
    run = Run(*python(WAITS_TO_READ), mode, str(UNREAD_LIMIT), "65536")
    await run.said(b"up")
    run.pty.write(kept)
    with pytest.raises(ToolError, match=f"has not read {len(kept)} bytes.*Wait") as caught:
        run.pty.write(b"y" * (len(last) + 1))
    assert caught.value.code == "input_not_read"
    run.pty.write(last)
    with pytest.raises(ToolError):
        run.pty.write(b"y")
    os.kill(run.pty.pid, signal.SIGUSR1)
    await run.ended()
    assert run.output.endswith(digest(kept + last))


async def test_C6_what_was_read_no_longer_counts() -> None:
    run = Run("sh", "-c", "stty raw -echo; echo up; head -c 65536 >/dev/null; echo half; head -c 65536 | wc -c")
    await run.said(b"up")
    run.pty.write(b"x" * UNREAD_LIMIT)
    await run.said(b"half")
    run.pty.write(b"x" * UNREAD_LIMIT)
    await run.said(b"65536")
    await run.ended()


async def test_C6_one_write_that_is_too_long_for_anybody_is_refused() -> None:
    run = Run("cat")
    with pytest.raises(ToolError, match="has not read 0 bytes"):
        run.pty.write(b"x" * (UNREAD_LIMIT + 1))
    await run.stop()


@pytest.mark.parametrize("at_once", ["1", "100", "65536"])
@pytest.mark.parametrize("length", [3999, 4000, 4001, 4094, 4095, 4096, 4097, 8000, 20_000, 60_000])
async def test_C6_a_line_longer_than_the_kernel_keeps_arrives_whole(length: int, at_once: str) -> None:
    """In line mode the kernel drops what a line has after 4095 bytes."""
    data = b"first\n" + b"\t ".join([b"0123456789" * 600] * 10)[:length] + "é\nlast\n".encode()
    run = Run(*python(WAITS_TO_READ), "line", str(len(data)), at_once)
    await run.said(b"up")
    for start in range(0, len(data), 7001):
        run.pty.write(data[start : start + 7001])
    os.kill(run.pty.pid, signal.SIGUSR1)
    await run.ended()
    assert run.output.endswith(digest(data))


async def test_C6_a_long_line_that_is_taken_back_does_not_end_the_input() -> None:
    """Ctrl-U empties the line: an end of input after it would be taken for one."""
    run = Run("sh", "-c", "stty -echo; echo up; cat; echo over")
    await run.said(b"up")
    await run.found("password")
    run.pty.write(b"x" * 3999 + b"\x15" * 50 + b"kept\n")
    await run.said(b"kept\r\n")
    assert b"over" not in run.output
    await run.stop()


async def test_C6_keys_typed_in_raw_mode_do_not_count_for_a_line_typed_later() -> None:
    run = Run(*python(
        "mode = termios.tcgetattr(0)\n"
        "tty.setraw(0)\n"
        "print('up', flush=True)\n"
        "while os.read(0, 1) != b'q': pass\n"
        "termios.tcsetattr(0, termios.TCSANOW, mode)\n"
        "print('line', flush=True)\n"
        "print(len(os.read(0, 100)))\n"
    ))  # fmt: skip
    await run.said(b"up")
    run.pty.write(b"j" * 4000)
    run.pty.write(b"q")
    await run.said(b"line")
    run.pty.write(b"w" * 50 + b"\n")
    await run.ended()
    assert run.output.endswith(b"\r\n51\r\n")


async def test_C6_input_for_a_program_that_ends_is_dropped() -> None:
    run = Run("sh", "-c", "stty raw -echo; echo up; read x; exit 3")
    await run.said(b"up")
    run.pty.write(b"x" * 60_000 + b"\n")
    await run.stop()
    assert run.left() == []


async def test_C6_a_slow_reader_gets_everything_in_order(tmp_path: Path) -> None:
    """Many small reads: the terminal fills up and empties again and again."""
    data = random.Random(7).randbytes(300_000)
    copy = tmp_path / "copy"
    run = Run("sh", "-c", f"stty raw -echo; echo up; exec dd bs=37 count=100000000 of={copy} 2>/dev/null")
    await run.said(b"up")
    rest = data
    while rest:
        try:
            run.pty.write(rest[:50_000])
        except ToolError as error:
            assert error.code == "input_not_read"
            await asyncio.sleep(0)
            continue
        rest = rest[50_000:]
    await until(lambda: copy.exists() and copy.stat().st_size == len(data))
    assert copy.read_bytes() == data
    await run.stop()
