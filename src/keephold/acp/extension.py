"""The words that both sides of keephold's ACP use: the version of the protocol, and what is added to it (X2)."""

from collections.abc import Mapping
from typing import Any

PROTOCOL_VERSION = 1
TURN_COMPLETE = "keephold/turnComplete"
"""In `_meta` of capabilities: that the end of a turn is told, or how it is to be."""
BACKGROUND = "keephold/background"
"""In `_meta` of an update, with the value true: it belongs to no turn."""


def table(value: Any) -> dict[str, Any]:
    """A value that should be an object; an empty one if it is not."""
    return value if isinstance(value, dict) else {}


def is_background(params: Mapping[str, Any]) -> bool:
    """Whether the update of these params belongs to no turn; either of them may say so."""
    metas = (table(params.get("_meta")), table(table(params.get("update")).get("_meta")))
    return any(meta.get(BACKGROUND) is True for meta in metas)
