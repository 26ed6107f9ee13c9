"""`keephold completion`: the script by which a shell completes commands, options, and names that are in the store.

A person waits for a completion with a finger on the key. So the store's file is read as it is, by the SQLite that
comes with Python, and the configuration is not checked. Whatever goes wrong, nothing is completed and nothing is said.
"""

import sqlite3
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from keephold.cli.parameters import NAME
from keephold.cli.store import SQLITE, default_store

_RECENT = 20_000
"""So many of the newest handles are looked through: a large store is no reason to wait."""
_OFFERED = 500
_LIVE_ONLY = frozenset({"abort", "attach", "send", "wait"})
"""Commands that nothing can be gained from with a handle that has stopped."""

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
"""By the name of the parameter that takes such a name; those for conversations have a type of their own."""


@click.command()
@click.argument("SHELL", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which a SHELL completes what is typed: commands, options, handles, conversations, tools."""
    from keephold.cli import main

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    click.echo(kind(main, {}, "keephold", "_KEEPHOLD_COMPLETE").source())


def complete_names(command: click.Command) -> None:
    """Let the parameters of a command that take names be completed from the store."""
    for parameter in command.params:
        query = _CONVERSATIONS if parameter.type is NAME else _QUERIES.get(parameter.name or "")
        if query is not None:
            parameter.type = _Name(query, live=command.name in _LIVE_ONLY)


class _Name(click.types.StringParamType):
    """A name that is in the store."""

    def __init__(self, query: str, *, live: bool) -> None:
        self._query = query
        self._live = live

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            wanted = {"recent": _RECENT, "begun": incomplete, "live": self._live, "offered": _OFFERED}
            file = _store(ctx.params.get("store"))
            found: dict[str, str] = {}
            for name, about in _rows(file, self._query, wanted):
                found.setdefault(name, about)
            return [CompletionItem(name, help=about or None) for name, about in found.items() if name.isprintable()]
        except Exception:  # what is typed can still be typed to its end
            return []


def _rows(file: Path, query: str, wanted: dict[str, object]) -> Iterator[tuple[str, str]]:
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=0.05)
    try:
        yield from connection.execute(query, wanted)
    finally:
        connection.close()


def _store(url: str | None) -> Path:
    """The file that the command would look at. `url` is what --store or the variable says."""
    url = url or next(_configured(), None) or default_store()
    return Path(url.removeprefix(SQLITE)).expanduser()


def _configured() -> Iterator[str]:
    """What the nearest keephold.toml says."""
    for directory in (Path.cwd(), *Path.cwd().parents):
        file = directory / "keephold.toml"
        if file.is_file():
            url = tomllib.loads(file.read_text()).get("store", {}).get("url")
            if url is not None:
                yield f"{SQLITE}{directory / Path(url.removeprefix(SQLITE)).expanduser()}"
            return
