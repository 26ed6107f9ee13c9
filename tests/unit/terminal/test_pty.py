"""A program in a terminal: what it gets, what it prints, and that nothing of it is left when it has ended (C7, F3)."""

import asyncio
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.patience import PATIENCE, until
from tests.unit.terminal.ptys import Run, descriptors, name_of, python

from keephold.errors import ToolError
from keephold.tools import marks
from keephold.tools.session import Exit

STUBBORN = "trap '' TERM HUP; echo u''p; while :; do sleep 30; done"
"""A script that ends neither by SIGTERM nor by SIGHUP."""


# Starting


async def test_the_program_has_a_terminal_on_all_three_descriptors() -> None:
    run = Run("sh", "-c", "tty; for fd in 0 1 2; do test -t $fd && echo $fd; done; echo three >&2")
    assert await run.ended() == Exit(code=0, signal=None)
    name, *rest = run.output.decode().split()
    assert name.startswith("/dev/pts/")
    assert rest == ["0", "1", "2", "three"]


async def test_the_terminal_is_the_controlling_one_of_a_session_of_its_own() -> None:
    run = Run("sh", "-c", "echo through >/dev/tty; cut -d' ' -f5,6,8 /proc/$$/stat")
    await run.ended()
    pid = run.pty.pid
    assert run.output.decode().split() == ["through", *[str(pid)] * 3]


async def test_no_descriptor_of_ours_reaches_the_program() -> None:
    """Neither the terminal's other side nor what this process was given by whoever started it."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        run = Run("cat")
    finally:
        os.close(read)
        os.close(write)
    await until(lambda: name_of(run.pty.pid) == "cat")
    # The loader has a library open for a moment; a descriptor of ours would stay.
    await until(lambda: {path.name for path in Path(f"/proc/{run.pty.pid}/fd").iterdir()} == {"0", "1", "2"})
    await run.stop()


SPAWNS = """
import asyncio, signal, sys
from tests.unit.terminal.ptys import Run

for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGWINCH])

async def main():
    run = Run("grep", "-E", "Sig(Ign|Blk)", "/proc/self/status")
    await run.ended()
    sys.stdout.write(run.output.decode())

