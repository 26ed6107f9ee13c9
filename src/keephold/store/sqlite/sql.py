"""The SQL of the store, read once: named queries, and the schema as numbered migrations."""

import re
from collections.abc import Mapping
from pathlib import Path

_HERE = Path(__file__).parent
_NAMED = re.compile(r"^-- name: (\w+)\n((?:--.*\n)+)((?:(?!-- ).*(?:\n|\Z))+)", re.MULTILINE)

APPLICATION_ID = 0x686C6466
"""The application id in the header of every store: `hldf`."""


def queries(text: str) -> dict[str, str]:
    """Return the queries of a file by their names. Each has a line that says what it is for."""
    found = {name: " ".join(body.split()).removesuffix(";") for name, _, body in _NAMED.findall(text)}
    assert len(found) == text.count("-- name: "), "a query without a description, or two of one name"
    return found


def migrations() -> dict[int, str]:
    """Return the schema: by number, in order, the script that leads to it from the one before."""
    return {int(file.stem): file.read_text("utf-8") for file in sorted((_HERE / "schema").glob("[0-9]*.sql"))}


SQL: Mapping[str, str] = queries("".join((_HERE / file).read_text("utf-8") for file in ("queries.sql", "reads.sql")))
RECORDS = {name.removeprefix("where_"): f"{SQL['records']} {SQL[name]}" for name in SQL if name.startswith("where_")}
"""The queries that return handles, by their conditions."""
