"""Finds and opens the server or the store (Y1) that a command works on.

`--server` or `KEEPHOLD_SERVER` names a server. Else the store is `--store`, else `KEEPHOLD_STORE`, else `[store] url`
of the configuration, else a SQLite file in the user's state directory. Only commands that run tools create the store.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from keephold.cli.parameters import RIGHT, TOKEN, is_token, text_of
from keephold.errors import ConfigError, KeepholdError
from keephold.extras import need

if TYPE_CHECKING:
    from keephold.cli.store_control import Acting, Stored
    from keephold.config import Config
    from keephold.config.trust import Found
    from keephold.control.base import Controls, Looking
    from keephold.control.remote import RemoteControl
    from keephold.handles.registry import Registry
    from keephold.runtime import Runtime
    from keephold.store.base import Store
    from keephold.store.housekeeping import Housekeeping

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

SQLITE = "sqlite:///"
_RETENTION_SECS = 7 * 86_400.0
"""How long a store keeps stopped handles by default (S5)."""


def _store_url(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse a URL that names no store, by the name of the option or the variable that has it."""
    if not value or context.resilient_parsing:
        return value
    from keephold.store import open_store, sqlite_file

    try:
        if sqlite_file(value) is None:
            open_store(value)
    except KeepholdError as error:
        said = context.get_parameter_source(parameter.name or "") is click.core.ParameterSource.ENVIRONMENT
        raise KeepholdError(f"{'KEEPHOLD_STORE' if said else '--store'}: {error.message}", code=error.code) from None
    return value


store_option = click.option(
    "--store",
    metavar="URL",
    envvar="KEEPHOLD_STORE",
    callback=_store_url,
    help="Use this store: sqlite:///FILE or postgresql://USER@HOST/DATABASE. Default: [store] url of keephold.toml, "
    "else a file in your home directory.",
)


class Where(NamedTuple):
    """The options that say where a command looks."""

    store: str | None = None
    server: str | None = None
    token_file: Path | None = None


def where_options(command: F) -> F:
    """Add `--store`, `--server` and `--token-file`, which the command gets as `where`."""

    @click.option(
        "--server",
        metavar="URL",
        envvar="KEEPHOLD_SERVER",
        help="Ask the `keephold serve` at this address instead of the store.",
    )
    @click.option(
        "--token-file",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Read the token of --server from this file. Default: KEEPHOLD_TOKEN, else the file beside the store.",
    )
    @wraps(command)
    def called(*arguments: Any, store: str | None, server: str | None, token_file: Path | None, **given: Any) -> Any:
        return command(*arguments, where=Where(store, server, token_file), **given)

    return store_option(called)  # type: ignore[return-value]


# Which one


def store_of(config: "Config") -> str:
    """Return the store of a configuration, or the user's own, whose directory is created."""
    return config.store_url or default_store(make=True)


def place_of(url: str | None, *, acting: bool, make: bool = False) -> str:
    """Return the store that is named, else that of the configuration found here, else the user's own. With `acting`,
    refuse a configuration that is not trusted instead of ignoring it (K7); `make` creates the user's directory."""
    return url or _of_this_directory(acting=acting) or default_store(make=make)


def _existing(url: str | None, *, acting: bool = False) -> "Store":
    """Return the store that is named, else the one that `keephold turn` would use here. Refuse one that is missing."""
    from keephold.store import open_store

    return _there(open_store(place_of(url, acting=acting)))


def _to_read(url: str | None) -> "Store":
    """Return the same store, to be opened read-only. The part that writes is not even imported."""
    from keephold.store import sqlite_file
    from keephold.store.base import address_of

    place = place_of(url, acting=False)
    file = sqlite_file(place)
    if file is not None:
        from keephold.store.sqlite.reads import ReadOnlyStore

        return _there(ReadOnlyStore(file))
    store = _existing(place)
    if (address := address_of(store)) is not None:
        from keephold.store.postgres.store import ReadOnlyPostgres

        return ReadOnlyPostgres(address)
    return store


def _there(store: "Store") -> "Store":
    """Refuse a store that is missing."""
    from keephold.store.base import file_of

    if not store.durable:
        raise KeepholdError(
            "a `memory:` store is seen by no process but its own; name a file by --store", code="unsupported_store"
        )
    path = file_of(store)
    if path is not None and not path.exists() and not Path(f"{path}-wal").exists():  # else it is damaged
        raise KeepholdError(
            f"there is no store `{path}`; `keephold serve` makes one, or name another by --store", code="store_unusable"
        )
    return store


def to_look_after(url: str | None, *, acting: bool = False, missing: bool = False) -> "Housekeeping":
    """Return the housekeeping of the store that is named, as the commands of `keephold store` need it. `missing`: the
    store need not exist, and the user's directory for it is made."""
    from keephold.store import open_store
    from keephold.store.housekeeping import housekeeping_of

    store = open_store(place_of(url, acting=acting, make=True)) if missing else _existing(url, acting=acting)
    return housekeeping_of(store)