asyncio.run(main())
"""


async def test_no_signal_is_ignored_or_blocked_whatever_ours_are() -> None:
    """Whatever a shell starts in the background ignores SIGINT: Ctrl-C would never reach a program in our terminal."""
    done = subprocess.run([sys.executable, "-c", SPAWNS], capture_output=True, text=True, check=True)
    blocked, ignored = (int(line.split()[1], 16) for line in done.stdout.splitlines())
    assert blocked == 0
    assert ignored & ~(1 << 31 | 1 << 32) == 0  # the two that the C library keeps for itself


async def test_the_window_has_its_size_from_the_start_and_takes_another() -> None:
    script = "trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.01; done"
    run = Run("sh", "-c", script, rows=31, cols=117)
    await run.said(b"31 117\r\n")
    run.pty.resize(7, 40)
    assert await run.ended() == Exit(code=0, signal=None)
    assert run.output == b"31 117\r\n7 40\r\n"


async def test_a_directory_of_its_own(tmp_path: Path) -> None:
    place = tmp_path / 'it\'s $HOME; a "place"'
    place.mkdir()
    run = Run("sh", "-c", 'pwd; printf "%s|" "$PWD" "$0" "$@"', "zero", "a b", "$1", "", cwd=str(place))
    assert await run.ended() == Exit(code=0, signal=None)
    assert run.output.decode() == f"{place}\r\n{place}|zero|a b|$1||"


async def test_a_relative_program_is_meant_from_its_directory(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "here").chmod(0o700)
    run = Run("./here", cwd=str(tmp_path))
    assert await run.ended() == Exit(code=0, signal=None)
    assert run.output == b"found\r\n"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("no-such-program", ["`no-such-program`", "PATH", "Install it"]),
        ("{}/no-such-program", ["no-such-program`", "Correct the path"]),
        ("{}/plain", ["plain`", "chmod +x"]),
        ("{}", ["may not be executed"]),
        ("{}/gibberish", ["gibberish`", "#!/bin/sh"]),
        ("{}/lost", ["lost`", "interpreter", "first line"]),
    ],
)
async def test_C9_a_program_that_cannot_start_says_why_and_leaves_nothing(
    program: str, words: list[str], elsewhere: bool, tmp_path: Path
) -> None:
    """In the same words whether it is started in our directory or in another one."""
    for name, mode, text in [("plain", 0o600, "x"), ("gibberish", 0o700, "x"), ("lost", 0o700, "#!/no/such/shell\n")]:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    before = descriptors()
    with pytest.raises(ToolError) as caught:
        Run(program.format(tmp_path), cwd=str(tmp_path) if elsewhere else None)
    assert caught.value.code == "command_not_started"
    assert [word for word in words if word not in caught.value.message] == []
    await until(lambda: descriptors() == before)  # a thread may be looking for processes


@pytest.mark.parametrize(
    ("argv", "cwd", "words"),
    [
        (["true"], "missing", ["working directory", "missing`", "Create it"]),
        (["true"], "plain", ["working directory", "plain`", "not a directory"]),
        (["echo", "a\0b"], None, ["NUL"]),
        (["echo", "a" * 200_000], None, ["too long", "128 KiB"]),
        (["echo", "a" * 200_000], ".", ["too long", "128 KiB"]),
        ([], None, ["empty", "name of a program"]),
    ],
)
async def test_C9_a_call_that_cannot_start_says_why_and_leaves_nothing(
    argv: list[str], cwd: str | None, words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "plain").touch()
    before = descriptors()
    with pytest.raises(ToolError) as caught:
        Run(*argv, cwd=None if cwd is None else str(tmp_path / cwd))
    assert caught.value.code == "command_not_started"
    assert [word for word in words if word not in caught.value.message] == []
    await until(lambda: descriptors() == before)  # a thread may be looking for processes


# Output


async def test_output_that_is_pending_when_the_leader_ends_is_delivered() -> None:
    """Nobody reads while it prints as much as a terminal holds, and ends."""
    run = Run("sh", "-c", "stty -opost; printf %011000d 7")
    os.waitid(os.P_PID, run.pty.pid, os.WEXITED | os.WNOWAIT)
    assert await run.ended() == Exit(code=0, signal=None)
    assert run.output == b"7".rjust(11_000, b"0")


async def test_the_end_is_not_waited_for_when_nobody_else_has_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keephold.tools.session.LAST_OUTPUT", 60.0)
    run = Run("echo", "hello")
    assert await run.ended() == Exit(code=0, signal=None)
    assert run.output == b"hello\r\n"


@pytest.mark.slow
async def test_fifty_megabytes_are_whole_and_do_not_starve_the_loop() -> None:
    sizes: list[int] = []
    run = Run("sh", "-c", "stty -opost; head -c 50000000 /dev/zero", on_output=lambda data: sizes.append(len(data)))
    turns = 0
    while not run.exits:
        await asyncio.sleep(0)
        turns += 1
    assert sum(sizes) == 50_000_000
    assert max(sizes) < 512 * 1024
    assert turns >= len(sizes)


async def test_a_program_that_closes_its_terminal_and_opens_it_again_is_heard() -> None:
    """As one does that asks for a password although its input and output are elsewhere."""
    run = Run(*python(
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "for fd in 0, 1, 2: os.close(fd)\n"
        "signal.sigwait([signal.SIGUSR1])\n"
        "os.write(os.open('/dev/tty', os.O_RDWR), b'again')\n"
    ))  # fmt: skip
    place = Path(f"/proc/{run.pty.pid}/fd/2")
    await until(lambda: not place.exists())
    os.kill(run.pty.pid, signal.SIGUSR1)
    assert await run.ended() == Exit(code=0, signal=None)
    assert run.output == b"again"


# The end


async def test_F3_output_of_others_is_still_read_after_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment only; a longer one here, so that the other is sure to be heard."""
    monkeypatch.setattr("keephold.tools.session.LAST_OUTPUT", 60.0)
    run = Run("sh", "-c", "trap '' HUP; (while kill -0 $$; do :; done 2>/dev/null; echo late) & echo first")
    assert await run.ended() == Exit(code=0, signal=None)
    assert run.output == b"first\r\nlate\r\n"


