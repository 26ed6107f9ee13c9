"""`keephold serve`: serve MCP, completions, the API, metrics and the dashboard over HTTP from one process."""

import asyncio
import contextlib
import errno
import gc
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, urlsplit

import click

from keephold.cli.access import owner_token, token_file
from keephold.cli.mcp import settings_of
from keephold.cli.parameters import (
    ADDRESS,
    CLIENT_PROMPTS,
    TOKEN,
    Principals,
    builtins_option,
    check_own_token,
    config_option,
    mcp_conversation_option,
    no_config,
    tell_source,
    the_config,
    tokens_of,
)
from keephold.cli.process import Signals, log_to_stderr, own_children
from keephold.cli.store import store_of, store_option
from keephold.cli.trust import restart_for, trusted_config
from keephold.config import Config, load_config
from keephold.config.trust import examine
from keephold.errors import ConfigError, KeepholdError
from keephold.platforms import machine
from keephold.private_file import HANDOVER, STREAM
from keephold.store import open_store
from keephold.tools.environment import take
from keephold.tools.remote.server import need_mcp

if TYPE_CHECKING:
    import socket

    from keephold.mcp.server import Server
    from keephold.mcp.sessions import Sessions
    from keephold.mcp.socket import Listening
    from keephold.runtime import Runtime
    from keephold.serve.app import App
    from keephold.serve.handover import Predecessor, Successor
    from keephold.store.base import Store

_log = logging.getLogger("keephold.serve")


