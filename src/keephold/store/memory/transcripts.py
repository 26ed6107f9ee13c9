"""What was said in the conversations of the memory store, and about them."""

from collections.abc import Mapping
from heapq import nlargest, nsmallest
from typing import Any

from msgspec.structs import replace

from keephold.handles.state import Stopped
from keephold.store import base
from keephold.store.base import ConversationRow, ConversationSummary, Record, TranscriptLine, made_at
from keephold.store.memory.tables import Tables
from keephold.store.metadata import holds, merged


class Transcripts(Tables):
    """The operations on them, and the reads."""

    def __init__(self) -> None:
        super().__init__()
        self._descriptions: dict[str, ConversationRow] = {}
        self._lines: dict[str, list[TranscriptLine]] = {}
        """By conversation, oldest first: the one of number 1 is in place 0."""

    def _said(self, op: base.TranscriptAppended) -> int:
        lines = self._lines.get(op.conversation)
        if lines is None:
            lines = []
            self._put(self._lines, op.conversation, lines)
        before = len(lines)
        if self._undo is not None:
            self._undo.append((lines.__delitem__, slice(before, None)))
        lines += [TranscriptLine(number, op.turn, *line, op.at) for number, line in enumerate(op.lines, before + 1)]
        row = self._at(op.conversation, op.at)
        self._put(self._descriptions, op.conversation, replace(row, lines=len(lines)))
        return len(lines)

    def _described(self, op: base.Described) -> None:
        row = self._at(op.conversation, op.at)
        self._put(self._descriptions, op.conversation, replace(row, metadata=merged(row.metadata, op.metadata)))

    def _forgotten(self, op: base.Forgotten) -> bool:
        self._history.translate()
        known = op.conversation in self._descriptions
        self._drop(self._descriptions, op.conversation)
        self._drop(self._lines, op.conversation)
        return known

    def _at(self, id: str, at: float) -> ConversationRow:
        """The conversation, updated then; a new one if there is none."""
        row = self._descriptions.get(id)
        return ConversationRow(id, at, at, {}, 0) if row is None else replace(row, updated=max(row.updated, at))

    async def transcript(self, conversation: str, after: int = 0, limit: int = 10_000) -> list[TranscriptLine]:
        start = max(after, 0)
        return self._lines.get(conversation, [])[start : start + limit]

    async def conversation(self, id: str) -> ConversationRow | None:
        return self._descriptions.get(id)

    async def summaries(self, *, after: str = "", limit: int = 1000) -> list[ConversationSummary]:
        have_handles = {record.conversation for record in self._records.values()}
        names = have_handles | self._history.turns.keys() | self._descriptions.keys()
        chosen = nsmallest(limit, (each for each in names if each > after))
        handles: dict[str, list[Record]] = {each: [] for each in chosen}
        for record in self._records.values():
            if record.conversation in handles:
                handles[record.conversation].append(record)
        return [self._summary(each, handles[each]) for each in chosen]

    def _summary(self, id: str, records: list[Record]) -> ConversationSummary:
        spawned = [record for record in records if record.stateful]
        live = sum(type(record.state) is not Stopped for record in spawned)
        made = max((made_at(record.uid) for record in records), default=0.0)
        described = self._descriptions.get(id)
        turn = next(reversed(self._history.turns.get(id, {}).values()), None)
        turned = 0.0 if turn is None else turn.ended_at or turn.began_at
        updated = max(made, turned, 0.0 if described is None else described.updated)
        return ConversationSummary(id, len(spawned), live, updated, None if described is None else described.metadata)

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
