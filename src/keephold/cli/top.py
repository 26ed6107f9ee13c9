"""`keephold top`: watch handles live. The screen needs `keephold[tui]`; `--json` does not."""

import asyncio
import os
import sys

import click

from keephold.cli.printing import print_json
from keephold.cli.store import Where, where_options
from keephold.extras import need
from keephold.platforms import ENDS, machine
from keephold.store.postgres.address import shown


@click.command()
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the handles, and exit.")
def top(where: Where, as_json: bool) -> None:
    """Watch handles live and act on them. Handles that need an answer come first.

    \b
    Enter  show the output, live            /  filter
    r      answer its question              s  change the order
    a      abort it                         g  group by conversation
    t      take over its terminal           e  show stopped handles
    q      quit
    """
    if as_json:
        print_json(asyncio.run(_snapshot(where)))
        return
    need("tui", "the screen of `keephold top` (not `--json`, and not `keephold ps`)", "textual")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("`keephold top` needs a terminal; `--json` prints what it would show")
    sys.exit(asyncio.run(_watch(where)))


async def _snapshot(where: Where) -> dict[str, object]:
    from keephold.cli.top_source import Model, open_source

    async with open_source(where) as source:
        model = Model(source)
        await model.load()
        return model.snapshot()


async def _watch(where: Where) -> int:
    """Return the exit code. A signal closes the screen, so that the terminal is restored."""
    from keephold.cli.top_app import Top
    from keephold.cli.top_source import open_source

    async with open_source(where) as source:
        app = Top(source, _words(where))
        for name in (*ENDS, "SIGHUP"):
            machine.on_signal(name, lambda number: app.exit(return_code=128 + number))
        await app.run_async()
        return app.return_code or 0


def _words(where: Where) -> list[str]:
    """Return the options by which another command finds the same store or server. Everyone can read the words of a
    command, so the URL of a PostgreSQL store, which may hold a password, goes into its environment."""
    store = where.store
    if store is not None and shown(store) != store:
        os.environ["KEEPHOLD_STORE"], store = store, None
    given = {"--store": store, "--server": where.server, "--token-file": where.token_file}
    return [word for option, value in given.items() if value is not None for word in (option, str(value))]
