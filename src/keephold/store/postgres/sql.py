"""The SQL of PostgreSQL's store: named queries, and the schema as numbered migrations."""

import re
from functools import lru_cache
from pathlib import Path

from keephold.store.sql import queries

_HERE = Path(__file__).parent
_MARK = re.compile(r"\?(\d*)")
_MADE = re.compile(r"^CREATE (TABLE|FUNCTION) (\w+)", re.MULTILINE)


@lru_cache(maxsize=4096)
def numbered(query: str) -> str:
    """Return the query with `$1` where it has `?` or `?1`."""
    place = 0

    def mark(found: re.Match[str]) -> str:
        nonlocal place
        place += 1
        return f"${found[1] or place}"

    return _MARK.sub(mark, query)


SQL = queries.queries(_HERE / "dialect.sql")


def migrations() -> dict[int, str]:
    """Return the schema: by number, in order, the script that leads to it from the one before."""
    return queries.migrations(_HERE / "schema")


def own_tables() -> list[str]:
    """Return the names of the store's tables."""
    return [name for kind, name in made() if kind == "TABLE"]


def made() -> list[tuple[str, str]]:
    """Return everything that the scripts make: TABLE or FUNCTION, and its name. The schema may have more."""
    return [pair for script in migrations().values() for pair in _MADE.findall(script)]
