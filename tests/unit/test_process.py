"""A child process: its output, its input, and that nothing of it is left when it has ended (C6, C7, F3)."""

import asyncio
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from tests.patience import PATIENCE, until

from keephold.errors import ToolError
from keephold.platforms import machine
from keephold.tools import marks, session
from keephold.tools.process import UNREAD_LIMIT, Exit, Process

RUNTIME = marks.new_runtime_mark()
UIDS = map("u{}".format, count())

STUBBORN = "trap '' TERM; echo up; exec >/dev/null 2>&1; while :; do sleep 30; done"
"""A script that ignores SIGTERM, lets go of its output and never ends."""

RUNAWAY = """
import os
print("up", flush=True)
os.dup2(os.open(os.devnull, os.O_RDWR), 1)
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
"""
"""A program that is every moment in a new process and a new session."""


class Run:
    """A process under test, and what it said."""

    def __init__(
        self,
        *argv: str,
        cwd: str | None = None,
        stdin: bool = False,
        merge_stderr: bool = False,
        grace: float = 2.0,
        marked: bool = True,
        slow: float = 0.0,
    ) -> None:
        self.mark = marks.call_mark(RUNTIME, next(UIDS))
        self.output = bytearray()
        self.stderr = bytearray()
        self.exits: list[Exit] = []
        self._slow = slow
        self.process = Process(
            argv,
            env={"PATH": os.environ["PATH"], **(marks.environ(self.mark) if marked else {})},
            cwd=cwd,
            stdin=stdin,
            merge_stderr=merge_stderr,
            mark=self.mark,
            on_output=self._take,
            on_stderr=self.stderr.extend,
            on_exit=self.exits.append,
            grace=grace,
        )

    def _take(self, data: bytes) -> None:
        time.sleep(self._slow)
        self.output += data

    async def ended(self) -> Exit:
        await until(lambda: bool(self.exits))
        return self.exits[0]

    async def said(self, text: bytes) -> None:
        await until(lambda: text in self.output)

    def left(self) -> list[int]:
        """What runs of the call: bearers of its mark, and members of its group."""
        group = [pid for pid in machine.pids() if machine.group_of(pid) == self.process.pid]
        return sorted({*marks.find(self.mark), *group})


def descriptors() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


# Starting


async def test_F3_stdout_and_stderr_are_kept_apart() -> None:
    run = Run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert await run.ended() == Exit(code=3, signal=None)
    assert run.output == b"out\n"
    assert run.stderr == b"err\n"


async def test_F3_stderr_is_interleaved_when_merged() -> None:
    run = Run("sh", "-c", "echo 1; echo 2 >&2; echo 3", merge_stderr=True)
    assert await run.ended() == Exit(code=0, signal=None)
    assert run.output == b"1\n2\n3\n"
    assert run.stderr == b""


async def test_F3_a_killed_leader_has_a_signal_and_no_code() -> None:
    run = Run("sh", "-c", "kill -USR1 $$")
    assert await run.ended() == Exit(code=None, signal=signal.SIGUSR1)


async def test_the_process_leads_a_session_of_its_own_in_its_directory(tmp_path: Path) -> None:
    run = Run("sh", "-c", "cut -d' ' -f6 /proc/$$/stat; pwd", cwd=str(tmp_path))
    await run.ended()
    assert run.output.decode().split() == [str(run.process.pid), str(tmp_path)]


async def test_without_stdin_the_input_is_empty() -> None:
    run = Run("cat")
    assert await run.ended() == Exit(code=0, signal=None)


