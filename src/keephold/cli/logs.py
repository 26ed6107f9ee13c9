"""`keephold logs`: what a handle has printed: from the process that runs it, or from the store.

For people it is text: a terminal's lines as they were to be seen, anything else without control sequences. `--raw`
gives the bytes, `--json` the text with its place. What was not kept is told on stderr.
"""

from pathlib import Path
from typing import BinaryIO, Self

import click
import msgspec

from keephold.cli.parameters import NAME
from keephold.cli.printing import print_json
from keephold.cli.store import Where, opened, run, where_options
from keephold.control.safe_text import Plain, Raw, Readable, Rendered
from keephold.turn import attach_protocol as frames
from keephold.turn.owner_connection import gone


@click.command()
@click.argument("ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until it stops.")
@click.option("--raw", is_flag=True, help="The bytes as they were printed, control sequences included.")
@click.option("--since", metavar="OFFSET", type=click.IntRange(min=0), default=0, help="From that byte on.")
@click.option("--cast", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True),
              help="Write a terminal's session as an asciicast (version 2) instead; `-` is stdout.")  # fmt: skip
@click.option(
    "--conversation", metavar="C", type=NAME, help="The conversation it is in, if several have one of that id."
)
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line, of a piece and its offset.")
@click.pass_context
def logs(
    context: click.Context,
    id: str,
    follow: bool,
    raw: bool,
    since: int,
    cast: Path | None,
    conversation: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """Print what the handle of an ID, or a uid, has printed, as far as it is kept."""
    if cast is not None and (follow or raw or since or as_json):
        raise click.UsageError("--cast takes the whole session; leave --follow, --raw, --since and --json out", context)
    if raw and as_json:
        raise click.UsageError("--raw gives bytes, which JSON cannot; leave one of --raw and --json out", context)
    if cast is None:
        printer = _Printer(raw=raw, as_json=as_json)
        run(_print(where, id, conversation, printer, follow=follow, since=since))
    else:
        with _File(cast) as file:
            run(_record(where, id, conversation, file))


class _Printer:
    """Prints what comes, from wherever it comes."""

    def __init__(self, *, raw: bool, as_json: bool) -> None:
        self._readable: Readable = Raw() if raw else Plain()
        self._raw = raw
        self._as_json = as_json
        self._offset: int | None = None
        """Where what comes next was printed."""

    def told(self, told: frames.HandleStatus) -> None:
        """How it is. The first time also where the output begins, and whether it comes from a terminal."""
        if self._offset is None:
            self._offset = told.offset
        if told.cols and not self._raw and not isinstance(self._readable, Rendered):
            self._readable = Rendered(told.cols)

    def data(self, data: bytes) -> None:
        begins = self._begins
        self._offset = (self._offset or 0) + len(data)
        self._write(self._readable.feed(data), begins)

    def gap(self, gap: frames.Gap) -> None:
        self.end()
        self._offset = gap.offset
        click.echo(f"[{gap.missing} bytes are gone]", err=True)

    def end(self) -> None:
        begins = self._begins
        self._write(self._readable.end(), begins)

    @property
    def _begins(self) -> int:
        """Where what is written next was printed: it was held back, or comes."""
        return (self._offset or 0) - self._readable.held

    def _write(self, data: bytes, offset: int) -> None:
        if data and self._as_json:
            print_json({"offset": offset, "text": data.decode(errors="replace")})
        elif data:
            click.echo(data, nl=False)


async def _print(
    where: Where, id: str, conversation: str | None, printer: _Printer, *, follow: bool, since: int
) -> None:
    async with opened(where) as controls:
        (fact,) = await controls.find((id,), conversation)
        if fact["owner"] == "gone":
            click.echo(f"{gone(fact['id'], fact['tool']).message}. What was stored of it:", err=True)
        want = frames.Want(uid=fact["uid"], want="follow" if follow else "read", since=since)
        async with controls.talk(fact, want) as talk:
            while True:
                kind, payload = await talk.receive()
                if kind == frames.OUTPUT:
                    printer.data(payload)
                elif kind == frames.GAP:
                    printer.gap(msgspec.json.decode(payload, type=frames.Gap))
                elif kind == frames.STATE:
                    printer.told(msgspec.json.decode(payload, type=frames.HandleStatus))
                elif kind == frames.END:
                    printer.end()
                    return


# Casts


class _File:
    """Where a cast goes. It is made when there is something to write: what is refused leaves no file."""

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


async def _record(where: Where, id: str, conversation: str | None, file: _File) -> None:
    async with opened(where) as controls:
        (fact,) = await controls.find((id,), conversation)
        async with controls.talk(fact, frames.Want(uid=fact["uid"], want="cast")) as talk:
            while True:
                kind, payload = await talk.receive()
                if kind == frames.OUTPUT:
                    file.write(payload)
                elif kind == frames.END:
                    return
