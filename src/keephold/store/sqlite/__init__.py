"""The store in a SQLite file."""

from keephold.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
