"""`keephold logs`: print the output of a handle, from the process that runs it or from the store.

Output of a terminal is printed as the lines that it showed, other output without control sequences. Gaps are reported
on stderr.
"""

from pathlib import Path
from typing import BinaryIO, Self

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
    raw: bool,
    since: int,
    cast: Path | None,
    conversation: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """Print the stored output of the handle of an ID, or a uid."""
    if cast is not None and (follow or raw or since or as_json):
        raise click.UsageError("--cast takes the whole session; leave --follow, --raw, --since and --json out", context)
    if raw and as_json:
        raise click.UsageError("--raw gives bytes, which JSON cannot; leave one of --raw and --json out", context)
    if cast is None:
        printer = _Printer(raw=raw, as_json=as_json)
        ask(where, lambda controls: _print(controls, id, conversation, printer, follow=follow, since=since))
    else:
        with _CastFile(cast) as file:
            ask(where, lambda controls: _record(controls, id, conversation, file))


class _Printer:
    def __init__(self, *, raw: bool, as_json: bool) -> None:
        self._readable: Readable = Raw() if raw else Plain()
        self._raw = raw
        self._as_json = as_json
        self._offset: int | None = None  # of the next output; None until the first status

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

    def end(self) -> None:
        begins = self._begins
        self._write(self._readable.end(), begins)

    @property
    def _begins(self) -> int:
        """The offset of the next text, which the converter may have held back."""
        return (self._offset or 0) - self._readable.held

    def _write(self, data: bytes, offset: int) -> None:
        if data and self._as_json:
            print_json({"offset": offset, "text": data.decode(errors="replace")})
        elif data:
            click.echo(data, nl=False)


async def _print(
    controls: Controls, id: str, conversation: str | None, printer: _Printer, *, follow: bool, since: int
) -> None:
    (fact,) = await controls.find((id,), conversation)
    if fact["owner"] == "gone" and (follow or not fact.get("kept")):
        click.echo(f"{gone(fact['id'], fact['tool']).message}. Its stored output:", err=True)
    want = frames.Want(uid=fact["uid"], want="follow" if follow else "read", since=since)
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