def _of_this_directory(*, acting: bool) -> str | None:
    """Return the store of the configuration found here. Mistakes in the rest of that file do not matter."""
    from keephold.config.trust import find_usable, names_store

    found, ignored = find_usable(Path.cwd())
    if ignored is not None and names_store(ignored):
        from keephold.cli.trust import trusted_config

        if acting:
            return trusted_config(ignored).store_url
        _note_ignored(ignored)
    if found is None:
        return None
    from keephold.config.load import inspect_config

    config, wrong = inspect_config(found.path, found.data)
    assert config.source is not None, "it was read from a file"
    problems = [f"{config.source.at(key)}: {sentence}" for key, sentence in wrong if key[:1] == ("store",)]
    if problems:
        raise ConfigError(problems)
    return config.store_url


def _note_ignored(found: "Found") -> None:
    """Say once for each command that a file is not used."""
    from keephold.cli.trust import ignored

    context = click.get_current_context(silent=True)
    said = {} if context is None else context.meta
    if said.setdefault("keephold.ignored", found) is found:
        click.echo(f"note: {ignored(found)}", err=True)


def keep_as_configured(registry: "Registry") -> None:
    """Set the retention of a runtime without tools: from the configuration found here, if that names the same store,
    else the default (S5, W8)."""
    from keephold.cli.trust import trusted_config
    from keephold.config.build import archive_of
    from keephold.config.load import load_config
    from keephold.config.trust import find
    from keephold.store import open_store
    from keephold.store.base import address_of, file_of

    registry.retention = _RETENTION_SECS
    found = find(Path.cwd())
    if found is not None and found.refused:
        _note_ignored(found)
    if found is None or found.refused:
        return
    config = load_config(found.path, found.data)
    if not (config.store.model_fields_set or config.wait_handles.model_fields_set):
        return
    configured, store = open_store(config.store_url or default_store()), registry.store
    if (file_of(configured), address_of(configured)) != (file_of(store), address_of(store)):
        return
    trusted_config(found)
    registry.retention = config.store.retention_secs or _RETENTION_SECS
    registry.shorter = config.wait_handles.retention()
    registry.archive = archive_of(config)


def default_store(*, make: bool = False) -> str:
    """Return the user's own store."""
    from keephold.config.trust import state_directory

    directory = state_directory()
    try:
        if directory is None:
            raise OSError("there is no home directory")
        if make:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise KeepholdError(
            f"no directory for the store can be made ({error}); name a file by --store", code="store_unusable"
        ) from error
    return f"{SQLITE}{directory / 'keephold.db'}"


def _token(where: Where, server: str) -> str | None:
    """Return the token of a server. The token beside a store of this machine is only for a server on this machine."""
    if where.token_file is not None:
        return _sendable(text_of(where.token_file, "--token-file").strip(), f"--token-file `{where.token_file}`")
    given = os.environ.get(TOKEN)
    if given:
        return _sendable(given, TOKEN)

    from keephold.control.remote import is_local

    return _stored_token(where.store) if is_local(server) else None


def _sendable(token: str, source: str) -> str:
    if not is_token(token):
        raise KeepholdError(f"{source} holds no token: {RIGHT}", code="invalid_arguments")
    return token


def _stored_token(url: str | None) -> str | None:
    """Return the token that `keephold serve` keeps beside its store."""
    from keephold.store.base import file_of

    try:
        path = file_of(_existing(url))
        token = "" if path is None else Path(f"{path}-token").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError, KeepholdError):
        return None
    return token if is_token(token) else None


# Opening it


def served(where: Where) -> "RemoteControl | None":
    """Return the control of the server that is named, to be opened; None if none is."""
    if not where.server:
        return None
    need("serve", "--server", "httpx2")
    from keephold.control.remote import RemoteControl

    return RemoteControl(where.server, _token(where, where.server))


def look(where: Where, operation: "Callable[[Looking], Awaitable[T]]") -> T:
    """Return the result of an operation on the server or the store that needs no runtime."""

    async def looked() -> T:
        async with served(where) or _reading(where.store) as looking:
            return await operation(looking)

    return asyncio.run(looked())


def act(where: Where, operation: "Callable[[Controls], Awaitable[T]]") -> T:
    """Return the result of an operation on the server or, by a runtime without tools, on the store."""

    async def acted() -> T:
        async with served(where) or _acting(where.store) as controls:
            return await operation(controls)

    return asyncio.run(acted())


@asynccontextmanager
async def _reading(url: str | None) -> "AsyncIterator[Stored]":
    """Open the store read-only: nothing is recovered, ended or collected."""
    from keephold.cli.store_control import Stored

    store = _to_read(url)
    await store.open(lambda _: None)
    try:
        yield Stored(store, url=url)
    finally:
        await store.close()


@asynccontextmanager
async def _acting(url: str | None) -> "AsyncIterator[Acting]":
    from keephold.cli.store_control import Acting

    async with without_tools(url) as runtime:
        yield Acting(runtime)


@asynccontextmanager
async def without_tools(url: str | None) -> "AsyncIterator[Runtime]":
    """Open a runtime that recovers nothing, because it has no tools (R1), and deletes nothing, because it does not know
    the retention (S5)."""
    import math

    from keephold.runtime import Runtime

    runtime = Runtime(store=_existing(url, acting=True))
    runtime.registry.retention = math.inf
    runtime.registry.spool.disk.limit = None
    runtime.recovery.leaves_calls = True
    async with runtime:
        yield runtime
