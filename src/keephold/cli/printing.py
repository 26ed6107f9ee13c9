"""Prints for commands: text without the controls that a terminal would obey (K4), lines of JSON, tables that fit, and a
progress line on stderr if that is a terminal."""

import asyncio
import os
import socket
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import click

from keephold.text import ISOLATE, ISOLATED, exact_json, isolated, to_json
from keephold.text import byte_size as byte_size
from keephold.text import duration as duration
from keephold.text import printable as printable
from keephold.text import relative as relative
from keephold.text import time_of_day as time_of_day

_NARROWEST = 3
"""Columns that a table's cell keeps, however narrow the terminal is."""
_WIDTHLESS = ("\u200d", "\ufe0f", ISOLATE, ISOLATED)
"""The joints of an emoji, and the marks around text from right to left."""
_PROGRESS_SECS = 1.0
"""Shorter work needs no progress line."""


def print_json(value: Any) -> None:
    """Print one line of JSON. Characters that a terminal might obey, or would not show, are escaped."""
    click.echo(exact_json(to_json(value).decode()))


def tell(facts: Any, text: str | Iterable[str], *, as_json: bool) -> None:
    """Print what a command has done or found: the facts with --json, else the text, or its lines."""
    tell_each((facts,), (text,) if isinstance(text, str) else text, as_json=as_json)


def tell_each(listed: Iterable[Any], lines: Iterable[str], *, as_json: bool) -> None:
    """Print what a command lists: a line of JSON each with --json, else these lines."""
    if as_json:
        for each in listed:
            print_json(each)
    else:
        for line in lines:
            click.echo(line)


def note(text: str) -> str:
    """Return a note on what was printed."""
    return f"{click.style('note', fg='yellow')}: {text}"


def one_line(value: Any, width: int | None = None) -> str:
    """Return a value on one line, cut to the width: a string as it is, anything else as JSON."""
    text = printable(value) if isinstance(value, str) else exact_json(to_json(value).decode())
    line = " ".join(text.split())
    return line if width is None else _cut(line, width)


def terminal_width() -> int | None:
    """Return the columns of stdout; None if it is not a terminal and takes lines of any length."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError, AttributeError):  # it may be closed
        return None


def table(rows: Sequence[Sequence[str]], shrinking: Sequence[int]) -> list[list[str]]:
    """Return the rows with their cells padded to columns. If they are wider than the terminal, cut the `shrinking`
    columns, the widest first."""
    widths = [max(_columns(row[column]) for row in rows) for column in range(len(rows[0]))]
    room = terminal_width()
    if room is not None and shrinking:
        narrow(widths, shrinking, _NARROWEST, room - 2 * (len(widths) - 1))
    padded = [[_padded(cell, width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return padded if room is None else [list(map(isolated, row)) for row in padded]


def narrow(widths: list[int], shrinking: Sequence[int], least: int, room: int) -> None:
    """Narrow the `shrinking` columns, the widest first, until all columns fit or these have the least width."""
    for _ in range(sum(widths) - room):
        widest = max(shrinking, key=lambda column: widths[column])
        if widths[widest] <= least:
            return
        widths[widest] -= 1


def table_lines(
    rows: Sequence[Sequence[str]], shrinking: Sequence[int] = (), *, column: int = 0, colours: Sequence[str | None] = ()
) -> Iterator[str]:
    """Yield the lines of a `table`. The cells of one column have these colours; rows without one come last."""
    for cells, colour in zip_longest(table(rows, shrinking), colours):
        if colour is not None:
            cells[column] = click.style(cells[column], fg=colour)
        yield "  ".join(cells).rstrip()


def _padded(cell: str, width: int) -> str:
    cut = _cut(cell, width)
    return cut + " " * (width - _columns(cut))


def _cut(text: str, width: int) -> str:
    if _columns(text) <= width:
        return text
    while text and _columns(text) >= width:
        text = text[: min(len(text) - 1, width)]
    return f"{text}…"


def _columns(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(_width(character) for character in text)


def _width(character: str) -> int:
    if unicodedata.combining(character) or character in _WIDTHLESS:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def counted(number: int, what: str) -> str:
    """Return `1 key`, `3 keys`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show on stderr what the command does and for how long, while the block runs. Needs a running loop."""
    if not sys.stderr.isatty():
        yield
        return
    showing = asyncio.get_running_loop().create_task(_show_progress(what))
    try:
        yield
    finally:
        showing.cancel()
        click.echo("\r\x1b[K", nl=False, err=True)


def print_above_progress(line: str) -> None:
    """Print a line on stderr that stays, in place of the progress line."""
    click.echo(f"\r\x1b[K{line}" if sys.stderr.isatty() else line, err=True)


async def _show_progress(what: str) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(_PROGRESS_SECS)
        line = f"{what}, {duration(time.monotonic() - began)}"
        click.echo(f"\r\x1b[K{line[: (terminal_width() or 80) - 1]}", nl=False, err=True)


def _kept_words(kept: dict[str, Any], now: float) -> str:
    where = "" if kept["host"] == socket.gethostname() else f" on {kept['host']}"
    return f"kept{where}" if kept["until"] is None else f"kept{where}, ends {relative(kept['until'], now)}"


def state_words(fact: dict[str, Any], now: float) -> str:
    """Return a handle's state with its details: `running, parked`, `running, attempt 2, owner gone`, `running, kept on
    box`."""
    if fact["state"] == "stopped":
        end = f"stopped, {'ok' if fact['ok'] else 'error' if fact['ended_by'] == 'self' else fact['ended_by']}"
        return f"{end}, still ending" if fact.get("lingering") else end
    from keephold.control.handle_json import held_up_text  # takes a while

    following = fact["next_attempt_at"]
    words = [
        fact["state"],
        "parked" if fact["parked"] else "",
        "suspended" if fact.get("suspended") else "",
        "ready" if fact.get("ready") else "",
        *(held_up_text(each) for each in fact.get("held_up", ())),
        "taken over by the user" if fact.get("driver") else "",
        f"attempt {fact['attempt']}" if fact["attempt"] > 1 else "",
        "" if following is None else f"next {relative(following, now)}",
        "owner gone" if fact["owner"] == "gone" and not fact.get("kept") else "",
        _kept_words(fact["kept"], now) if fact.get("kept") else "",
    ]
    return ", ".join(filter(None, words))
