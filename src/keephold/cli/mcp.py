"""`keephold mcp`: serve the tools of a configuration to MCP clients, over stdin and stdout or HTTP (M1)."""

import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from keephold.cli.background import Background
from keephold.cli.parameters import (
    ADDRESS,
    CLIENT_PROMPTS,
    TOKEN,
    builtins_option,
    check_own_token,
    config_option,
    config_unasked,
    mcp_conversation_option,
    tell_source,
    tokens_of,
)
from keephold.cli.process import Signals, log_to_stderr, own_children
from keephold.cli.store import store_of, store_option
from keephold.config import Config
from keephold.control.server_discovery import connect, pass_on
from keephold.errors import KeepholdError
from keephold.platforms import ENDS, machine
from keephold.store import open_store
from keephold.store.base import file_of
from keephold.tools.environment import take
from keephold.tools.remote.server import need_mcp

if TYPE_CHECKING:
    import socket

    from mcp.server.context import CallNext, HandlerResult

    from keephold.mcp.calls import Context
    from keephold.mcp.server import Server
    from keephold.runtime import Runtime

_log = logging.getLogger("keephold.mcp")
_BEGIN = ("initialize", "server/discover")
# Without the path: a model reads this, and somebody else may have named the directory.
_IGNORED = """
There is a keephold.toml that the user has not trusted, or that has changed since. Its tools are missing here. The \
user can trust it by running `keephold trust` in its directory; a new connection has its tools then."""


@click.command()
@config_option
@store_option
@mcp_conversation_option
@click.option("--http", "port", type=click.IntRange(0, 65535), help="Serve HTTP on this port instead; 0: any free one.")
@click.option("--url", type=ADDRESS, help="Use this public address in the URLs for clients, with --http.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Bind this address, with --http.")
@click.option(
    "--tokens",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"Read `principal token` lines from this file, with --http: each principal has its own handles. ${TOKEN} is a "
    f"token, too, and that of the owner. With `{CLIENT_PROMPTS}` as a third word, the principal's client asks its user "
    "for permission.",
)
@builtins_option
def mcp(
    config: Path | None,
    store: str | None,
    conversation: str | None,
    port: int | None,
    url: str | None,
    host: str,
    tokens: Path | None,
    builtins: tuple[str, ...] | None,
) -> None:
    """Serve the configured tools to MCP clients.

    \b
    Clients start it with this setting, and use its standard input and output:
      {"mcpServers": {"keephold": {"command": "keephold", "args": ["mcp", "--config", "/path/to/keephold.toml"]}}}

    Without --config, a keephold.toml that is found and not trusted is ignored: then only the tools of keephold itself
    are served. The server's instructions say so, and a client that connects after `keephold trust` gets the tools.

    The command forwards to a background server, which it starts if none runs for this store, configuration and
    environment: spawned calls keep running when the client leaves. The server ends 10 minutes after its last client and
    handle ([mcp] background_secs; 0: there is none). If a `keephold serve` runs on the store with this configuration,
    that serves the client. With --builtins or a `memory:` store, this process does, and spawned calls end with it.

    With --http, it serves streamable HTTP at http://HOST:PORT/mcp for `Authorization: Bearer TOKEN`, and completes
    parked calls at /complete/KEY. Without a token of your own in --tokens or $KEEPHOLD_TOKEN, it is that of `keephold
    serve`, in a file beside the store. A terminal shows the token, elsewhere its file is printed.

    Handles outlive a connection: a client that reconnects finds them by their ids, unless --store is `memory:`.
    """
    log_to_stderr()
    need_mcp("mcp" if port is None else "serve")
    own = take(TOKEN) or None
    principals = tokens_of(tokens)
    known = ({"default": own} if own else {}) | principals.tokens
    decide = principals.client_prompts | ({"default"} if own and "default" not in principals.tokens else set())
    if port is None and (tokens is not None or url is not None or host != "127.0.0.1"):
        raise click.UsageError("--host, --url and --tokens go with --http PORT")
    if port is not None:
        from keephold.mcp.http import check_bind  # slow to import

        check_own_token(own)
        check_bind(host, known)
    loaded, ignored = config_unasked(config)
    if ignored:
        _log.warning("%s", ignored)
    elif port is None:
        tell_source(loaded)
    place = store or store_of(loaded)
    if port is None and builtins is None and not ignored:
        connection = connected(place, loaded, conversation)
        if connection is not None:
            with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, ConnectionError):
                pass_on(connection)
            return
    from keephold.mcp.server import Server
    from keephold.runtime import Runtime

    own_children()
    runtime = Runtime(store=place, config=loaded)
    server = Server(
        runtime,
        conversation=conversation,
        client_prompts=decide,
        middleware=[_telling(runtime, ignored)],
        **settings_of(loaded, builtins),
    )

    async def serve() -> int:
        async with runtime:
            await server.open()
            gc.freeze()  # modules and settings stay: the collector, which halts the loop, need not walk them again
            if port is None:
                return await _over_stdio(server)
            return await _over_http(server, host, port, url, known, None if ignored else loaded)

    sys.exit(asyncio.run(serve()))


