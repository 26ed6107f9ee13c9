"""Whether a program in a terminal waits for input: known, never guessed, and never stale (C4, A6)."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.patience import until
from tests.unit.terminal.ptys import Run, python

from keephold.platforms import State

pytestmark = pytest.mark.linux("whether a program reads is unknown")


@pytest.mark.parametrize(
    ("argv", "state"),
    [
        (["bash", "-c", "read line"], "reading"),
        (["bash", "-c", "read -s line"], "password"),
        (["bash", "-c", "read -n1 key"], "raw"),
        (["bash", "--norc", "-i"], "reading"),
        (["dash", "-i"], "reading"),
        (["cat"], "reading"),
        (["sh", "-c", "cat | cat"], "reading"),
        (["sh", "-c", "exec 7<&0 0</dev/null; exec cat <&7"], "reading"),
        (["sh", "-c", "exec </dev/null; cat /dev/tty"], "reading"),
        (["bash", "-i", "-c", "bash --norc -i -c 'cat; true'; true"], "reading"),
        (["bash", "-c", "sleep 1001 & read line"], "reading"),
        (python("import threading; threading.Thread(target=os.read, args=(0, 1)).start()"), "reading"),
        (python("import getpass; getpass.getpass()"), "password"),
        (python("import select; tty.setraw(0); select.poll().poll()"), "raw"),
        (python("import select; tty.setraw(0); select.select([0], [], [])"), "reading"),
        (python("import select; tty.setraw(0); select.select([0], [], [], 1000)"), "raw"),
        (python("import select; tty.setraw(0); e = select.epoll(); e.register(0, 1); e.poll()"), "raw"),
        (python("tty.setraw(0); os.readv(0, [bytearray(1)])"), "raw"),
        (python("os.readv(0, [bytearray(1)])"), "reading"),
    ],
)
async def test_C4_the_probe_sees_who_waits_for_input(argv: list[str], state: State) -> None:
    run = Run(*argv)
    await run.found(state)
    await run.stop()
    assert run.pty.probe().state == "busy"


@pytest.mark.parametrize(
    "busy",
    [
        "while :; do :; done",
        "exec sleep 1001",
        "exec cat <&3",
        "cat <&3 | cat",
        "setsid cat </dev/tty >/dev/null 2>&1 & exec sleep 1001",
        "name=$(tty); setsid cat <$name >/dev/null 2>&1 & exec sleep 1001",
        "stty raw; exec sleep 1001",
    ],
)
async def test_C4_the_probe_is_not_fooled(busy: str, tmp_path: Path) -> None:
    """By a busy program, a sleeping one, or one that reads something else."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    run = Run("sh", "-c", f"exec 3<>{fifo}; echo up; {busy}")
    await run.said(b"up")
    for _ in range(50):
        assert run.pty.probe().state == "busy"
        await asyncio.sleep(0.001)
    await run.stop()


async def test_C4_another_terminal_is_not_ours() -> None:
    """A program may read a terminal that is open beside its own."""
    other = Run("sh", "-c", "tty; exec sleep 1001")
    await other.said(b"\n")
    run = Run("sh", "-c", f"exec 3<>{other.output.decode().strip()}; echo up; exec cat <&3")
    await run.said(b"up")
    await until(lambda: run.foreground() == "cat")
    for _ in range(20):
        assert run.pty.probe().state == "busy"
        await asyncio.sleep(0.001)
    await run.stop()
    await other.stop()


WORKS_AFTER_EACH_LINE = """
print("up", flush=True)
while True:
    os.read(0, 100)
    end = time.monotonic() + 0.003
    while time.monotonic() < end: pass
    os.write(1, b"did\\n")
"""


@pytest.mark.parametrize("mode", ["stty -echo", "stty -echo -icanon"])
@pytest.mark.slow
async def test_C4_right_after_a_write_the_answer_is_not_stale(mode: str) -> None:
    """The reader is still blocked when the write returns. Whoever then hears that it waits was given its answer."""
    run = Run("sh", "-c", f'{mode}; exec "$@"', "sh", *python(WORKS_AFTER_EACH_LINE))
    await run.said(b"up")
    for number in range(1, 200):
        await until(lambda: run.pty.probe().reader)
        run.pty.write(b"x\n")
        while run.pty.probe().reader is None:  # noqa: ASYNC110 (nothing tells; that is what the probe is for)
            await asyncio.sleep(0)
        assert run.output.count(b"did") == number
    await run.stop()


@pytest.mark.slow
async def test_C4_two_quick_writes_are_both_waited_for() -> None:
    run = Run("sh", "-c", 'stty -echo; exec "$@"', "sh", *python(WORKS_AFTER_EACH_LINE))
    await run.said(b"up")
    await until(lambda: run.pty.probe().reader)
    for number in range(1, 100):
        run.pty.write(b"x\n")
        run.pty.write(b"x\n")
        while run.pty.probe().reader is None:  # noqa: ASYNC110 (nothing tells; that is what the probe is for)
            await asyncio.sleep(0)
        assert run.output.count(b"did") == 2 * number
    await run.stop()


async def test_C4_the_probe_says_no_while_input_is_unread() -> None:
    run = Run("cat")
    await run.found("reading")
    os.kill(run.pty.pid, signal.SIGSTOP)
    stat = Path(f"/proc/{run.pty.pid}/stat")
    await until(lambda: ") T " in stat.read_text())
    run.pty.write(b"a\r")
    assert run.pty.probe().state == "busy"
    os.kill(run.pty.pid, signal.SIGCONT)
    await run.found("reading")
    assert run.output == b"a\r\na\r\n"
    await run.stop()


async def test_C4_what_it_printed_before_it_waits_is_delivered_first() -> None:
    for _ in range(20):
        run = Run("sh", "-c", "printf 'name? '; read name")
        while run.pty.probe().state != "reading":
            pass  # the loop must not read for us
        assert run.output == b"name? "
        await run.stop()


async def test_C4_a_prompt_that_is_answered_while_it_is_delivered_is_no_longer_open() -> None:
    answered: list[bytes] = []

    def answer(data: bytes) -> None:
        answered.append(data)
        if b"name? " in data:
            run.pty.write(b"me\r")

    run = Run("sh", "-c", "printf 'name? '; read name; exec sleep 1001", on_output=answer)
    states = set()
    while not answered:
        states.add(run.pty.probe().state)
    assert states == {"busy"}
    await run.stop()


async def test_C4_the_reader_is_told_apart_from_others() -> None:
    run = Run("bash", "-c", "read a; cat; true")
    await run.found("reading")
    first = run.pty.probe().reader
    run.pty.write(b"a\r")
    await until(lambda: len(run.left()) == 2)
    await run.found("reading")
    assert run.pty.probe().reader not in (None, first)
    await run.stop()


async def test_C4_a_crowd_in_the_foreground_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keephold.platforms.linux_probe.FEW", 3)
    run = Run("sh", "-c", "for i in 1 2 3 4 5; do sleep 1001 & done; echo up; wait")
    await run.said(b"up")
    assert run.pty.probe().state == "unknown"
    await run.stop()


async def test_C4_the_probe_says_unknown_where_system_calls_are_numbered_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("keephold.platforms.linux_probe._CALLS", {})
    run = Run("cat")
    assert run.pty.probe().state == "unknown"
    await run.stop()
