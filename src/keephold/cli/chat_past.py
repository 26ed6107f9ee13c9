"""Where a conversation stands that is taken up again: what was said last, in few lines."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from keephold.cli.chat_lines import Piece, user_line
from keephold.cli.printing import printable
from keephold.store.base import Line
from keephold.turn.notifications import AUTOMATIC

_LINES, _CHARACTERS = 10, 1000
"""Of one thing that was said: more of it than that tells nobody where they are."""


def last_exchange(lines: Sequence[Line]) -> list[Piece]:
    """The last thing that the user said and the last that was answered to it, clipped; nothing if nothing was said."""
    answer = ""
    for line in reversed(lines):
        if line.kind not in ("request", "response"):
            continue
        parts = msgspec.json.decode(line.body).get("parts", ())
        if line.kind == "response":
            texts = (part["content"] for part in parts if part.get("part_kind") == "text")
            answer = answer or "".join(texts)
        elif said := "\n".join(_said(parts)):
            return [user_line(_clipped(said)), *_answered(answer)]
    return _answered(answer)


def _said(parts: Iterable[dict[str, Any]]) -> list[str]:
    """What a person said in a request; of other things than text, only that they were there."""
    texts = []
    for part in parts:
        content = part.get("content")
        if part.get("part_kind") == "user-prompt" and content and not str(content).startswith(AUTOMATIC):
            pieces = [content] if isinstance(content, str) else content
            texts += [piece if isinstance(piece, str) else "[…]" for piece in pieces]
    return texts


def _answered(text: str) -> list[Piece]:
    return [Piece("line", _clipped(text), whole=True)] if text.strip() else []


def _clipped(text: str) -> str:
    """The beginning of a text that can be printed."""
    text = printable(text).strip()
    kept = "\n".join(text[:_CHARACTERS].splitlines()[:_LINES])
    return kept if kept == text else f"{kept.rstrip()} …"
