"""`keephold logs`: print the output of a handle, from the process that runs it or from the store.

Output of a terminal is printed as the lines that it showed, other output without control sequences. Gaps are reported
on stderr.
"""

from collections import deque
from pathlib import Path
from typing import Any, BinaryIO, Self

import click

from keephold.cli.parameters import conversation_option
from keephold.cli.printing import print_json
from keephold.cli.store import Where, ask, where_options
from keephold.control.base import Controls
from keephold.control.safe_text import Plain, Raw, Readable, Rendered
from keephold.turn import attach_protocol as frames
from keephold.turn.owner_connection import gone


@click.command()
@click.argument("ID")
@click.option("-f", "--follow", is_flag=True, help="Print new output until the handle stops.")
@click.option("-n", "--lines", metavar="N", type=click.IntRange(min=0), help="Begin with the last N lines.")
@click.option("--raw", is_flag=True, help="Print the bytes unchanged, control sequences included.")
@click.option("--since", metavar="OFFSET", type=click.IntRange(min=0), default=0, help="Start at this byte.")
@click.option("--cast", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True),
              help="Write a terminal's session as an asciicast (version 2) instead; `-` is stdout.")  # fmt: skip
@conversation_option
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line: a piece of text and its offset.")
@click.pass_context
def logs(
    context: click.Context,
    id: str,
    follow: bool,
    lines: int | None,
    raw: bool,
    since: int,
    cast: Path | None,
    conversation: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """Print the stored output of the handle of an ID, or a uid."""
    if cast is not None and (follow or raw or since or as_json or lines is not None):
        why = "--cast takes the whole session; leave --follow, --lines, --raw, --since and --json out"
        raise click.UsageError(why, context)
    if lines is not None and since:
        raise click.UsageError("--lines and --since both say where to begin; leave one of them out", context)
    if raw and as_json:
        raise click.UsageError("--raw gives bytes, which JSON cannot; leave one of --raw and --json out", context)
    if cast is None:
        printer = Printer(raw=raw, as_json=as_json)
        ask(
            where,
            lambda controls: print_output(controls, id, conversation, printer, follow=follow, since=since, last=lines),
        )
    else:
        with _CastFile(cast) as file:
            ask(where, lambda controls: _record(controls, id, conversation, file))


class Printer:
    """Prints pieces of output."""

    def __init__(self, *, raw: bool = False, as_json: bool = False) -> None:
        self._readable: Readable = Raw() if raw else Plain()
        self._raw = raw
        self._as_json = as_json
        self._offset: int | None = None  # of the next output; None until the first status
        self._last: _LastLines | None = None

    def status(self, status: frames.HandleStatus) -> None:
        """Take where the output begins, and whether it comes from a terminal."""
        if self._offset is None:
            self._offset = status.offset
        if status.cols and not self._raw and not isinstance(self._readable, Rendered):
            self._readable = Rendered(status.cols)

    def data(self, data: bytes) -> None:
        begins = self._begins
        self._offset = (self._offset or 0) + len(data)
        self._write(self._readable.feed(data), begins)

    def gap(self, gap: frames.Gap) -> None:
        self.end()
        self._offset = gap.offset
        click.echo(f"[{gap.missing} bytes are gone]", err=True)

    def hold(self, lines: int) -> None:
        """Print nothing until `let_go`, and then only the last lines."""
        self._last = _LastLines(lines)

    def let_go(self) -> int:
        """Print the last lines, and return the offset of the next output."""
        last, self._last = self._last, None
        assert last is not None
        self._write(b"".join(last.lines), last.offset)
        return self._offset or 0

    def end(self) -> None:
        begins = self._begins
        self._write(self._readable.end(), begins)

    @property
    def _begins(self) -> int:
        """The offset of the next text, which the converter may have held back."""
        return (self._offset or 0) - self._readable.held

    def _write(self, data: bytes, offset: int) -> None:
        if self._last is not None:
            self._last.add(data, offset)
        elif data and self._as_json:
            print_json({"offset": offset, "text": data.decode(errors="replace")})
        elif data:
            click.echo(data, nl=False)


class _LastLines:
    """The last lines of an output, and the offset of their first piece."""

    def __init__(self, count: int) -> None:
        self.lines: deque[bytes] = deque()
        self._offsets: deque[int] = deque()
        self._count = count
        self._open = False

    def add(self, data: bytes, offset: int) -> None:
        for line in data.splitlines(keepends=True):
            if self._open and self.lines:
                self.lines[-1] += line
            else:
                self.lines.append(line)
                self._offsets.append(offset)
            self._open = not line.endswith(b"\n")
            if len(self.lines) > self._count:
                self.lines.popleft()
                self._offsets.popleft()

    @property
    def offset(self) -> int:
        return self._offsets[0] if self._offsets else 0


async def print_output(
    controls: Controls,
    id: str,
    conversation: str | None,
    printer: Printer,
    *,
    follow: bool,
    since: int = 0,
    last: int | None = None,
) -> None:
    """Print the output of the handle of an id; with `follow`, until it has stopped; with `last`, from its last lines
    on."""
    (fact,) = await controls.find((id,), conversation)
    if fact["owner"] == "gone" and (follow or not fact.get("kept")):
        click.echo(f"{gone(fact['id'], fact['tool']).message}. Its stored output:", err=True)
    if last is not None:
        printer.hold(last)
        await _pieces(controls, fact, frames.Want(uid=fact["uid"], want="read"), printer)
        since = printer.let_go()
        if not follow:
            return
    await _pieces(
        controls, fact, frames.Want(uid=fact["uid"], want="follow" if follow else "read", since=since), printer
    )


async def _pieces(controls: Controls, fact: dict[str, Any], want: frames.Want, printer: Printer) -> None:
    async with controls.talk(fact, want) as talk:
        async for kind, payload in frames.all_frames(talk):
            match payload:
                case bytes():
                    printer.data(payload)
                case frames.Gap():
                    printer.gap(payload)
                case frames.HandleStatus() if kind == frames.STATE:
                    printer.status(payload)
        printer.end()


class _CastFile:
    """The file of a cast, created with the first write: a refusal leaves no file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: BinaryIO | None = None

    def write(self, data: bytes) -> None:
        if str(self._path) == "-":
            click.echo(data, nl=False)
            return
        if self._open is None:
            try:
                self._open = self._path.open("wb")
            except OSError as error:
                raise click.UsageError(
                    f"`{self._path}` cannot be written: {error.strerror}; name another --cast"
                ) from error
        self._open.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open.close()


async def _record(controls: Controls, id: str, conversation: str | None, file: _CastFile) -> None:
    (fact,) = await controls.find((id,), conversation)
    async with controls.talk(fact, frames.Want(uid=fact["uid"], want="cast")) as talk:
        async for _, payload in frames.all_frames(talk):
            if isinstance(payload, bytes):
                file.write(payload)
