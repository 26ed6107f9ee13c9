"""What the model expects: replies that may be worded or timed in more than one way."""

from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Reply:
    """What a call or a wait must be answered with: one of these, at this time."""

    at: float
    accept: list[Any]


class Says:
    """Equal to every text that contains this one; the empty one to every text: wording is not what is simulated."""

    def __init__(self, part: str = "") -> None:
        self._part = part

    def __eq__(self, other: object) -> bool:
        return self._part == other._part if isinstance(other, Says) else isinstance(other, str) and self._part in other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"…{self._part}…"


class OneOf:
    """Equal to each of these texts."""

    def __init__(self, texts: frozenset[str]) -> None:
        self._texts = texts

    def __eq__(self, other: object) -> bool:
        return self._texts == other._texts if isinstance(other, OneOf) else other in self._texts

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return " or ".join(sorted(self._texts))
