"""`read_output`: the kept output of a handle or call, piece by piece or by a literal pattern (O4, O5).

The kept bytes are all that the call emitted and, once it has stopped, its result after that; for a command the two are
one. Offsets count these bytes. A piece is never larger than a reply may be.

A terminal's output is shown as text (`rendering.py`). A pattern is searched for in the bytes; if its match was
overwritten, its line is shown as it was printed.
"""

import asyncio
import re
from typing import Any

import msgspec

from keephold.errors import ToolError
from keephold.handles.handle import Handle
from keephold.handles.output import Output, Piece, unfinished
from keephold.handles.rendering import render_piece
from keephold.handles.state import Failure, Ok, Reply, Stopped
from keephold.text import strip_controls, to_json, to_utf8
from keephold.tools.base import Tool
from keephold.tools.call import Call
from keephold.tools.function import tool

_SEARCH_STEP = 8 << 20
"""A search lets others run after this many bytes."""
_MAX_MATCHES = 100

DESCRIPTION = (
    "Read the kept output of a handle or a call. Use it when a reply says that output was cut. It does not wait for "
    "new output. Returns `content` or `matches`, and `end`, the next `offset`, of `total` bytes."
)
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "Handle ID; or give `call_id`."},
        "call_id": {"type": "string", "description": "ID of a tool call, instead of `id`."},
        "offset": {"type": "integer", "minimum": 0, "description": "First byte to read. Default: 0."},
        "limit": {
            "type": "integer",
            "minimum": 1,
            "description": "Bytes to read at most. Default: what fits into a reply.",
        },
        "from_end": {
            "type": "boolean",
            "description": "Count `offset` back from the end; alone: the last part. Default: false.",
        },
        "pattern": {
            "type": "string",
            "minLength": 1,
            "description": "Return only lines that contain this literal text.",
        },
    },
}


def read_output_tool() -> Tool:
    @tool(description=DESCRIPTION, parameters=PARAMETERS)
    async def read_output(
        call: Call,
        id: str | None = None,
        call_id: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
        from_end: bool = False,
        pattern: str | None = None,
    ) -> Reply:
        if (id is None) == (call_id is None):
            raise ToolError("give `id` (a handle) or `call_id` (a call): exactly one of them", code="invalid_arguments")
        handles = call.handles
        handle = await handles.find(id) if id is not None else await handles.find_call(call_id or "")
        kept = KeptBytes(handle)
        view = handle.tool.output.model
        cap = view.limit * (4 if view.mode == "tokens" else 1)
        size = min(limit or cap, cap)
        start = _start(kept.total, offset, size, from_end)
        if pattern is None:
            answer = piece_of(kept, start, size, view.max_lines, last=from_end and offset is None)
        else:
            answer = await matches_in(kept, pattern.encode(), start, size)
        named = {"id": id} if id is not None else {"call_id": call_id}
        text = msgspec.json.encode(named | answer).decode()
        return Reply(text, text)

    return read_output


class KeptBytes:
    """The kept bytes of a call: its output, then its result unless the output holds it already."""

    why = ""
    """Why bytes are missing, if that is not due to the tool's `max_output`."""

    def __init__(self, handle: Handle) -> None:
        self._output: Output | None = None if handle.withheld else handle.output
        self._printed = 0 if self._output is None else self._output.total
        self._result = _result(handle)
        self.total = self._printed + len(self._result)
        if self._output is not None and self._output.failure is not None:
            self.why = f" ({self._output.failure})"

    def read(self, start: int, stop: int) -> Piece:
        if self._output is not None and start < self._printed:
            piece = self._output.read(start, min(stop, self._printed))
            if piece.missing or piece.end < self._printed:
                return piece
            data = piece.data + self._result[: max(0, stop - self._printed)]
            return Piece(data, start, start + len(data))
        data = self._result[start - self._printed : stop - self._printed]
        return Piece(data, start, start + len(data))

    def show(self, data: bytes, start: int) -> str:
        """Return bytes that were read from `start` as text."""
        if self._output is None or not self._output.terminal:
            return _plain(data)
        printed = max(0, self._printed - start)
        return render_piece(self._output, data[:printed], start) + _plain(data[printed:])

    def lines(self, data: bytes) -> list[bytes]:
        """Return the bytes line by line: in a terminal a carriage return does not end a line."""
        terminal = self._output is not None and self._output.terminal
        return re.findall(rb"[^\n]*\n|[^\n]+", data) if terminal else data.splitlines(keepends=True)