@click.command()
@config_option
@store_option
@click.option("--host", help="Bind this address. Default: [serve] host, else 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), help="Listen here; 0: any. Default: [serve] port, else 8420.")
@click.option("--url", type=ADDRESS, help="Use this public address in the URLs for clients.")
@click.option(
    "--tokens",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read `principal token` lines from this file: each principal is an MCP client with its own handles. You "
    f"decide its permission prompts; with `{CLIENT_PROMPTS}` as a third word, its own user does.",
)
@mcp_conversation_option
@builtins_option
@click.option(
    "--replace",
    is_flag=True,
    help="Take the address over from a running server on the same store and address. No request is refused.",
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    metavar="SECS",
    help="Let calls of the replaced server run for this long, with --replace; then they end as if it were stopped.",
)
@click.option("--quiet", is_flag=True, help="Print only the address, without a token or its file.")
def serve(
    config: Path | None,
    store: str | None,
    host: str | None,
    port: int | None,
    url: str | None,
    tokens: Path | None,
    conversation: str | None,
    builtins: tuple[str, ...] | None,
    replace: bool,
    drain: float,
    quiet: bool,
) -> None:
    """Serve everything over HTTP, until it is stopped.

    \b
    /            the dashboard: open requests, live handles, events
    /mcp         MCP, streamable HTTP, for `Authorization: Bearer TOKEN`
    /complete/K  POST the result of a parked call; the key is the authority
    /api         everything as JSON; /api/openapi.json describes it
    /metrics     Prometheus
    /healthz     200 while the server can work

    The owner's token gives full access. The address that is printed to a terminal contains it; elsewhere, the file of
    the token is printed. It is beside the store, or with PostgreSQL in your state directory, so that the token stays
    the same; $KEEPHOLD_TOKEN overrides it.

    To serve the network, put a proxy with TLS in front of it, on this machine, and name the proxy's address by --url.
    To bind another address than loopback, set a token of your own in $KEEPHOLD_TOKEN or --tokens.

    Signals: TERM and INT stop it in good order (twice: at once); HUP reads the configuration again.

    With --replace it starts, then takes the address of the running server, so that an upgrade refuses no request. The
    replaced server answers the requests it has and ends when its calls have ended. Without a running server, it just
    starts.
    """
    log_to_stderr()
    need_mcp("serve")
    given = take(TOKEN)
    loaded = the_config(config, ask=False)  # it may be a service, whose terminal nobody watches
    settings = loaded.serve
    wanted = _Wanted(
        file=None if loaded.source is None else loaded.source.path,
        named=config is not None,
        config=loaded,
        store=store or store_of(loaded),
        host=host or settings.host,
        port=settings.port if port is None else port,
        url=url or settings.url,
        token=given,
        principals=tokens_of(tokens),
        conversation=conversation,
        builtins=builtins,
        drain=drain if replace else None,
        quiet=quiet,
    )
    signals = Signals()
    try:
        sys.exit(asyncio.run(_serve(wanted, signals)))
    except asyncio.CancelledError:  # before it served
        sys.exit(signals.code)


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    file: Path | None
    """The configuration file; None: there is none, and the defaults count."""
    named: bool
    """The file is named by --config."""
    config: Config
    store: str
    host: str
    port: int
    url: str | None
    token: str | None
    principals: Principals
    conversation: str | None
    builtins: tuple[str, ...] | None
    drain: float | None
    """Replace a running server, which may take this many seconds to finish its work. None: replace none."""
    quiet: bool


async def _serve(wanted: _Wanted, signals: Signals) -> int:
    """Return the exit code. Until it serves, TERM and INT cancel it, and HUP is ignored. A shell makes background jobs
    ignore INT, so that is set as well."""
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(RuntimeError):  # only the main thread gets signals
        signals.listen(task.cancel)
        machine.on_signal("SIGHUP", lambda _: None)
    from keephold.control.control import Control
    from keephold.mcp.http import ANY, LOOPBACK, check_bind, is_loopback
    from keephold.mcp.server import Server
    from keephold.runtime import Runtime
    from keephold.serve.app import App
    from keephold.serve.metrics import Prometheus
    from keephold.serve.server import serve
    from keephold.serve.sessions import Sessions, place_of
    from keephold.turn.prompt_queue import FromList

    host, url, principals = wanted.host, wanted.url, wanted.principals.tokens
    check_own_token(wanted.token)
    if "owner" in principals:
        raise ConfigError(["`owner` is the holder of the owner's token; give the principal of --tokens another name"])
    check_bind(host, principals if wanted.token is None else {**principals, "owner": wanted.token})
    store = open_store(wanted.store)
    metrics = Prometheus()
    own_children()
    prompter = FromList() if wanted.config.serve.person else None
    runtime = Runtime(store=store, config=wanted.config, prompter=prompter, metrics=metrics)
    server = Server(
        runtime,
        conversation=wanted.conversation,
        client_prompts=wanted.principals.client_prompts,
        **settings_of(wanted.config, wanted.builtins),
    )
    control = Control(runtime, snapshot=metrics.snapshot, served=server.calls.served)
    app = App(server, control, metrics)
    with contextlib.ExitStack() as stack:
        listening, predecessor = await _listening(wanted, store)
        for each in listening:
            stack.enter_context(each)
        if predecessor is not None:
            stack.callback(predecessor.close)
        address, number = listening[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        bound = f"http://{shown}:{number}"
        place = (url or bound).rstrip("/")
        owner = wanted.token or owner_token(token_file(store))
        if runtime.front_end is not None and (url is not None or host not in ANY):
            runtime.front_end.url = place  # before calls are recovered: their workers answer there
        async with runtime:
            await server.open()
            await app.open()
            if url is not None or host not in ANY:  # 0.0.0.0 is not an address that others could use
                runtime.durability.complete_url = f"{place}/complete"
            asgi = app.asgi(
                owner,
                principals,
                [host] if url is None else [host, urlsplit(url).hostname or host],
                sessions=Sessions(owner, place_of(store, owner)),
                url=url,
                named=address in (*LOOPBACK, *ANY),
                loopback=is_loopback(host) and url is None,  # a public address leads here through a proxy
            )
            here = _Here(runtime, server, app, wanted, predecessor)
            here.said = _said(f"{place}/", owner, None if wanted.token else token_file(store), quiet=wanted.quiet)
            here.bound = None if place == bound else f"{bound}/"
            gc.freeze()  # modules and settings stay: the collector, which halts the loop, need not walk them again
            return await serve(
                asgi, listening, close=here.close, reload=lambda: _reload(runtime, wanted), handover=here
            )


class _Here:
    """This server, as it takes the place of another one and leaves its own (`serve/server.py`, `Handover`)."""

    said = ""
    """The line that it prints when it serves."""
    bound: str | None = None
    """Where it listens, if that is not the address that it says."""

    def __init__(
        self, runtime: "Runtime", server: "Server", app: "App", wanted: _Wanted, predecessor: "Predecessor | None"
    ) -> None:
        from keephold.mcp.other_servers import OtherServers
        from keephold.store.base import file_of
        from keephold.turn.owner_connection import socket_of

        self._runtime = runtime
        self._server = server
        self._app = app
        self._wanted = wanted
        self._commands: Listening | None = None
        self.predecessor = predecessor
        self._others = OtherServers(runtime, cast("Sessions", server.session_manager))
        store = runtime.registry.store
        at = None if file_of(store) is None else socket_of(store, store.owner)
        self.path = None if at is None else at.removesuffix(STREAM) + HANDOVER

    async def begin(self) -> None:
        from keephold.mcp.socket import listening_for_commands

        store = self._runtime.registry.store
        await self._others.begin()
        self._commands = await listening_for_commands(self._server, store, self._wanted.file)
        click.echo(self.said, err=True)
        if not self._wanted.quiet:  # after the address, which scripts read from the first line
            if self.bound is not None:
                click.echo(f"listening on {self.bound}", err=True)
            tell_source(self._wanted.config)

    def claim(self) -> None:
        if not self._runtime.closing:
            self._runtime.registry.run_soon(self._runtime.recovery.sweep())

    async def release(self, successor: "Successor") -> bool:
        if self._commands is not None:
            self._commands.withdraw()
        await self._app.leave()
        if await self._runtime._release_waiting():
            successor.released()
        clients = 0 if self._commands is None else self._commands.clients
        return bool(clients or self._runtime.live() or self._runtime.batches)

    async def close(self) -> None:
        if self._commands is not None:
            await self._commands.close()
        await self._app.close()
        await self._runtime.close()


async def _listening(wanted: _Wanted, store: "Store") -> "tuple[list[socket.socket], Predecessor | None]":
    """Return the listening sockets: new ones, or those of the server to be replaced."""
    from keephold.serve.handover import predecessor
    from keephold.serve.server import CannotListen, address_of, bound_to_both
    from keephold.store.base import file_of

    path = file_of(store)
    if wanted.drain is not None and path is None:
        raise ConfigError(["--replace needs a store that two servers can open: --store sqlite:///FILE"])
    try:
        return bound_to_both(wanted.host, wanted.port), None
    except CannotListen as error:
        in_use = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
        if path is None or not in_use:
            raise
        if wanted.drain is None:
            raise ConfigError([f"{error.problems[0]}. To replace a server on {path}, add --replace"]) from error
        found = await predecessor(path, address_of(wanted.host, wanted.port), wanted.drain)
        if found is None:
            problem = f"{error.problems[0]}. No server on {path} that can be replaced listens there"
            raise ConfigError([problem]) from error
        return found.listening, found


def _reload(runtime: "Runtime", wanted: _Wanted) -> None:
    """Apply the configuration as the file is now; a wrong file, or one that is not trusted now, changes nothing."""
    file = wanted.file
    try:
        if file is None:
            config = the_config(None, ask=False)
        else:
            config = load_config(file) if wanted.named else trusted_config(examine(file), ask=False)
        left = runtime.reload(config)
    except KeepholdError as error:
        _log.error("%s was not read again, nothing changed: %s", file or "the configuration", error.message)
        return
    if config.source is None:
        click.echo(no_config(), err=True)
        return
    if any(tool.source == "python" for tool in config.conversation.tools.values()):
        left.append("the code of Python tools, if that has changed")
    click.echo(f"{config.source.path} was read again{restart_for(left)}", err=True)


def _said(address: str, owner: str, file: Path | None, *, quiet: bool) -> str:
    """Return the address: with the token for a user at a terminal, elsewhere with the file of the token (K5)."""
    if quiet:
        said = address
    elif sys.stderr.isatty():
        said = f"{address}?token={quote(owner, safe='')}"
    else:
        said = f"{address} (token: {f'${TOKEN}' if file is None else file})"
    return f"keephold at {said}"