async def test_F3_others_are_not_read_for_ever() -> None:
    run = Run("sh", "-c", "trap '' HUP; (while :; do echo late; done) & true", grace=0.1)
    assert await run.ended() == Exit(code=0, signal=None)
    assert run.left() == []


async def test_F3_what_the_leader_leaves_is_ended() -> None:
    run = Run("sh", "-c", f'(setsid sh -c "{STUBBORN}" &) ; ({STUBBORN}) & read go; echo over', grace=0.1)
    await until(lambda: run.output.count(b"up") == 2)
    run.pty.write(b"go\r")
    assert await run.ended() == Exit(code=0, signal=None)
    assert run.output.endswith(b"over\r\n")
    assert run.left() == []


async def test_C7_a_shell_is_ended_with_its_jobs() -> None:
    """One in the background, one stopped, one in the foreground: each in a process group of its own."""
    run = Run("bash", "--norc", "-i")
    await run.found("reading")
    run.pty.write(b"sleep 1001 &\r")
    run.pty.write(b"sleep 1002\r")
    await until(lambda: run.foreground() == "sleep")
    run.pty.write(b"\x1a")
    await run.said(b"Stopped")
    run.pty.write(b"cat\r")
    await until(lambda: sorted(map(name_of, run.left())) == ["bash", "cat", "sleep", "sleep"])
    run.pty.end(1000)
    await run.ended()
    assert run.left() == []


async def test_C7_a_foreground_job_has_its_grace_although_the_shell_has_gone(tmp_path: Path) -> None:
    """The shell goes at once; what it ran in the foreground may still put its things in order."""
    job = "trap '' HUP; trap 'sleep 0.3; echo saved > saved; exit' TERM; echo 'I am' up; while :; do sleep 0.01; done"
    run = Run("bash", "--norc", "-i", cwd=str(tmp_path))
    await run.found("reading")
    run.pty.write(f'sh -c "{job}"\r'.encode())
    await run.said(b"I am up\r\n")
    run.pty.end(PATIENCE)
    await run.ended()
    assert (tmp_path / "saved").read_text() == "saved\n"
    assert run.left() == []


async def test_C7_a_stubborn_foreground_job_is_killed_after_the_grace() -> None:
    run = Run("bash", "--norc", "-i")
    await run.found("reading")
    run.pty.write(f'bash --norc -c "{STUBBORN}"\r'.encode())
    await run.said(b"up")
    run.pty.end(0.1)
    await run.ended()
    assert run.left() == []


async def test_C7_aborting_hears_the_last_words() -> None:
    run = Run("sh", "-c", "trap '' HUP; trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done")
    await run.said(b"up")
    run.pty.end(10)
    assert await run.ended() == Exit(code=7, signal=None)
    assert run.output.endswith(b"bye\r\n")


async def test_C7_aborting_twice_or_late_is_harmless_and_what_is_written_late_is_refused() -> None:
    run = Run("cat")
    run.pty.end(2)
    run.pty.end(2)
    await run.ended()
    run.pty.end(2)
    run.pty.resize(3, 3)
    assert (run.pty.echo, run.pty.canonical, run.pty.probe().state) == (False, False, "busy")
    for write in (partial(run.pty.write, b"x"), run.pty.send_eof):
        with pytest.raises(ToolError, match="only while it runs") as caught:
            write()
        assert caught.value.code == "not_running"
    await asyncio.sleep(0)
    assert len(run.exits) == 1


async def test_many_at_once_end_once_each_and_leave_no_descriptor() -> None:
    before = descriptors()
    runs = [Run("sh", "-c", "stty -echo; echo up; cat; sleep 30 & echo $$", grace=0) for _ in range(20)]
    for run in runs:
        await run.said(b"up")
        run.pty.write(b"in\r")
        run.pty.send_eof()
    for run in runs:
        await run.ended()
    assert [run.output for run in runs] == [b"up\r\nin\r\n%d\r\n" % run.pty.pid for run in runs]
    assert [len(run.exits) for run in runs] == [1] * 20
    assert [marks.find(run.mark) for run in runs] == [[]] * 20
    await until(lambda: descriptors() == before)  # a thread may be looking for processes
