"""What was said in the conversations of the memory store, and about them."""

from collections.abc import Mapping
from heapq import nlargest
from typing import Any

from msgspec.structs import replace

from holdfast.store import base
from holdfast.store.base import ConversationRow, Line
from holdfast.store.memory.tables import Tables
from holdfast.store.metadata import holds, merged


class Transcripts(Tables):
    """The operations on them, and the reads."""

    def __init__(self) -> None:
        super().__init__()
        self._descriptions: dict[str, ConversationRow] = {}
        self._lines: dict[str, list[Line]] = {}
        """By conversation, oldest first: the one of number 1 is in place 0."""

    def _said(self, op: base.Said) -> int:
        lines = self._lines.get(op.conversation)
        if lines is None:
            lines = []
            self._put(self._lines, op.conversation, lines)
        before = len(lines)
        if self._undo is not None:
            self._undo.append((lines.__delitem__, slice(before, None)))
        lines += [Line(number, op.turn, *line, op.at) for number, line in enumerate(op.lines, before + 1)]
        row = self._at(op.conversation, op.at)
        self._put(self._descriptions, op.conversation, replace(row, lines=len(lines)))
        return len(lines)

    def _described(self, op: base.Described) -> None:
        row = self._at(op.conversation, op.at)
        self._put(self._descriptions, op.conversation, replace(row, metadata=merged(row.metadata, op.metadata)))

    def _forgotten(self, op: base.Forgotten) -> None:
        self._drop(self._descriptions, op.conversation)
        self._drop(self._lines, op.conversation)

    def _at(self, id: str, at: float) -> ConversationRow:
        """The conversation, updated then; a new one if there is none."""
        row = self._descriptions.get(id)
        return ConversationRow(id, at, at, {}, 0) if row is None else replace(row, updated=max(row.updated, at))

    async def transcript(self, conversation: str, after: int = 0, limit: int = 10_000) -> list[Line]:
        start = max(after, 0)
        return self._lines.get(conversation, [])[start : start + limit]

    async def conversation(self, id: str) -> ConversationRow | None:
        return self._descriptions.get(id)

    async def conversations(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        before: tuple[float, str] | None = None,
        limit: int = 100,
    ) -> list[ConversationRow]:
        chosen = (
            row
            for row in self._descriptions.values()
            if (before is None or (row.updated, row.id) < before)
            and (metadata is None or holds(row.metadata, metadata))
        )
        return nlargest(limit, chosen, key=lambda row: (row.updated, row.id))
