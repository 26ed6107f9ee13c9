"""Which store a URL names (Y1)."""

from pathlib import Path

from keephold.errors import KeepholdError
from keephold.extras import need
from keephold.store.base import Store


def open_store(url: str) -> Store:
    """Return the store that a URL names (Y1). Nothing is opened or made yet."""
    if url == "memory:":
        from keephold.store.memory import MemoryStore  # only here: commands that read a store start sooner

        return MemoryStore()
    kind, _, rest = url.partition("://")
    path = rest.removeprefix("/")
    if kind == "sqlite" and rest.startswith("/") and path not in ("", ":memory:"):
        from keephold.store.sqlite import SqliteStore

        return SqliteStore(Path(path).expanduser())
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


def _postgres(url: str) -> Store:
    from keephold.store.postgres.address import address

    where = address(url)
    need("postgres", "a PostgreSQL store", "asyncpg", "greenlet")
    from keephold.store.postgres.store import PostgresStore

    return PostgresStore(where)
