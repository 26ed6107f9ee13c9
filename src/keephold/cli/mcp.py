"""`keephold mcp`: the tools of a configuration for MCP clients, over standard input and output or HTTP (M1, L1)."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from keephold.cli.parameters import ADDRESS, NAME, TOKEN, check_own_token, config_option, the_config, tokens_of
from keephold.cli.store import store_of, store_option
from keephold.config import Config, load_config
from keephold.control.server_discovery import connect, pass_on
from keephold.runtime import Runtime
from keephold.store.urls import open_store

if TYPE_CHECKING:
    from keephold.mcp.server import Server


@click.command()
@config_option
@store_option
@click.option(
    "--conversation", type=NAME, default="mcp", show_default=True, help="The conversation that handles live in."
)
@click.option("--http", "port", type=click.IntRange(0, 65535), help="Serve HTTP on this port instead; 0: any.")
@click.option(
    "--url", type=ADDRESS, help="The address that others reach it by, with --http, for URLs that are given away."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to bind, with --http.")
@click.option(
    "--tokens",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"A file of `principal token` lines, with --http: each has handles of its own. ${TOKEN} is a token, too.",
)
def mcp(
    config: Path | None,
    store: str | None,
    conversation: str,
    port: int | None,
    url: str | None,
    host: str,
    tokens: Path | None,
) -> None:
    """Serve the configured tools to MCP clients.

    \b
    On standard input and output, as clients start it:
      {"mcpServers": {"keephold": {"command": "keephold", "args": ["mcp"]}}}

    If a `keephold serve` runs on the same store with the same configuration, it serves the client, and what was spawned
    goes on when the client goes.

    With --http, streamable HTTP at http://HOST:PORT/mcp; completions of what waits outside at /complete/KEY.

    Handles outlive a connection: a client that comes back finds them by their ids, unless --store is `memory:`.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    own = _own_token()
    known = {**own, **tokens_of(tokens)}
    if port is None and (tokens is not None or url is not None or host != "127.0.0.1"):
        raise click.UsageError("--host, --url and --tokens go with --http PORT")
    file = the_config(config)
    loaded = load_config(file)
    place = store or store_of(loaded)
    if port is None and _passed_on(place, file, conversation):
        return
    from keephold.mcp.http import check_bind
    from keephold.mcp.server import Server

    if port is not None:
        check_own_token(own.get("default"))
        check_bind(host, known)
    runtime = Runtime(store=place, config=loaded)

    server = Server(runtime, conversation=conversation, **settings_of(loaded))

    async def serve() -> int:
        async with runtime:
            await server.open()
            if port is None:
                return await _over_stdio(server)
            return await _over_http(server, host, port, url, known)

    sys.exit(asyncio.run(serve()))


def settings_of(config: Config) -> dict[str, Any]:
    """What the configuration says about the MCP server."""
    mcp = config.mcp
    return {"schema": mcp.schema_, "task_after": mcp.task_after_ms / 1000}


def _own_token() -> dict[str, str]:
    token = os.environ.pop(TOKEN, None)  # or every command would have it, and show it to whoever asks (K5)
    return {"default": token} if token else {}


def _passed_on(store: str, config: Path, conversation: str) -> bool:
    """Let a `keephold serve` on the same store serve the client, if there is one (M3); whether it did."""
    path = getattr(open_store(store), "path", None)
    connection = connect(path, config, conversation) if path is not None else None
    if connection is not None:
        with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, ConnectionError):
            pass_on(connection)
    return connection is not None


async def _stdio(server: "Server") -> None:
    """Serve the client that has started us. One that closes what it reads is gone as well."""
    try:
        await server.run_stdio_async()
    except* (BrokenPipeError, ConnectionResetError):
        pass


async def _leave(runtime: Runtime, code: int) -> None:
    """End in good order, and at once: a thread that reads standard input cannot be woken."""
    await runtime.close()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


async def _over_stdio(server: "Server") -> int:
    """Serve until the client goes, or a signal comes. The runtime is closed in good order after that (R6)."""
    leaving: list[asyncio.Task[None]] = []

    def stop(number: int) -> None:
        if leaving:
            os._exit(128 + number)  # asked twice: the guard ends what is left
        server.listeners.close()
        leaving.append(asyncio.create_task(_leave(server.runtime, 128 + number)))

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    await _stdio(server)
    return 0


async def _over_http(server: "Server", host: str, port: int, url: str | None, tokens: dict[str, str]) -> int:
    """Serve HTTP until a signal comes; whoever waits is answered then."""
    from keephold.mcp.http import ANY, http_app
    from keephold.serve.server import bound, serve

    runtime = server.runtime
    app = http_app(server, tokens=tokens, hosts=[host] if url is None else [host, urlsplit(url).hostname or host])
    with bound(host, port, "--http") as listening:
        number = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        if url is not None or host not in ANY:  # of all addresses it has none that others could use
            runtime.durability.complete_url = f"{(url or f'http://{shown}:{number}').rstrip('/')}/complete"
        click.echo(f"MCP at http://{shown}:{number}/mcp", err=True)

        async def close() -> None:
            server.listeners.close()
            await runtime.close()  # calls that wait are answered

        return await serve(app, listening, close=close)
