"""A command of the documentation run in a terminal, with a person at it who types when they see what they wait for."""

import os
import select
import subprocess
import termios
import time
from pathlib import Path

from tests.docs.sessions import TIMEOUT, environment

from keephold.handles.rendering import render

ROWS, COLUMNS = 24, 80
# The terminal is opened by the leader of a new session, which makes it the controlling one.
_IN_TERMINAL = 'exec <"$1" >"$1" 2>&1; exec sh -c "$2"'


def typing(mark: str) -> list[tuple[str, str]]:
    """What a mark says: `terminal: Run it? | y`, several of them with `;` between. What is seen, what is typed then."""
    pairs = (each.partition(" | ") for each in mark.removeprefix("terminal: ").split(" ; "))
    return [(seen, typed.encode().decode("unicode_escape")) for seen, _, typed in pairs]


def run_typed(command: str, directory: Path, typed: list[tuple[str, str]]) -> str:
    """What the terminal shows in the end, as text."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (ROWS, COLUMNS))
    process = subprocess.Popen(
        ["sh", "-c", _IN_TERMINAL, "sh", os.ttyname(theirs), command],
        cwd=directory,
        env=environment(directory) | {"TERM": "xterm", "NO_COLOR": "1"},
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return _talk(ours, theirs, process, typed)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def _talk(ours: int, theirs: int, process: "subprocess.Popen[bytes]", typed: list[tuple[str, str]]) -> str:
    waiting, got, read = list(typed), b"", 0
    limit = time.monotonic() + TIMEOUT
    while True:
        over = process.poll() is not None  # before the last look: what it printed is there by then
        if select.select([ours], [], [], 0 if over else 0.05)[0]:
            got += os.read(ours, 65536)
        elif over:
            break
        if waiting and (at := got.find(waiting[0][0].encode(), read)) >= 0:
            read = at + len(waiting[0][0].encode())
            os.write(ours, waiting.pop(0)[1].encode())
        assert time.monotonic() < limit, f"it does not end; the terminal: {render(got)}"
    assert not waiting, f"{waiting[0][0]!r} was not shown; the terminal: {render(got)}"
    return render(got)
