"""Commits on their way to the database, and why one was not written."""

from collections.abc import Sequence
from typing import Any

from keephold.errors import KeepholdError
from keephold.store.base import Done, Failed, Op


class Commit:
    """The arguments of `Store.commit`, and the result."""

    __slots__ = ("done", "error", "failed", "keep", "ops", "results", "told")

    def __init__(self, ops: Sequence[Op], done: Done, failed: Failed, keep: bool) -> None:
        self.ops, self.done, self.failed, self.keep = ops, done, failed, keep
        self.results: Sequence[Any] = ()
        self.error: KeepholdError | None = None
        self.told = False
        """Whether it, or one that was written with it, has events."""


def unavailable(why: str, *, uncertain: bool = False) -> KeepholdError:
    known = "whether it was written is not known" if uncertain else "nothing was written"
    return KeepholdError(f"the store cannot write at present, {known}: {why}", code="store_unavailable")


def not_storable(why: str) -> KeepholdError:
    """A value that no store can keep: a bug of the code that made it."""
    return KeepholdError(f"this cannot be stored: {why}", code="not_storable")