def _plain(data: bytes) -> str:
    return strip_controls(data.decode(errors="replace"))


def _result(handle: Handle) -> bytes:
    if not isinstance(handle.state, Stopped):
        return b""
    match handle.state.outcome:
        case Ok(Reply(result)):
            return to_utf8(result)
        case Ok(str() as value):
            return to_utf8(value)
        case Ok(value):
            return to_json(value)
        case Failure(message) if handle.output is None or _adds_to_output(handle.state, handle.state.outcome):
            return to_utf8(message)
    return b""


def _adds_to_output(state: Stopped, error: Failure) -> bool:
    """Whether the tool failed with a message of its own; that of a failed command is its exit, not its output."""
    return state.ended_by == "self" and error.code != "command_failed"


def _start(total: int, offset: int | None, size: int, from_end: bool) -> int:
    if from_end:
        return max(0, total - (size if offset is None else offset))
    return min(offset or 0, total)


def piece_of(kept: KeptBytes, start: int, size: int, max_lines: int | None, *, last: bool) -> dict[str, Any]:
    """Return the bytes from `start` on, within both caps. With `last`, the end is kept, so lines at the start are
    dropped.
    """
    piece = kept.read(start, min(start + size, kept.total))
    if piece.missing:
        return {
            "offset": start,
            "end": piece.end,
            "total": kept.total,
            "missing": piece.missing,
            "content": f"{piece.missing} bytes from offset {start} were not kept{kept.why}; output continues at "
            f"{piece.end}.",
        }
    lines = kept.lines(piece.data)
    data = b"".join(lines[-max_lines:] if last and max_lines is not None else lines[:max_lines])
    if last:
        start = piece.end - len(data)
    if start + len(data) < kept.total and len(data) > 4:
        data = data[: len(data) - unfinished(data)]
    return {"offset": start, "end": start + len(data), "total": kept.total, "content": kept.show(data, start)}


async def matches_in(kept: KeptBytes, pattern: bytes, start: int, size: int) -> dict[str, Any]:
    """Return lines with the pattern, from `start` on, until they fill a reply; `end` is where the search continues."""
    matches: list[dict[str, Any]] = []
    missing = 0
    at = start
    while at < kept.total and size >= 0:
        piece = kept.read(at, min(at + _SEARCH_STEP, kept.total))
        missing += piece.missing
        while (found := piece.data.find(pattern, at - piece.start)) >= 0:
            line, end = _line(kept, piece.start + found, piece.start + found + len(pattern), size)
            size -= len(line)
            if matches and (size < 0 or len(matches) == _MAX_MATCHES):
                size = -1
                break
            shown = kept.show(line, end - len(line))
            shown = shown if pattern.decode() in shown else _plain(line)
            matches.append({"offset": piece.start + found, "line": shown})
            at = end
        else:
            # The pattern may begin at the end of this piece; the next one begins there.
            last = piece.missing or piece.end >= kept.total
            at = max(at, piece.end if last else max(piece.start + 1, piece.end - len(pattern) + 1))
        await asyncio.sleep(0)
    answer = {"offset": start, "end": min(at, kept.total), "total": kept.total, "matches": matches}
    return answer | {"missing": missing} if missing else answer


def _line(kept: KeptBytes, start: int, stop: int, size: int) -> tuple[bytes, int]:
    """Return the line around a match, or `size` bytes of it, and where the search continues."""
    earliest = max(0, start - size // 2)
    piece = kept.read(earliest, start)
    if piece.missing:
        piece = kept.read(piece.end, start)
    before = piece.data[piece.data.rfind(b"\n") + 1 :]
    after = kept.read(start, max(stop, start + size - len(before))).data
    end = after.find(b"\n", stop - start)
    rest = after if end < 0 else after[:end]
    return before + rest, start + len(rest)
