"""How long tests wait for a fact. Only a hang takes so long: a busy machine decides no test."""

import inspect
import os
import signal
import time
from asyncio import sleep
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from keephold.store.sqlite.processes import stopped_writer

PATIENCE = 60.0
"""Real seconds. pytest ends a test after four times as many."""


def rest(took: float, least: float) -> float:
    """Seconds until the next look at something nobody tells of, after one that took so long.

    Looking takes at most a quarter of a core: many looks start a program, and would slow what they wait for."""
    return max(least, 3 * took)


async def until(condition: Callable[[], Any]) -> Any:
    """Return what the condition says, once that is true: of something outside the loop, that nobody tells."""
    limit = time.monotonic() + PATIENCE  # in virtual time the loop's own clock would run ahead of threads
    while True:
        began = time.monotonic()
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < limit, f"did not come true in {PATIENCE:g} s"
        await sleep(rest(time.monotonic() - began, 0.002))


def stop_between_commits(pid: int, store: Path) -> None:
    """Stop a process, but not while it writes: no other process could write to the store."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        if stopped_writer(store) is None:
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
