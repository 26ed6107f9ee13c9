"""`keephold bench`: what this machine and the disk of the store can do, and how close to that keephold comes (L1).

It works on a store of its own, in a directory of its own beside the configured store, which it never opens.
"""

import asyncio
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from keephold.cli.printing import print_json, table
from keephold.cli.store import place_of, run, store_option
from keephold.errors import KeepholdError

if TYPE_CHECKING:
    from keephold.cli.bench_figures import Figure

_HEAD = ("", "KEEPHOLD", "RAW", "RATIO", "RAW IS")
_PREFIX = ".keephold-bench-"


@click.command()
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench(store: str | None, as_json: bool) -> None:
    """Measure what this machine can do, in about five seconds.

    That is the disk of the configured store, durable steps, how soon whoever waits for a handle wakes, and how soon a
    command has run: each beside the raw limit, measured in the same run. Other work on the machine shows in both.

    The store itself is not touched: a temporary one is made in its directory, and removed.
    """
    directory = _directory(place_of(store, make=True))
    if not as_json:
        click.echo(f"in {directory}, for about five seconds", err=True)
    try:
        figures = run(_measured(directory))
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None
    if as_json:
        print_json({"directory": str(directory), "figures": [_as_json(figure) for figure in figures]})
        return
    rows = [_HEAD, *(_row(figure) for figure in figures)]
    for cells in table(rows, shrinking=(4, 0)):
        click.echo("  ".join(cells).rstrip())


def _directory(url: str) -> Path:
    """Where the store is, or would be."""
    from keephold.store.urls import open_store

    path = getattr(open_store(url), "path", None)
    if not isinstance(path, Path):
        raise KeepholdError(
            "a `memory:` store has no disk to measure; name a file by --store", code="unsupported_store"
        )
    directory = path.absolute().parent
    if not directory.is_dir():
        raise KeepholdError(
            f"there is no directory `{directory}`; make it, or name another file by --store", code="store_unusable"
        )
    return directory


async def _measured(directory: Path) -> "list[Figure]":
    from keephold.cli import bench_figures

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # the directory is removed then as well
    try:
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=directory) as place:
            return await bench_figures.measured(Path(place), bench_figures.SECONDS)
    except OSError as error:
        raise KeepholdError(f"`{directory}` cannot be used: {error.strerror}", code="store_unusable") from error


def _as_json(figure: "Figure") -> dict[str, object]:
    return {
        "name": figure.name,
        "what": figure.what,
        "unit": figure.unit,
        "keephold": figure.ours,
        "raw": figure.raw,
        "ratio": figure.ratio,
    }


def _row(figure: "Figure") -> tuple[str, ...]:
    ours = "-" if figure.ours is None else _shown(figure.ours, figure.unit)
    ratio = "-" if figure.ratio is None else f"{figure.ratio:.2f} ×"
    return figure.what, ours, _shown(figure.raw, figure.unit), ratio, figure.against or "-"


def _shown(value: float, unit: str) -> str:
    if unit == "per_second":
        return f"{value:,.0f}/s"
    return f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"
