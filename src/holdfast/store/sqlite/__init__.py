"""The store in a SQLite file."""

from holdfast.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
