"""What was said in a conversation, for people: lines of its transcript as messages of who said what.

Lines are what the model layer wrote (`agent/transcript.py`). What is not understood is shown as the JSON it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keephold.turn.notifications import AUTOMATIC

SHORT = 700
"""Characters of a message that is shown at once; of a longer one, its beginning."""


@dataclass(frozen=True)
class Message:
    """One thing that was said."""

    who: str
    """`user`, `assistant`, `call`, `result`, `news`, or `note`."""
    title: str
    content: Any
    """A text, or data."""
    line: int
    at: float
    wrong: bool = False

    @property
    def long(self) -> bool:
        """Whether it is folded: results always are, unless they are short."""
        return not isinstance(self.content, str) or len(self.content) > SHORT or self.content.count("\n") > 12


def messages(lines: Sequence[Mapping[str, Any]]) -> list[Message]:
    """All that was said in these lines."""
    return [message for line in lines for message in _messages(line)]


def _messages(line: Mapping[str, Any]) -> Iterator[Message]:
    number, at, body = line["line"], line["at"], line["body"]
    match line["kind"], body:
        case (("request" | "response"), {"parts": list(parts)}):
            for part in parts:
                if isinstance(part, Mapping):
                    yield from _part(part, number, at)
        case "summary", {"text": text}:
            yield Message("note", "What was said before, in short", text, number, at)
        case "ended", {"stop_reason": reason, **rest}:
            error = rest.get("error")
            yield Message("note", f"The turn ended: {reason}", error or "", number, at, wrong=error is not None)
        case kind, _:
            yield Message("note", str(kind), body, number, at)


def _part(part: Mapping[str, Any], number: int, at: float) -> Iterator[Message]:
    content, name = part.get("content"), part.get("tool_name")
    match part.get("part_kind"):
        case "user-prompt":
            text = _joined(content)
            automatic = text.startswith(AUTOMATIC)
            who, title = ("news", "Told by keephold") if automatic else ("user", "User")
            yield Message(who, title, text, number, at)
        case "text" if content:
            yield Message("assistant", "Assistant", str(content), number, at)
        case "thinking" if content:
            yield Message("note", "Thought", str(content), number, at)
        case "tool-call":
            yield Message("call", str(name), part.get("args"), number, at)
        case "tool-return":
            yield Message("result", str(name), content, number, at)
        case "retry-prompt":
            yield Message("result", str(name or "Again"), content, number, at, wrong=True)
        case "system-prompt":
            yield Message("note", "Instructions", str(content), number, at)


def _joined(content: Any) -> str:
    """What was said in text; of other things, only that they were there."""
    if isinstance(content, str):
        return content
    pieces = content if isinstance(content, list) else []
    return "\n".join(piece if isinstance(piece, str) else "[…]" for piece in pieces)
