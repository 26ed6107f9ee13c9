"""`keephold logs`: print the output of a handle, from the process that runs it or from the store.

Output of a terminal is printed as the lines that it showed, other output without control sequences. Gaps are reported
on stderr.
"""

import time
from collections import deque
from typing import Any, BinaryIO, NamedTuple, Self

import click

from keephold.cli.parameters import age, conversation_option
from keephold.cli.printing import print_json, time_of_day
from keephold.cli.store import Where, look, where_options
from keephold.control.base import Looking
from keephold.control.safe_text import Plain, Raw, Readable, Rendered
from keephold.turn import attach_protocol as frames
from keephold.turn.owner_connection import gone

_OFFSET = click.IntRange(max=(1 << 63) - 1)
_LINES = click.IntRange(min=0, max=(1 << 31) - 1)


class Since(NamedTuple):
    """Where to begin: at a byte, or at a time, in seconds since 1970."""

    offset: int = 0
    at: float | None = None

    @classmethod
    def given(cls, context: click.Context, parameter: click.Parameter, value: str | None) -> Self:
        """Read a byte such as `1024`, or an age such as `15m`."""
        if value is None or value.isdecimal():
            return cls(_OFFSET(value or 0, parameter, context))
        return cls(at=time.time() - (age(context, parameter, value) or 0))


BEGINNING = Since()


@click.command()
@click.argument("ID")
@click.option("-f", "--follow", is_flag=True, help="Print new output until the handle stops.")
@click.option("-n", "--lines", metavar="N", type=_LINES, help="Begin with the last N lines.")
@click.option("--raw", is_flag=True, help="Print the bytes unchanged, control sequences included.")
@click.option("--since", metavar="AGO|OFFSET", callback=Since.given,
              help="Start with what was printed in this time (90s, 15m, 2h, 7d), or at this byte (1024).")  # fmt: skip
@click.option("-t", "--times", is_flag=True, help="Print before each line when it was printed.")
@click.option("--cast", metavar="FILE", type=click.File("wb"),
              help="Write a terminal's session as an asciicast (version 2) instead; `-` is stdout.")  # fmt: skip
