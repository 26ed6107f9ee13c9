"""Named queries: the files that have them, read once."""

import re
from collections.abc import Mapping
from pathlib import Path

from keephold.errors import KeepholdError

_HERE = Path(__file__).parent
_NAMED = re.compile(r"^-- name: (\w+)\n((?:--.*\n)+)((?:(?!-- ).*(?:\n|\Z))+)", re.MULTILINE)
_PART = re.compile(r"\{(\w+)\}")


def named(text: str) -> dict[str, str]:
    """Return the queries of a file by their names. Each has a line that says what it is for."""
    found = {name: " ".join(body.split()).removesuffix(";") for name, _, body in _NAMED.findall(text)}
    assert len(found) == text.count("-- name: "), "a query without a description, or two of one name"
    return found


def queries(dialect: Path) -> Mapping[str, str]:
    """Return the queries of a database: the shared ones, and those of its own file, which come first.

    `{name}` in a query stands for another one. A query `where_x` completes `records`: both together are `records_x`.
    """
    shared = named("".join((_HERE / file).read_text("utf-8") for file in ("writes.sql", "reads.sql")))
    found = {**shared, **named(dialect.read_text("utf-8"))}
    whole = {name: _PART.sub(lambda part: found[part[1]], text) for name, text in found.items()}
    conditions = [name for name in whole if name.startswith("where_")]
    return whole | {
        f"records_{name.removeprefix('where_')}": f"{whole['records']} {whole[name]}" for name in conditions
    }


def invariants() -> dict[str, str]:
    """Return the queries that find what must never be in a store, by the name of the rule."""
    return named((_HERE / "invariants.sql").read_text("utf-8"))


def migrations(schema: Path) -> dict[int, str]:
    """Return a schema: by number, in order, the script that leads to it from the one before."""
    return {int(file.stem): file.read_text("utf-8") for file in sorted(schema.glob("[0-9]*.sql"))}


def unusable(message: str) -> KeepholdError:
    return KeepholdError(message, code="store_unusable")


def check_schema(store: str, found: int, newest: int, *, current: bool = False) -> int:
    """Return the schema's number. Raises `KeepholdError` if a newer keephold made it or, with `current`, an older
    one."""
    if found > newest:
        raise unusable(f"store `{store}` has schema {found}, this keephold knows {newest}; use a newer keephold")
    if current and found < newest:
        raise unusable(
            f"store `{store}` has schema {found} of an older keephold; this command only reads, and changed nothing. "
            f"End the programs that use the store, then upgrade it to schema {newest} with `keephold store migrate`"
        )
    return found


def described(scripts: Mapping[int, str]) -> list[str]:
    """Return what the comment at the beginning of each script says."""
    return [f"schema {number}: {_first_sentence(script)}" for number, script in scripts.items()]


def _first_sentence(script: str) -> str:
    lines = []
    for line in script.splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").strip())
    return " ".join(lines).partition(". ")[0].removesuffix(".").partition(" (")[0]
