"""`holdfast logs`: what a handle has printed: from the process that runs it, or from the store.

For people it is text: a terminal's lines as they were to be seen, anything else without control sequences. `--raw`
gives the bytes. What was not kept is told on stderr.
"""

import sys
from pathlib import Path
from typing import BinaryIO, Self

import click
import msgspec

from holdfast.cli.link import Running, gone, linked, running
from holdfast.cli.readable import Plain, Raw, Readable, Rendered
from holdfast.cli.records import find, owner_of
from holdfast.cli.store import reading, run, store_option
from holdfast.errors import HoldfastError
from holdfast.handles.asciicast import asciicast
from holdfast.handles.output import Output
from holdfast.handles.spool import Spool
from holdfast.store.base import Record, Store
from holdfast.turn import frames

_CHUNK = 1 << 16


@click.command()
@click.argument("ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until it stops.")
@click.option("--raw", is_flag=True, help="The bytes as they were printed, control sequences included.")
@click.option("--since", metavar="OFFSET", type=click.IntRange(min=0), default=0, help="From that byte on.")
@click.option("--cast", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True),
              help="Write a terminal's session as an asciicast (version 2) instead; `-` is stdout.")  # fmt: skip
@click.option("--conversation", metavar="C", help="The conversation it is in, if several have one of that id.")
@store_option
@click.pass_context
def logs(
    context: click.Context,
    id: str,
    follow: bool,
    raw: bool,
    since: int,
    cast: Path | None,
    conversation: str | None,
    store: str | None,
) -> None:
    """Print what the handle of an ID, or a uid, has printed, as far as it is kept."""
    if cast is not None and (follow or raw or since):
        raise click.UsageError("--cast takes the whole session; leave --follow, --raw and --since out", context)
    if cast is None:
        run(_print(store, id, conversation, _Printer(raw=raw), follow=follow, since=since))
    else:
        with _File(cast) as file:
            run(_record(store, id, conversation, file))


class _Printer:
    """Prints what comes, from wherever it comes."""

    def __init__(self, *, raw: bool) -> None:
        self._readable: Readable = Raw() if raw else Plain()
        self._raw = raw

    def terminal(self, cols: int) -> None:
        """It comes from a terminal of that width; 0: it does not."""
        if cols and not self._raw and not isinstance(self._readable, Rendered):
            self._readable = Rendered(cols)

    def data(self, data: bytes) -> None:
        self._write(self._readable.feed(data))

    def gap(self, missing: int) -> None:
        self._write(self._readable.end())
        click.echo(f"[{missing} bytes are gone]", err=True)

    def end(self) -> None:
        self._write(self._readable.end())

    def _write(self, data: bytes) -> None:
        if data:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


async def _print(
    url: str | None, id: str, conversation: str | None, printer: _Printer, *, follow: bool, since: int
) -> None:
    async with reading(url) as store:
        (record,) = await find(store, (id,), conversation)
        to = running(store, record)
        if to is None:
            if owner_of(store, record) == "gone":
                click.echo(f"{gone(record).message}. What was stored of it:", err=True)
            _print_stored(store, record, printer, since)
            return
    await _print_running(to, printer, follow=follow, since=since)


def _print_stored(store: Store, record: Record, printer: _Printer, since: int) -> None:
    output = _stored(store, record)
    if output is None:
        return
    printer.terminal(0 if output.timeline is None else output.timeline.started.cols)
    while since < output.total:
        piece = output.read(since, since + _CHUNK)
        if piece.missing:
            printer.gap(piece.missing)
        else:
            printer.data(piece.data)
        since = piece.end
    printer.end()
    output.close()


def _stored(store: Store, record: Record) -> Output | None:
    return None if record.output is None else Output.restored(Spool(store.directory), record.output, record.uid)


async def _print_running(to: Running, printer: _Printer, *, follow: bool, since: int) -> None:
    want = frames.Want(uid=to.record.uid, want="follow" if follow else "read", since=since)
    async with linked(to, want) as link:
        while True:
            kind, payload = await link.receive()
            if kind == frames.OUTPUT:
                printer.data(payload)
            elif kind == frames.GAP:
                printer.gap(msgspec.json.decode(payload, type=frames.Gap).missing)
            elif kind == frames.STATE:
                printer.terminal(msgspec.json.decode(payload, type=frames.Told).cols)
            elif kind == frames.END:
                printer.end()
                return


# Casts


class _File:
    """Where a cast goes. It is made when there is something to write: what is refused leaves no file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: BinaryIO | None = sys.stdout.buffer if str(path) == "-" else None

    def write(self, data: bytes) -> None:
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
        if self._open is sys.stdout.buffer:
            self._open.flush()
        elif self._open is not None:
            self._open.close()


async def _record(url: str | None, id: str, conversation: str | None, file: _File) -> None:
    async with reading(url) as store:
        (record,) = await find(store, (id,), conversation)
        to = running(store, record)
        if to is None:
            _record_stored(store, record, file)
            return
    async with linked(to, frames.Want(uid=record.uid, want="cast")) as link:
        while True:
            kind, payload = await link.receive()
            if kind == frames.OUTPUT:
                file.write(payload)
            elif kind == frames.END:
                return


def _record_stored(store: Store, record: Record, file: _File) -> None:
    output = _stored(store, record)
    if output is None or output.timeline is None:
        raise HoldfastError(
            f"Handle `{record.id}` is no terminal, or nothing is stored of its session", code="invalid_arguments"
        )
    for line in asciicast(output.timeline, output):
        file.write(f"{line}\n".encode())
    output.close()