@pytest.mark.parametrize(
    ("argv", "cwd", "words"),
    [
        (["no-such-program"], None, ["`no-such-program`", "PATH", "Install it"]),
        (["./no-such-program"], None, ["`./no-such-program`", "Correct the path"]),
        (["true"], "missing", ["working directory", "missing`", "Create it"]),
        (["true"], "plain", ["working directory", "plain`", "not a directory"]),
        (["./plain"], ".", ["`./plain`", "chmod +x"]),
        (["./gibberish"], ".", ["`./gibberish`", "#!/bin/sh"]),
        (["./lost"], ".", ["`./lost`", "interpreter", "first line"]),
        (["echo", "a\0b"], None, ["NUL"]),
        (["echo", "a" * 200_000], None, ["too long", "128 KiB"]),
        ([], None, ["empty", "name of a program"]),
    ],
)
async def test_C9_a_command_that_cannot_start_says_why_and_leaves_nothing(
    argv: list[str], cwd: str | None, words: list[str], tmp_path: Path
) -> None:
    for name, mode, text in [("plain", 0o600, "x"), ("gibberish", 0o700, "x"), ("lost", 0o700, "#!/no/such/shell\n")]:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    before = descriptors()
    with pytest.raises(ToolError) as caught:
        Run(*argv, cwd=None if cwd is None else str(tmp_path / cwd), stdin=True)
    assert caught.value.code == "command_not_started"
    assert [word for word in words if word not in caught.value.message] == []
    await until(lambda: descriptors() == before)  # a thread may be looking for processes


# Output


@pytest.mark.parametrize("slow", [0.0, 0.06])
async def test_output_is_whole_when_the_leader_ends_with_a_full_pipe(slow: float) -> None:
    """Another process holds the pipe open, so its end does not tell that all was read; nor does the time it takes."""
    run = Run("sh", "-c", "sleep 30 & exec head -c 3000000 /dev/zero", grace=0, slow=slow)
    await run.ended()
    assert len(run.output) == 3_000_000


async def test_a_program_that_prints_gigabytes_does_not_starve_the_loop() -> None:
    run = Run("sh", "-c", "head -c 200000000 /dev/zero; echo")
    sizes = [0]
    while not run.exits:
        await asyncio.sleep(0)
        sizes.append(len(run.output))
        run.output.clear()
    assert sum(sizes) + len(run.output) == 200_000_001
    assert max(sizes) <= 4 * 1024 * 1024


async def test_F3_output_of_others_is_read_for_50_ms_after_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("sh", "-c", "(while :; do echo late; done) &", grace=0.1)
    started = time.monotonic()
    assert await run.ended() == Exit(code=0, signal=None)
    assert time.monotonic() - started >= 0.05
    assert run.left() == []
    monkeypatch.setattr(session, "LAST_OUTPUT", PATIENCE)
    run = Run("sh", "-c", "(while kill -0 $$ 2>/dev/null; do :; done; echo late) &")
    assert await run.ended() == Exit(code=0, signal=None)
    assert run.output == b"late\n"


# The end of a command


async def test_F3_a_command_ends_with_its_first_process() -> None:
    run = Run("sh", "-c", "sleep 1000 & echo done")
    assert await run.ended() == Exit(code=0, signal=None)
    assert run.output == b"done\n"
    assert run.left() == []


async def test_F3_what_the_leader_leaves_is_asked_first_and_killed_after_the_grace(tmp_path: Path) -> None:
    polite = "trap 'echo asked > asked; exit' TERM; echo up; exec >/dev/null 2>&1; while :; do sleep 0.01; done"
    for left, grace in ((polite, PATIENCE), (STUBBORN, 0.3)):
        run = Run("sh", "-c", f"({left}) & read go", cwd=str(tmp_path), stdin=True, grace=grace)
        await run.said(b"up")
        started = time.monotonic()
        run.process.write(b"go\n")
        assert await run.ended() == Exit(code=0, signal=None)
        assert run.left() == []
    assert time.monotonic() - started >= 0.3
    assert (tmp_path / "asked").read_text() == "asked\n"


async def test_F3_what_moved_to_another_session_is_found_by_its_mark() -> None:
    run = Run("sh", "-c", f'setsid sh -c "{STUBBORN}" & read go', stdin=True)
    await run.said(b"up")
    run.process.write(b"go\n")
    assert await run.ended() == Exit(code=0, signal=None)
    assert run.left() == []


