"""`keephold completion`: the script by which a shell completes commands, options, and names from the store.

Completion must be fast, so it reads the store's file with Python's own SQLite and does not check the configuration.
A configuration that is not trusted is ignored (K7).
If anything fails, it completes nothing and prints nothing.
"""

import re
import sqlite3
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from keephold.cli.parameters import NAME
from keephold.cli.store import SQLITE, default_store
from keephold.config.trust import find_usable

_RECENT = 20_000
"""How many of the newest handles are searched, so that a large store is not slow."""
_OFFERED = 500
_PLAIN = re.compile(r"[A-Za-z0-9._:@%+,/][A-Za-z0-9._:@%+,/-]*")
"""Names that are one word in every shell, and no option. Models choose names, and bash inserts them without quotes: any
other could run as code."""
_LIVE_ONLY = frozenset({"abort", "attach", "send", "wait"})
"""Commands that do nothing with a stopped handle."""

_HANDLES = """
    SELECT id, about FROM (
        SELECT number, id, tool || ', ' || state_name AS about FROM handles WHERE stateful AND stopped_at IS NULL
        UNION
        SELECT number, id, tool || ', ' || state_name FROM handles
        WHERE NOT :live AND stateful AND number > (SELECT max(number) FROM handles) - :recent
    )
    WHERE substr(id, 1, length(:begun)) = :begun ORDER BY number DESC LIMIT :offered
"""
_COLUMN = """
    SELECT DISTINCT {0}, '' FROM handles
    WHERE number > (SELECT max(number) FROM handles) - :recent AND substr({0}, 1, length(:begun)) = :begun
    ORDER BY 1 LIMIT :offered
"""
_CONVERSATIONS = _COLUMN.format("conversation")
_QUERIES = {"id": _HANDLES, "tool": _COLUMN.format("tool")}
"""By the name of the parameter; conversations are recognised by their parameter type."""


@click.command()
@click.argument("SHELL", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which a SHELL completes commands, options, handles, conversations and tools."""
    from keephold.cli import main

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    click.echo(kind(main, {}, "keephold", "_KEEPHOLD_COMPLETE").source())


def complete_names(command: click.Command) -> None:
    """Complete the parameters of a command that take names from the store."""
    for parameter in command.params:
        query = _CONVERSATIONS if parameter.type is NAME else _QUERIES.get(parameter.name or "")
        if query is not None:
            parameter.type = _StoredName(query, live=command.name in _LIVE_ONLY)


class _StoredName(click.types.StringParamType):
    def __init__(self, query: str, *, live: bool) -> None:
        self._query = query
        self._live = live

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            wanted = {"recent": _RECENT, "begun": incomplete, "live": self._live, "offered": _OFFERED}
            found: dict[str, str] = {}
            url = ctx.params.get("store") or _configured() or default_store()
            for name, about in _rows(Path(url.removeprefix(SQLITE)).expanduser(), self._query, wanted):
                found.setdefault(name, about)
            return [CompletionItem(name, help=about or None) for name, about in found.items() if _PLAIN.fullmatch(name)]
        except Exception:  # the user can still type the rest
            return []


def _rows(file: Path, query: str, wanted: dict[str, object]) -> Iterator[tuple[str, str]]:
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=0.05)
    try:
        yield from connection.execute(query, wanted)
    finally:
        connection.close()


def _configured() -> str | None:
    found, _ = find_usable(Path.cwd())
    url = None if found is None else tomllib.loads(found.data.decode()).get("store", {}).get("url")
    if found is None or url is None:
        return None
    return f"{SQLITE}{found.path.parent / Path(url.removeprefix(SQLITE)).expanduser()}"