@conversation_option
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line: a piece of text and its offset.")
def logs(
    id: str,
    follow: bool,
    lines: int | None,
    raw: bool,
    since: Since,
    times: bool,
    cast: BinaryIO | None,
    conversation: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """Print the stored output of the handle of an ID, or a uid."""
    if cast is not None and (follow or raw or since != BEGINNING or times or as_json or lines is not None):
        why = "--cast takes the whole session; leave --follow, --lines, --raw, --since, --times and --json out"
        raise click.UsageError(why)
    if lines is not None and since != BEGINNING:
        raise click.UsageError("--lines and --since both say where to begin; leave one of them out")
    if raw and as_json:
        raise click.UsageError("--raw gives bytes, which JSON cannot; leave one of --raw and --json out")
    if raw and times:
        raise click.UsageError("--raw changes nothing in the output; leave one of --raw and --times out")
    if cast is None:
        printer = Printer(raw=raw, as_json=as_json, times=times, since=since)
        look(where, lambda looking: print_output(looking, id, conversation, printer, follow=follow, last=lines))
    else:
        try:
            look(where, lambda looking: _record(looking, id, conversation, cast))
        except click.FileError as error:
            raise click.UsageError(
                f"`{error.filename}` cannot be written: {error.message}; name another --cast"
            ) from error


class Printer:
    """Prints pieces of output."""

    def __init__(
        self, *, raw: bool = False, as_json: bool = False, times: bool = False, since: Since = BEGINNING
    ) -> None:
        self._readable: Readable = Raw() if raw else Plain()
        self._raw = raw
        self._as_json = as_json
        self._times = times
        self._since = since
        self._at: float | None = None  # when the next output was printed; None: not known
        self._untimed = False
        self._within_line = False
        self._offset: int | None = None  # of the next output; None until the first status
        self._last: _LastLines | None = None

    def want(self, uid: str, *, follow: bool, since: int | None = None) -> frames.Want:
        """Return the request for the output."""
        offset, timed = self._since.offset if since is None else since, self._times or self._since.at is not None
        return frames.Want(uid=uid, want="follow" if follow else "read", since=offset, times=timed)

    def take(self, frame: frames.Frame) -> None:
        """Take a frame of the answer."""
        match frame:
            case _, bytes(data):
                begins = self._begins
                self._offset = (self._offset or 0) + len(data)
                self._write(self._readable.feed(data), begins)
            case _, frames.PrintedAt(at=at):  # of the output that follows
                self._at = at
            case _, frames.Gap(offset=offset, missing=missing):
                self.end()
                self._offset = offset
                click.echo(f"[{missing} bytes are gone]", err=True)
            case frames.STATE, frames.HandleStatus(offset=offset, cols=cols):
                if self._offset is None:
                    self._offset = offset
                if cols and not self._raw and not isinstance(self._readable, Rendered):
                    self._readable = Rendered(cols)

    def hold(self, lines: int) -> None:
        """Print nothing until `print_last`, and then only the last lines."""
        self._last = _LastLines(lines)

    def print_last(self) -> int:
        """Print the last lines, and return the offset of the next output."""
        last, self._last = self._last, None
        assert last is not None
        for line in last.lines if self._times else last.joined():
            self._at = line.at
            self._write(bytes(line.text), line.offset)
        return self._offset or 0

    def end(self) -> None:
        begins = self._begins
        self._write(self._readable.end(), begins)

    def close(self) -> None:
        """Say what could not be done, when everything is printed."""
        self.end()
        if self._untimed:
            click.echo("It is not known when this output was printed, so all of it is shown.", err=True)

    @property
    def _begins(self) -> int:
        """The offset of the next text, which the converter may have held back."""
        return (self._offset or 0) - self._readable.held

    def _write(self, data: bytes, offset: int) -> None:
        if self._last is not None:
            self._last.add(data, offset, self._at)
            return
        if not data or self._is_earlier():
            return
        if self._as_json:
            shown = {"offset": offset, "text": data.decode(errors="replace")}
            print_json(shown | {"time": self._at} if self._times else shown)
        elif self._times:
            self._echo_timed(data)
        else:
            click.echo(data, nl=False)

    def _is_earlier(self) -> bool:
        """Return whether the output was printed before the time to begin with."""
        if self._since.at is None:
            return False
        self._untimed |= self._at is None
        return self._at is not None and self._at < self._since.at

    def _echo_timed(self, data: bytes) -> None:
        stamp = f"{'-' if self._at is None else time_of_day(self._at)} ".encode()
        for line in data.splitlines(keepends=True):
            click.echo(line if self._within_line else stamp + line, nl=False)
            self._within_line = not line.endswith(b"\n")


class _Line(NamedTuple):
    text: bytearray
    """Grows in place: a line of many pieces is not copied for each of them."""
    offset: int
    at: float | None


class _LastLines:
    """The last lines of an output, with the offset and the time of the first piece of each."""

    def __init__(self, count: int) -> None:
        self.lines: deque[_Line] = deque(maxlen=count)
        self._open = False

    def add(self, data: bytes, offset: int, at: float | None) -> None:
        for text in data.splitlines(keepends=True):
            if self._open and self.lines:
                self.lines[-1].text.extend(text)
            else:
                self.lines.append(_Line(bytearray(text), offset, at))
            self._open = not text.endswith(b"\n")

    def joined(self) -> list[_Line]:
        """Return all of them as one piece."""
        return [self.lines[0]._replace(text=bytearray().join(line.text for line in self.lines))] if self.lines else []


async def print_output(
    looking: Looking,
    id: str,
    conversation: str | None,
    printer: Printer,
    *,
    follow: bool,
    last: int | None = None,
) -> None:
    """Print the output of the handle of an id; with `follow`, until it has stopped; with `last`, from its last lines
    on."""
    (fact,) = await looking.find((id,), conversation)
    if fact["owner"] == "gone" and (follow or not fact.get("kept")):
        click.echo(f"{gone(fact['id'], fact['tool']).message}. Its stored output:", err=True)
    since = None
    if last is not None:
        printer.hold(last)
        await _pieces(looking, fact, printer.want(fact["uid"], follow=False), printer)
        since = printer.print_last()
    if last is None or follow:
        await _pieces(looking, fact, printer.want(fact["uid"], follow=follow, since=since), printer)
    printer.close()


async def _pieces(looking: Looking, fact: dict[str, Any], want: frames.Want, printer: Printer) -> None:
    async with looking.talk(fact, want) as talk:
        async for frame in frames.all_frames(talk):
            printer.take(frame)
        printer.end()


async def _record(looking: Looking, id: str, conversation: str | None, file: BinaryIO) -> None:
    """Write the cast. Its file is opened with the first write: a refusal leaves none."""
    (fact,) = await looking.find((id,), conversation)
    async with looking.talk(fact, frames.Want(uid=fact["uid"], want="cast")) as talk:
        async for _, payload in frames.all_frames(talk):
            if isinstance(payload, bytes):
                click.echo(payload, file=file, nl=False)
