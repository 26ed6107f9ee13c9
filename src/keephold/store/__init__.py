"""The store: the rows and operations that survive a process, and the store that a URL names (Y1)."""

from pathlib import Path
from typing import TYPE_CHECKING

from keephold.errors import KeepholdError
from keephold.extras import need

if TYPE_CHECKING:
    from keephold.store.base import Store


def open_store(url: str) -> "Store":
    """Return the store that a URL names (Y1). Nothing is opened or made yet."""
    if url == "memory:":
        from keephold.store.memory import MemoryStore  # only here: commands that read a store start sooner

        return MemoryStore()
    if (file := sqlite_file(url)) is not None:
        from keephold.store.sqlite.store import SqliteStore

        return SqliteStore(file)
    kind = url.partition("://")[0]
    if kind in ("postgresql", "postgres"):
        return _postgres(url)
    right = (
        "use `memory:`, `sqlite:///work.db` (`sqlite:////path/to/work.db` for an absolute path), or "
        "`postgresql://user@host/database`"
    )
    # A URL may hold a password, so it is never repeated.
    if kind == "sqlite":
        wrong = "a `sqlite:` store is a file, named after three slashes"
    else:
        wrong = "that is not the URL of a store"
    raise KeepholdError(f"{wrong}; {right}", code="unsupported_store")


def sqlite_file(url: str) -> Path | None:
    """Return the file that the URL of a SQLite store names; None for any other URL."""
    kind, _, rest = url.partition("://")
    path = rest.removeprefix("/")
    named = kind == "sqlite" and rest.startswith("/") and path not in ("", ":memory:")
    return Path(path).expanduser() if named else None


def _postgres(url: str) -> "Store":
    from keephold.store.postgres.address import address

    where = address(url)
    need("postgres", "a PostgreSQL store", "asyncpg", "greenlet")
    from keephold.store.postgres.store import PostgresStore

    return PostgresStore(where)
