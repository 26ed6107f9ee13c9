"""`keephold serve`: one process for everything over HTTP (L1): MCP, completions, the API, metrics, the dashboard."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import click

from keephold.cli.mcp import settings_of
from keephold.cli.parameters import (
    ADDRESS,
    LEAST,
    NAME,
    TOKEN,
    check_own_token,
    config_option,
    is_token,
    text_of,
    the_config,
    tokens_of,
)
from keephold.cli.store import store_of, store_option
from keephold.config import Config, load_config
from keephold.errors import ConfigError, KeepholdError
from keephold.store.urls import open_store

if TYPE_CHECKING:
    from keephold.mcp.server import Server
    from keephold.mcp.socket import Listening
    from keephold.runtime import Runtime
    from keephold.store.base import Store

_log = logging.getLogger("keephold.serve")


@click.command()
@config_option
@store_option
@click.option("--host", help="The address to bind. Default: [serve] host, else 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port; 0: any. Default: [serve] port, else 8420.")
@click.option("--url", type=ADDRESS, help="The address that others reach it by, for URLs that are given away.")
@click.option(
    "--tokens",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of `principal token` lines: MCP clients with handles of their own.",
)
@click.option(
    "--conversation", type=NAME, default="mcp", show_default=True, help="The conversation that MCP's handles live in."
)
@click.option("--quiet", is_flag=True, help="Print the address without its token.")
def serve(
    config: Path | None,
    store: str | None,
    host: str | None,
    port: int | None,
    url: str | None,
    tokens: Path | None,
    conversation: str,
    quiet: bool,
) -> None:
    """Serve everything over HTTP, until it is stopped.

    \b
    /            the dashboard: what needs you, what runs, what happened
    /mcp         MCP, streamable HTTP, for `Authorization: Bearer TOKEN`
    /complete/K  POST what a key waits for; the key is the authority
    /api         everything as JSON; /api/openapi.json describes it
    /metrics     Prometheus
    /healthz     200 while it can do its work

    The address that is printed has the owner's token in it, which opens everything. It is kept beside the store, so
    that it stays the same; $KEEPHOLD_TOKEN is used instead if it is set.

    To let the network in, put a proxy with TLS in front of it, on this machine, and name the proxy's address by --url.
    To bind another address than loopback itself takes a token that you have chosen, in $KEEPHOLD_TOKEN or --tokens.

    Signals: TERM and INT end it in good order (again: at once); HUP reads the configuration again.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    given = os.environ.pop(TOKEN, None)  # or every command would have it, and show it to whoever asks (K5)
    file = the_config(config)
    loaded = load_config(file)
    settings = loaded.serve
    asked = _Asked(
        file=file,
        config=loaded,
        store=store or store_of(loaded),
        host=host or settings.host,
        port=settings.port if port is None else port,
        url=url or settings.url,
        token=given,
        principals=tokens_of(tokens),
        conversation=conversation,
        quiet=quiet,
    )
    ended: list[int] = []
    try:
        sys.exit(asyncio.run(_serve(asked, ended)))
    except asyncio.CancelledError:  # before it served
        sys.exit(128 + ended[0])


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What is to be served, and where."""

    file: Path
    config: Config
    store: str
    host: str
    port: int
    url: str | None
    token: str | None
    principals: dict[str, str]
    conversation: str
    quiet: bool


async def _serve(asked: _Asked, ended: list[int]) -> int:
    """The exit code. Ended by a signal before it serves, it is cancelled, and `ended` has the signal's number."""
    _mind_signals(ended)
    from keephold.control.control import Control
    from keephold.control.open_requests import OpenRequests
    from keephold.mcp.http import ANY, check_bind, is_loopback
    from keephold.mcp.server import Server
    from keephold.runtime import Runtime
    from keephold.serve.app import App
    from keephold.serve.metrics import Prometheus
    from keephold.serve.server import bound, serve

    host, url, principals = asked.host, asked.url, asked.principals
    check_own_token(asked.token)
    if "owner" in principals:
        raise ConfigError(["`owner` is whoever has the owner's token; give the principal of --tokens another name"])
    check_bind(host, principals if asked.token is None else {**principals, "owner": asked.token})
    store = open_store(asked.store)
    needs = OpenRequests() if asked.config.serve.person else None
    metrics = Prometheus()
    runtime = Runtime(store=store, config=asked.config, prompter=needs, metrics=metrics)
    if needs is not None:
        runtime.people.beside = needs.beside
    server = Server(runtime, conversation=asked.conversation, **settings_of(asked.config))
    control = Control(runtime, needs, snapshot=metrics.snapshot)
    app = App(server, control, metrics)
    with bound(host, asked.port) as listening:
        number = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        place = (url or f"http://{shown}:{number}").rstrip("/")
        owner = asked.token or owner_token(getattr(store, "path", None))
        async with runtime:
            await server.open()
            await app.open()
            if url is not None or host not in ANY:  # of all addresses it has none that others could use
                runtime.durability.complete_url = f"{place}/complete"
            asgi = app.asgi(
                owner,
                principals,
                [host] if url is None else [host, urlsplit(url).hostname or host],
                port=number,
                secure=place.startswith("https:"),
                loopback=is_loopback(host) and url is None,  # an address of others leads here through a proxy
            )
            mcp = await _socket(server, store, asked.file, asked.conversation)
            click.echo(f"keephold at {place}/" + ("" if asked.quiet else f"?token={quote(owner, safe='')}"), err=True)

            async def close() -> None:
                if mcp is not None:
                    await mcp.close()
                await app.close()
                await runtime.close()

            return await serve(asgi, listening, close=close, reload=lambda: _reload(runtime, asked.file))


