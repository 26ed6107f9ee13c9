"""The store in a SQLite file. Commands that only read it (`ReadOnlyStore`) do not import the part that writes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keephold.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]


def __getattr__(name: str) -> object:
    if name != "SqliteStore":
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    from keephold.store.sqlite.store import SqliteStore

    return SqliteStore
