"""The SQL of SQLite's store: named queries, and the schema as numbered migrations."""

from pathlib import Path

from keephold.store.sql import queries

_HERE = Path(__file__).parent

APPLICATION_ID = 0x686C6466
"""The application id in the header of every store: `hldf`."""

SQL = queries.queries(_HERE / "dialect.sql")


def migrations() -> dict[int, str]:
    """Return the schema: by number, in order, the script that leads to it from the one before."""
    return queries.migrations(_HERE / "schema")