def _mind_signals(ended: list[int]) -> None:
    """Until it serves: TERM and INT undo what was opened, and HUP has nothing to read again. A shell that starts it in
    the background has it ignore INT, so it is said of both."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end(number: int) -> None:
        ended.append(number)
        task.cancel()

    with contextlib.suppress(RuntimeError):  # signals are the main thread's
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end, number)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)


async def _socket(server: "Server", store: "Store", file: Path, conversation: str) -> "Listening | None":
    """Where `keephold mcp` reaches this server, on a store that others can open."""
    from keephold.mcp.socket import Listening

    stream = getattr(store, "stream", None)  # SupportsStreams
    path, at = getattr(store, "path", None), None if stream is None else stream(store.owner)
    if path is None or at is None:
        return None
    listening = Listening(server, f"{at.removesuffix('.s')}.m")
    await listening.open(path, file, conversation)
    return listening


def _reload(runtime: "Runtime", file: Path) -> None:
    """Use the configuration as it is now; a wrong one changes nothing."""
    try:
        config = load_config(file)
        left = runtime.reload(config)
    except KeepholdError as error:
        _log.error("%s was not read again, nothing changed: %s", file, error.message)
        return
    if any(tool.source == "python" for tool in config.conversation.tools.values()):
        left.append("the code of Python tools, if that has changed")
    click.echo(f"{file} was read again" + (f"; a restart is needed for {', '.join(left)}" if left else ""), err=True)


def owner_token(store: Path | None) -> str:
    """The owner's token: kept in a file beside the store that only its owner can read; without a store, a new one."""
    if store is None:
        return secrets.token_urlsafe(32)
    file = store.with_name(f"{store.name}-token")
    new = store.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        if not file.exists():  # it appears with the token in it: another server may start at the same time
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
                made.write(f"{secrets.token_urlsafe(32)}\n")
            with contextlib.suppress(FileExistsError):
                os.link(new, file)
            new.unlink()
    except OSError as error:
        raise ConfigError([f"no token can be kept at {file}: {error.strerror}; set KEEPHOLD_TOKEN instead"]) from None
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise ConfigError([f"{file} can be read by others, who could use the server: chmod 600 it, or remove it"])
    token = text_of(file, "the file of the owner's token").strip()
    if len(token) < LEAST or not is_token(token):
        raise ConfigError([f"{file} has no token of at least {LEAST} characters; remove it, and a new one is made"])
    return token
