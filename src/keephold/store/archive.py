"""The archive: handles as compressed JSON lines, written before they are deleted (S5, W8), and the reader of them.

A directory with a file for each month in which handles stopped, `2026-11.jsonl.gz`. Each part that is deleted is one
member of gzip in it, so `zcat` reads the files, too. A member says in its header how long it is. So if a crash cut one
off, the next writer finds that by the headers alone, and removes that member. A crash between archiving and deleting
archives handles twice; the reader returns each once.
"""

import asyncio
import errno
import gzip
import os
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from keephold.errors import KeepholdError
from keephold.handles.state import Failure, Ok, Stopped
from keephold.platforms import machine
from keephold.platforms.unix import O_CLOEXEC, O_NOFOLLOW
from keephold.store.rows import Record, status_of
from keephold.text import to_json

_HEADER = struct.Struct("<4sLBB6sQ")
"""Magic and flags, time, two bytes that say nothing, then one extra field `KH` with the size of the member."""
_BEGIN, _FIELD = b"\x1f\x8b\x08\x04", struct.pack("<H2sH", 12, b"KH", 8)
_REMEMBERED = 20_000
"""How many uids the reader compares with: a handle that is archived twice is archived again soon."""


def is_within(path: Path, places: Sequence[Path]) -> bool:
    """Return whether a path, after all links, is in one of the directories."""
    real = os.path.realpath(path)
    return any(Path(real).is_relative_to(os.path.realpath(place)) for place in places)


class Archive:
    """Appends to the archive in a directory, which must be in one of `places`. Several processes may."""

    def __init__(self, directory: Path, places: Sequence[Path]) -> None:
        self._directory = directory
        self._places = places

    async def __call__(self, records: Sequence[Record]) -> None:
        """Archive these handles. Raises `KeepholdError` if that cannot be done. If it is cancelled, it is done all the
        same, and nobody waits for it."""
        thread = ThreadPoolExecutor(1)  # a thread of the loop's own pool would stay
        try:
            await asyncio.get_running_loop().run_in_executor(thread, self.add, records)
        finally:
            thread.shutdown(wait=False)

    def add(self, records: Sequence[Record]) -> None:
        """Like calling it, but block until it is done."""
        months: dict[str, list[bytes]] = {}
        for record in records:
            assert isinstance(record.state, Stopped)
            month = time.strftime("%Y-%m", time.gmtime(record.state.stopped))
            months.setdefault(month, []).append(to_json(_line(record)) + b"\n")
        try:
            if not is_within(self._directory, self._places):  # a link may have come since the configuration was read
                raise OSError(errno.EACCES, "it is outside of the project's directory and the state directory")
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for month, lines in months.items():
                _append(self._directory / f"{month}.jsonl.gz", _member(b"".join(lines)))
        except OSError as error:
            why = f"`{self._directory}`: cannot be written to: {error.strerror}; nothing was deleted ([store] archive)"
            raise KeepholdError(why, code="store_unavailable") from None


def _line(record: Record) -> dict[str, Any]:
    state, output = record.state, record.output
    assert isinstance(state, Stopped)
    line: dict[str, Any] = {
        "uid": record.uid,
        "id": record.id,
        "conversation": record.conversation,
        "tool": record.tool,
        "kind": record.kind,
        "spawned": record.stateful,
        "created": state.created,
        "started": state.started,
        "stopped": state.stopped,
        "status": status_of(state),
        "ended_by": state.ended_by,
        "arguments": record.arguments,
        "metadata": record.metadata or {},
    }
    line |= outcome(state)
    if isinstance(state.outcome, Failure):
        line["code"] = state.outcome.code
    if output is not None:
        line |= {"output_bytes": output.total, "output": output.data.decode("utf-8", "replace")}
    return line


def outcome(state: Stopped) -> dict[str, Any]:
    """Return the result, or the error, of a handle."""
    match state.outcome:
        case Ok(value):
            return {"result": value}
        case Failure(message):
            return {"error": message}
        case _:
            return {}


def _member(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(data) + packer.flush()
    size = _HEADER.size + len(packed) + 8
    header = _HEADER.pack(_BEGIN, int(time.time()), 0, 255, _FIELD, size)
    return header + packed + struct.pack("<LL", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def _append(file: Path, member: bytes) -> None:
    """Append a member, on the disk, after the last one that is whole."""
    opened = os.open(file, os.O_RDWR | os.O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0o600)
    try:
        machine.lock(opened, wait=True)
        end = sum(_sizes(opened, file))
        os.ftruncate(opened, end)
        while member:
            written = machine.write_at(opened, member, end)
            member, end = member[written:], end + written
        os.fsync(opened)
    finally:
        os.close(opened)


def _sizes(opened: int, file: Path) -> Iterator[int]:
    """Yield the sizes of the members, up to one that was cut off. Raises `KeepholdError` if anything else is there."""
    end, size = 0, os.fstat(opened).st_size
    while any(header := machine.read_at(opened, _HEADER.size, end)):  # a crash of the machine may leave zeros
        begin, fields = header[:4], header[10 : _HEADER.size - 8]
        if not (_BEGIN.startswith(begin) and _FIELD.startswith(fields)):  # to cut it off would delete handles
            raise _damaged(file, f"there is no handle at byte {end}")
        if len(header) < _HEADER.size:
            return
        length = _HEADER.unpack(header)[-1]
        if not length or end + length > size:
            return
        yield length
        end += length


def _damaged(file: Path, why: str) -> KeepholdError:
    right = "restore it from a backup, or move it away"
    return KeepholdError(f"`{file}` is damaged: {why}; {right}", code="store_unusable")


def archived(directory: Path, *, since: float = 0.0) -> Iterator[dict[str, Any]]:
    """Return the archived handles that stopped since then, each once, by the month in which they stopped."""
    seen: dict[str, None] = {}
    for file in sorted(directory.glob("????-??.jsonl.gz")):
        if file.name[:7] < time.strftime("%Y-%m", time.gmtime(since)):
            continue
        for line in _lines(file):
            if line["stopped"] >= since and line["uid"] not in seen:
                seen[line["uid"]] = None
                if len(seen) > _REMEMBERED:
                    del seen[next(iter(seen))]
                yield line


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    with file.open("rb") as opened:
        for size in _sizes(opened.fileno(), file):
            try:
                text = gzip.decompress(opened.read(size))
            except (OSError, EOFError, zlib.error) as error:
                raise _damaged(file, str(error)) from error
            yield from map(decode, text.splitlines())