async def test_F3_what_is_just_changing_its_program_is_found() -> None:
    """The leader ends while its child is somewhere between fork, setsid and exec, each time somewhere else."""
    for _ in range(40):
        run = Run("sh", "-c", f'setsid sh -c "{STUBBORN}" &')
        await run.ended()
        assert run.left() == []


@pytest.mark.linux("the newest pid is unknown, so every end searches")
async def test_F3_a_young_command_without_a_rest_usually_ends_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at every process of the machine is for those that need it, or whose neighbours are just starting: one
    that starts alone comes on the busiest machine."""
    all_pids, searches = machine.pids, 0

    def pids() -> Iterable[int]:
        nonlocal searches
        searches += 1
        return all_pids()

    monkeypatch.setattr(machine, "pids", pids)
    monkeypatch.setattr("keephold.tools.session._YOUNG", PATIENCE)
    for before in range(1000):
        assert await Run("sh", "-c", "true; /bin/true").ended() == Exit(code=0, signal=None)
        if searches == before:
            return
    pytest.fail("each of them was followed by a search")


async def test_F3_a_command_that_ran_long_is_searched_for_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pids may have gone round: what it left may have a smaller one than its own."""
    monkeypatch.setattr("keephold.tools.session._YOUNG", 0.0)
    monkeypatch.setattr(machine, "last_pid", lambda: pytest.fail("trusted the order of pids"))
    run = Run("sh", "-c", f'setsid sh -c "{STUBBORN}" & true')
    await run.ended()
    assert run.left() == []


async def test_F3_when_pids_went_round_they_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "last_pid", lambda: 2)
    run = Run("sh", "-c", f'setsid sh -c "{STUBBORN}" & true')
    await run.ended()
    assert run.left() == []


async def test_F3_a_search_among_many_processes_does_not_hold_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = [*machine.pids(), *range(5_000_000, 5_010_000)]
    monkeypatch.setattr(machine, "pids", lambda: crowd)
    monkeypatch.setattr("keephold.tools.session._YOUNG", 0.0)
    run = Run("true")
    os.waitid(os.P_PID, run.process.pid, os.WEXITED | os.WNOWAIT)
    turns = 0
    while not run.exits:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100


async def test_C7_abort_takes_grandchildren_that_moved_away_and_ignore_sigterm() -> None:
    script = f"""
        setsid sh -c "{STUBBORN}" &
        setsid setsid sh -c "{STUBBORN}" </dev/null &
        ({STUBBORN}) &
        sleep 30
    """
    run = Run("sh", "-c", script)
    await until(lambda: run.output.count(b"up") == 3)
    run.process.end(0.2)
    assert await run.ended() == Exit(code=None, signal=signal.SIGTERM)
    assert run.left() == []


async def test_C7_abort_asks_first_and_hears_the_last_words() -> None:
    run = Run("sh", "-c", "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done")
    await run.said(b"up")
    run.process.end(10)
    assert await run.ended() == Exit(code=7, signal=None)
    assert run.output == b"up\nbye\n"


async def test_C7_abort_kills_after_the_grace_and_not_before() -> None:
    run = Run("sh", "-c", STUBBORN)
    await run.said(b"up")
    started = time.monotonic()
    run.process.end(0.3)
    assert await run.ended() == Exit(code=None, signal=signal.SIGKILL)
    assert time.monotonic() - started >= 0.3
    assert run.left() == []


async def test_C7_a_group_without_mark_is_taken_too() -> None:
    run = Run("sh", "-c", f"({STUBBORN}) & sleep 30", marked=False)
    await run.said(b"up")
    run.process.end(0.1)
    await run.ended()
    assert run.left() == []


