"""The limits of calls, batches and conversations (K6), each with an error that names it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one call, batch or conversation: `[limits]` in the configuration."""

    arguments_bytes: int = 1024 * 1024
    line_bytes: int = 16 * 1024 * 1024
    batch_calls: int = 1000
    live_handles: int = 10_000
    open_questions: int = 64
    nesting: int = 64
    disk: int = 10 * 1024**3
    """Bytes of stored output and results."""
    agent_depth: int = 3
    """How deep agents may start agents."""


def nested_deeper(value: Any, levels: int) -> bool:
    """Return whether JSON is nested deeper than this."""
    level = [value]
    for _ in range(levels + 1):
        inside = [part for part in level if isinstance(part, (dict, list))]
        if not inside:
            return False
        level = [part for each in inside for part in (each.values() if isinstance(each, dict) else each)]
    return True
