"""The store of a command (Y1): which one, and opening it.

`--store`, else `HOLDFAST_STORE`, else `[store] url` of the configuration, else a SQLite file in the user's state
directory. Commands that look at what others run want a store that is there: they make none.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.errors import ConfigError, HoldfastError

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.runtime import Runtime
    from holdfast.store.base import Store

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_SQLITE = "sqlite:///"


def store_option(command: F) -> F:
    """The option `--store`."""
    return click.option(
        "--store",
        metavar="URL",
        envvar="HOLDFAST_STORE",
        help="Where handles are kept: sqlite:///FILE. Default: what holdfast.toml says, else a file of yours.",
    )(command)


def run(work: Coroutine[Any, Any, T]) -> T:
    """What the coroutine returns. Ctrl-C ends the command with the exit code that shells know it by."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


# Which one


def store_of(config: "Config") -> str:
    """The store of a configuration, or the user's own, whose directory is made."""
    return config.store_url or _default(make=True)


def _existing(url: str | None) -> "Store":
    """The store that a command is to look at: the one named, else the one that `holdfast turn` would use here."""
    from holdfast.store.urls import open_store

    store = open_store(url or _of_this_directory() or _default())
    if not store.durable:
        raise HoldfastError(
            "a `memory:` store is seen by no process but its own; name a file by --store", code="unsupported_store"
        )
    path = getattr(store, "path", None)  # of a file
    if isinstance(path, Path) and not path.exists():
        raise HoldfastError(
            f"there is no store `{path}`; `holdfast turn` makes one, or name another by --store", code="store_unusable"
        )
    return store


def _of_this_directory() -> str | None:
    """What the configuration found here says. Mistakes in the rest of it hide no handles."""
    from holdfast.config import find_config
    from holdfast.config.load import inspect_config

    file = find_config(Path.cwd())
    if file is None:
        return None
    config, wrong = inspect_config(file)
    assert config.source is not None, "it was read from a file"
    problems = [f"{config.source.at(key)}: {sentence}" for key, sentence in wrong if key[:1] == ("store",)]
    if problems:
        raise ConfigError(problems)
    return config.store_url


def _default(*, make: bool = False) -> str:
    """The user's own store."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        base = given if given.is_absolute() else Path.home() / ".local" / "state"
        directory = base / "holdfast"
        if make:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise HoldfastError(
            f"no directory for the store can be made ({error}); name a file by --store", code="store_unusable"
        ) from error
    return f"{_SQLITE}{directory / 'holdfast.db'}"


def place_of(store: "Store") -> str:
    """Where a store is, for people: the first mistake is to look in another one."""
    return f"the store {getattr(store, 'path', '')}".strip()


# Opening it


@asynccontextmanager
async def reading(url: str | None) -> "AsyncIterator[Store]":
    """The store, to be looked at and left as it is: nothing is recovered, ended or collected."""
    store = _existing(url)
    await store.open(lambda _: None)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def without_tools(url: str | None) -> "AsyncIterator[Runtime]":
    """A runtime that recovers nothing, as it has no tools (R1), and forgets nothing, as it does not know how long
    handles are to be kept here (S5)."""
    import math

    from holdfast.runtime import Runtime

    runtime = Runtime(store=_existing(url))
    runtime.registry.retention = math.inf
    runtime.recovery.leaves_calls = True
    async with runtime:
        yield runtime