def _telling(runtime: "Runtime", ignored: str) -> Any:
    """Return a middleware that looks again when a session begins, and says in the instructions if a file is ignored."""
    from keephold.cli.trust import load_trusted

    async def tell(ctx: "Context", call_next: "CallNext") -> "HandlerResult":
        nonlocal ignored
        if ctx.method not in _BEGIN:
            return await call_next(ctx)
        if ignored:
            try:
                config, ignored = config_unasked(None)
                if not ignored:
                    await load_trusted(runtime, config)
            except KeepholdError as error:  # the file has mistakes
                ignored = error.message
        result = await call_next(ctx)
        if ignored and isinstance(result, dict):
            return {**result, "instructions": f"{result.get('instructions') or ''}{_IGNORED}"}
        return result

    return tell


def settings_of(config: Config, builtins: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the settings of the MCP server; `builtins` are those of the command line."""
    settings = config.mcp
    return {
        "schema": settings.schema_,
        "task_after": settings.task_after_ms / 1000,
        "answer_within": settings.answer_within_secs,
        "builtins": settings.builtins if builtins is None else builtins,
    }


def connected(store: str, config: Config, conversation: str | None) -> "socket.socket | None":
    """Connect to the `keephold serve` on the same store, else to the background server, which is started if it does not
    run (M3). Return None if there is neither."""
    path = file_of(open_store(store))
    if path is None or not machine.has_sockets:
        return None
    file = None if config.source is None else config.source.path
    connection = connect(path, file, conversation)
    if connection is None and config.mcp.background_secs:
        try:
            connection = Background(path, config, conversation).connect(
                partial(_in_background, store, config, conversation)
            )
        except OSError as error:
            _log.warning("there is no background server, so spawned calls end with this process: %s", error)
    return connection


async def _in_background(
    store: str, config: Config, conversation: str | None, background: Background, listens: Callable[[], None]
) -> int:
    """Serve the clients of the background server until it is not needed any more, or a signal comes."""
    from keephold.mcp.server import Server
    from keephold.mcp.socket import listening_for_commands
    from keephold.runtime import Runtime

    own_children()
    runtime, stop, signals = Runtime(store=store, config=config), asyncio.Event(), Signals()
    server = Server(runtime, conversation=conversation, **settings_of(config, None))
    async with runtime:
        await server.open()
        file = None if config.source is None else config.source.path
        listening = await listening_for_commands(server, runtime.registry.store, file, background.name)
        assert listening is not None, "the store is a file"
        signals.listen(stop.set, *ENDS, "SIGHUP")
        listens()
        ends = [stop.wait(), background.unneeded(runtime, listening, config.mcp.background_secs)]
        await asyncio.wait([asyncio.ensure_future(each) for each in ends], return_when=asyncio.FIRST_COMPLETED)
        server.subscriptions.close()
        await listening.close()
    return signals.code


async def _leave(runtime: "Runtime", code: int) -> None:
    """Close the runtime and exit at once: a thread that reads stdin cannot be woken."""
    await runtime.close()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


async def _over_stdio(server: "Server") -> int:
    """Serve until the client leaves or a signal comes. The runtime is closed in good order after that (R6)."""
    signals, leaving = Signals(), list[asyncio.Task[None]]()

    def stop() -> None:
        server.subscriptions.close()
        leaving.append(asyncio.create_task(_leave(server.runtime, signals.code)))

    signals.listen(stop)
    try:
        await server.run_stdio_async()
    except* (BrokenPipeError, ConnectionResetError):  # a client that closes its end is gone
        pass
    return 0


async def _over_http(
    server: "Server", host: str, port: int, url: str | None, tokens: dict[str, str], config: Config | None
) -> int:
    """Serve HTTP until a signal comes; open requests are answered then. Without tokens, the owner's is needed."""
    from keephold.cli.access import owner_token, token_file
    from keephold.mcp.http import ANY, http_app
    from keephold.serve.server import bound, serve

    runtime, owner, where = server.runtime, None, ""
    if not tokens:  # every user of this machine can reach the port
        file = token_file(runtime.registry.store)
        owner = owner_token(file)
        where = f" (token: {owner if sys.stderr.isatty() else file})"
    hosts = [host] if url is None else [host, urlsplit(url).hostname or host]
    app = http_app(server, tokens=tokens, owner=owner, hosts=hosts)
    with bound(host, port, "--http") as listening:
        number = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        if url is not None or host not in ANY:  # 0.0.0.0 is not an address that others could use
            runtime.durability.complete_url = f"{(url or f'http://{shown}:{number}').rstrip('/')}/complete"
        click.echo(f"MCP at http://{shown}:{number}/mcp{where}", err=True)
        if config is not None:
            tell_source(config)

        async def close() -> None:
            server.subscriptions.close()
            await runtime.close()

        return await serve(app, [listening], close=close)
