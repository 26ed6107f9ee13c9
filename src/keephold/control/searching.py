"""Find handles by a text in their arguments or their output.

No store has an index for that: handles are read in the order of a list and looked at one after the other, so that the
newest are found at once. One search looks at a bounded number of handles, and says where the next one continues.
"""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from keephold.control.stored_output import stored_output
from keephold.handles.output import Output
from keephold.store.base import HandleQuery, Record, Store
from keephold.store.metadata import folded
from keephold.text import to_json, to_utf8

EXAMINED = 5000
"""The most handles that one search looks at."""
_PAGE = 100
_PIECE = 1 << 20
"""Bytes of an output that are looked at before the event loop runs."""


async def containing(
    store: Store, query: HandleQuery, text: str, output_here: Callable[[Record], Output | None]
) -> tuple[list[Record], str | None]:
    """Return handles of the query, at most `query.limit`, that contain the text; ASCII letters match in either case.

    `output_here` returns the output of a handle that this process has in memory. The other value is the `after` of the
    next search; None if there are no more handles."""
    needle, quoted = to_utf8(folded(text)), folded(to_json(text)[1:-1].decode())
    found: list[Record] = []
    after = query.after
    for _ in range(EXAMINED // _PAGE):
        page = await store.handles(replace(query, after=after, limit=_PAGE))
        for record in page:
            after = record.uid
            given = folded(to_json(record.arguments).decode())
            if quoted in given or await _has_printed(store, record, needle, output_here(record)):
                found.append(record)
                if len(found) == query.limit:
                    return found, after
        if len(page) < _PAGE:
            return found, None
        await asyncio.sleep(0)
    return found, after


async def _has_printed(store: Store, record: Record, needle: bytes, here: Output | None) -> bool:
    if here is not None:
        return await _contains(here, needle)
    kept = record.output
    if kept is not None and kept.total == len(kept.data):  # the usual case: all of it is in the row
        return needle in kept.data.lower()
    output = stored_output(store, record)
    if output is None:
        return False
    try:
        return await _contains(output, needle)
    finally:
        output.close()


async def _contains(output: Output, needle: bytes) -> bool:
    start, tail = 0, b""
    while start < output.total:
        piece = output.read(start, start + _PIECE)
        data = (b"" if piece.missing else tail) + piece.data.lower()
        if needle in data:
            return True
        start, tail = piece.end, data[-len(needle) :]
        if start < output.total:
            await asyncio.sleep(0)
    return False