async def test_C7_a_program_that_forks_and_exits_all_the_time_does_not_escape() -> None:
    run = Run(sys.executable, "-I", "-S", "-c", RUNAWAY)
    await run.ended()
    assert run.output == b"up\n"
    assert run.left() == []


async def test_C7_aborting_twice_or_late_is_harmless() -> None:
    run = Run("sleep", "30")
    run.process.end(2)
    run.process.end(2)
    assert await run.ended() == Exit(code=None, signal=signal.SIGTERM)
    run.process.end(2)
    await asyncio.sleep(0)
    assert len(run.exits) == 1


async def test_C7_other_calls_are_left_alone() -> None:
    other, run = Run("sleep", "30"), Run("sh", "-c", f'setsid sh -c "{STUBBORN}" & sleep 30')
    await run.said(b"up")
    run.process.end(2)
    await run.ended()
    assert run.left() == []
    assert other.left() == [other.process.pid]
    other.process.end(0)
    await other.ended()


async def test_many_at_once_end_once_each_and_leave_no_descriptor() -> None:
    before = descriptors()
    runs = [Run("sh", "-c", "cat; sleep 30 & echo $$", stdin=True, grace=0) for _ in range(20)]
    for run in runs:
        run.process.write(b"in\n")
        run.process.close_stdin()
    for run in runs:
        await run.ended()
    assert [run.output for run in runs] == [b"in\n%d\n" % run.process.pid for run in runs]
    assert [len(run.exits) for run in runs] == [1] * 20
    await until(lambda: descriptors() == before)  # a thread may be looking for processes


# Input


async def test_C6_input_reaches_the_program_and_closing_ends_it() -> None:
    run = Run("cat", stdin=True)
    run.process.write(b"one\n")
    await run.said(b"one\n")
    run.process.write(b"two\n")
    run.process.close_stdin()
    run.process.close_stdin()
    assert await run.ended() == Exit(code=0, signal=None)
    assert run.output == b"one\ntwo\n"


async def test_C6_more_than_64_KiB_unread_is_refused_and_nothing_is_written() -> None:
    run = Run("sleep", "30", stdin=True)
    run.process.write(b"x" * UNREAD_LIMIT)
    with pytest.raises(ToolError, match=f"{UNREAD_LIMIT} bytes.*Wait") as caught:
        run.process.write(b"y")
    assert caught.value.code == "input_not_read"
    run.process.end(0)
    await run.ended()


async def test_C6_what_was_refused_never_arrives() -> None:
    run = Run(sys.executable, "-c", WAITS_TO_READ, stdin=True)
    await run.said(b"up")
    run.process.write(b"x" * (UNREAD_LIMIT - 10))
    with pytest.raises(ToolError):
        run.process.write(b"y" * 11)
    run.process.write(b"z" * 10)
    run.process.close_stdin()
    os.kill(run.process.pid, signal.SIGUSR1)
    await run.ended()
    assert run.output == b"up\n" + b"x" * (UNREAD_LIMIT - 10) + b"z" * 10


WAITS_TO_READ = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("up", flush=True)
if sys.argv[1:] == ["one"]:
    os.read(0, 1)
    print("one", flush=True)
