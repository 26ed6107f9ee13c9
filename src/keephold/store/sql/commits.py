"""Commits on their way to the database, and why one was not written."""

import asyncio
from collections.abc import Sequence
from typing import Any

from keephold.errors import KeepholdError
from keephold.listeners import Listeners
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


def tell(commits: Sequence[Commit], on_commit: Listeners[[]]) -> None:
    """Call back for settled commits, in order, and tell the listeners if one has events."""
    for commit in commits:
        try:
            if commit.error is None:
                commit.done(commit.results)
            else:
                commit.failed(commit.error)
        except Exception as error:  # the callbacks of later commits must run all the same
            complain("after a commit to the store", error)
    if on_commit and any(commit.told and commit.error is None for commit in commits):
        on_commit()


def complain(message: str, error: BaseException) -> None:
    """Report what nobody else would notice."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


def unavailable(why: str, *, uncertain: bool = False) -> KeepholdError:
    known = "whether it was written is not known" if uncertain else "nothing was written"
    return KeepholdError(f"the store cannot write at present, {known}: {why}", code="store_unavailable")


def not_storable(why: str) -> KeepholdError:
    """A value that no store can keep: a bug of the code that made it."""
    return KeepholdError(f"this cannot be stored: {why}", code="not_storable")
