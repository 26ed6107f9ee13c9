"""A command as a process: it logs to stderr, stops at a signal, and reads stdin beside the event loop."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import BinaryIO, TypeVar

import click

from keephold.platforms import ENDS, machine
from keephold.tools.guard import adopt, release

T = TypeVar("T")


def log_to_stderr() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


def own_children() -> None:
    """Let everything that this command starts end with it, also what Python tools start (R2)."""
    adopt()
    click.get_current_context().call_on_close(release)


class Signals:
    """Stops at the first signal. The second exits at once, after `restore`: the guard ends the remaining processes."""

    def __init__(self, restore: Callable[[], None] = lambda: None) -> None:
        self._restore = restore
        self.code = 0
        """The exit code of the first signal; 0: there was none."""

    def listen(self, stop: Callable[[], object], *names: str) -> None:
        """Call `stop` at these signals; by default, at those that ask a program to end."""
        for name in names or ENDS:
            machine.on_signal(name, partial(self._signalled, stop))

    def _signalled(self, stop: Callable[[], object], number: int) -> None:
        if self.code:
            self._restore()
            os._exit(128 + number)
        self.code = 128 + number
        stop()


def open_stdin() -> BinaryIO:
    # Not sys.stdin.buffer: at exit, the interpreter would wait for the lock that the reading thread still holds.
    return os.fdopen(sys.stdin.fileno(), "rb", closefd=False)


def in_thread(read: Callable[[], T]) -> "asyncio.Future[T]":
    """Read in a thread, so that tools keep running. The future may be resolved before the thread has read."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def done(value: T) -> None:
        if not future.done():
            future.set_result(value)

    def wait() -> None:
        value = read()
        try:
            loop.call_soon_threadsafe(done, value)
        except RuntimeError:  # the loop is closed
            return

    threading.Thread(target=wait, daemon=True, name="stdin").start()
    return future
