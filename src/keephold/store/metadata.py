"""How every store matches and changes metadata, and matches text."""

from collections.abc import Mapping
from typing import Any

_FOLDED = {ord(upper): upper.lower() for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


def folded(text: str) -> str:
    """Return the text as it is searched for: ASCII letters in lower case, as SQLite makes them."""
    return text.translate(_FOLDED)


def merged(metadata: Mapping[str, Any] | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata with these changes; a key whose value is None is removed."""
    removed = {key for key, value in changes.items() if value is None}
    return {key: value for key, value in {**(metadata or {}), **changes}.items() if key not in removed}


def holds(metadata: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    """Whether the metadata has all these keys with these values."""
    return all(key in (metadata or ()) and same(metadata[key], value) for key, value in wanted.items())  # type: ignore[index]


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON, where true is not 1, and 1.0 is."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