signal.sigwait([signal.SIGUSR1])
sys.stdout.write(sys.stdin.read())
"""


async def test_C6_a_full_pipe_with_less_than_the_limit_is_written_later() -> None:
    """A pipe counts in pages: one read of a single byte makes no room in it, but the limit has room again."""
    run = Run(sys.executable, "-c", WAITS_TO_READ, "one", stdin=True)
    run.process.write(b"x" * UNREAD_LIMIT)
    await run.said(b"one")
    run.process.write(b"y")
    with pytest.raises(ToolError) as caught:
        run.process.write(b"z")
    assert caught.value.code == "input_not_read"
    run.process.close_stdin()
    with pytest.raises(ToolError, match="closed"):
        run.process.write(b"z")
    os.kill(run.process.pid, signal.SIGUSR1)
    await run.ended()
    assert run.output == b"up\none\n" + b"x" * (UNREAD_LIMIT - 1) + b"y"


async def test_C6_a_program_that_closed_its_input_cannot_be_written_to() -> None:
    run = Run("sh", "-c", "exec <&-; echo up; exec sleep 30", stdin=True)
    await run.said(b"up")
    for _ in range(2):
        with pytest.raises(ToolError, match="standard input is closed"):
            run.process.write(b"x")
    run.process.end(0)
    await run.ended()


async def test_C6_a_program_without_stdin_or_at_its_end_cannot_be_written_to() -> None:
    run = Run("true")
    with pytest.raises(ToolError, match="standard input is closed"):
        run.process.write(b"x")
    await run.ended()
    run = Run("true", stdin=True)
    await run.ended()
    with pytest.raises(ToolError, match="standard input is closed"):
        run.process.write(b"x")


# The probe


@pytest.mark.linux("whether a program reads is unknown")
@pytest.mark.parametrize("argv", [["cat"], ["sh", "-c", "cat; true"], ["sh", "-c", "read line; read line; echo $line"]])
async def test_C4_the_probe_sees_a_program_that_reads_its_input(argv: list[str]) -> None:
    run = Run(*argv, stdin=True)
    await until(run.process.probe)
    run.process.write(b"a\n")
    await until(run.process.probe)
    run.process.close_stdin()
    assert run.process.probe() is False
    await run.ended()
    assert run.process.probe() is False


@pytest.mark.linux("whether a program reads is unknown")
async def test_C4_the_probe_sees_a_thread_that_reads() -> None:
    script = "import os, threading; threading.Thread(target=os.read, args=(0, 1)).start(); threading.Event().wait()"
    run = Run(sys.executable, "-c", script, stdin=True)
    await until(run.process.probe)
    run.process.end(0)
    await run.ended()


@pytest.mark.linux("whether a program reads is unknown")
@pytest.mark.parametrize("busy", ["while :; do :; done", "exec sleep 30", "exec cat <&3"])
async def test_C4_the_probe_is_not_fooled(busy: str, tmp_path: Path) -> None:
    """By a busy program, a sleeping one, or one that reads something else."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    run = Run("sh", "-c", f"exec 3<>{fifo}; echo up; {busy}", stdin=True)
    await run.said(b"up")
    for _ in range(20):
        assert run.process.probe() is False
        await asyncio.sleep(0.001)
    run.process.end(0)
    await run.ended()


@pytest.mark.linux("whether a program reads is unknown")
async def test_C4_the_probe_says_no_while_input_is_unread() -> None:
    run = Run("cat", stdin=True)
    await until(run.process.probe)
    os.kill(run.process.pid, signal.SIGSTOP)
    stat = Path(f"/proc/{run.process.pid}/stat")
    await until(lambda: ") T " in stat.read_text())
    run.process.write(b"a\n")
    assert run.process.probe() is False
    os.kill(run.process.pid, signal.SIGCONT)
    await until(run.process.probe)
    run.process.end(0)
    await run.ended()


@pytest.mark.linux("whether a program reads is unknown")
async def test_C4_the_probe_says_unknown_where_system_calls_are_numbered_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("keephold.platforms.linux_probe._BLOCKED", {})
    run = Run("cat", stdin=True)
    assert run.process.probe() is None
    run.process.close_stdin()
    await run.ended()


@pytest.mark.linux("other systems do not name the holder of a lock")
def test_the_holder_of_one_of_very_many_locks_is_named(tmp_path: Path) -> None:
    """The kernel lists locks a page at a time; two hundred take three pages."""
    with ExitStack() as stack:
        files = [stack.enter_context((tmp_path / str(number)).open("w")) for number in range(200)]
        for file in files:
            fcntl.flock(file, fcntl.LOCK_EX)
        for file in files:
            assert set(machine.lock_holders(os.fstat(file.fileno()).st_ino, None)) == {os.getpid()}
