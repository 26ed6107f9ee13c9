"""That a command is still at it: one line of a terminal, with the time it has taken, gone when it is done.

It is on stderr, and only where that is a terminal: what is printed is for scripts, too.
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from keephold.cli.printing import duration, terminal_width

_SECS = 1.0
"""What takes less than this needs no line."""


@contextmanager
def going_on(what: str) -> Iterator[None]:
    """Say so, every second, while the block lasts. Only inside a running loop."""
    if not sys.stderr.isatty():
        yield
        return
    saying = asyncio.get_running_loop().create_task(_say(what))
    try:
        yield
    finally:
        saying.cancel()
        click.echo("\r\x1b[K", nl=False, err=True)


def tell(line: str) -> None:
    """A line on stderr that stays, in the place of the one that says it is going on."""
    click.echo(f"\r\x1b[K{line}" if sys.stderr.isatty() else line, err=True)


async def _say(what: str) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(_SECS)
        line = f"{what}, {duration(time.monotonic() - began)}"
        click.echo(f"\r\x1b[K{line[: (terminal_width() or 80) - 1]}", nl=False, err=True)
