"""`keephold mcp-login`: log in to an MCP server by OAuth, and keep the login for the runtimes of this user (M6)."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from keephold.cli.parameters import config_option, the_config
from keephold.errors import ConfigError, KeepholdError
from keephold.text import exact_line

if TYPE_CHECKING:
    from keephold.config import Config
    from keephold.tools.remote.login import LoginFile


@click.command("mcp-login")
@click.argument("NAME")
@config_option
@click.option("--no-browser", is_flag=True, help="Print the address to open; do not open a browser.")
@click.option("--remove", is_flag=True, help="Remove the stored login instead.")
def mcp_login(name: str, config: Path | None, no_browser: bool, remove: bool) -> None:
    """Log in to an MCP server that has `oauth = true` in the configuration.

    NAME is that of the table [mcp.servers.NAME]. The command prints the address of the server's login page, and opens
    it in a browser if it runs in a terminal. It ends when you have logged in, after 10 minutes at the latest.
    """
    from keephold.tools.remote.server import need_mcp

    loaded = the_config(config)
    file = _login_file(loaded, name)
    if remove:
        was = file.remove()
        click.echo(f"the login at MCP server `{name}` is removed" if was else f"there is no login at `{name}`")
        return
    need_mcp()
    _log_in(loaded, name, file, browser=not no_browser and sys.stdout.isatty())
    host = urlsplit(file.url).netloc.rpartition("@")[2]
    click.echo(f"logged in to MCP server `{name}` at {exact_line(host)}")


def _login_file(config: "Config", name: str) -> "LoginFile":
    from keephold.config.build import login_file
    from keephold.config.explain import not_one_of

    server = config.mcp.servers.get(name)
    if server is not None and server.oauth and server.url is not None:
        return login_file(server.url)
    known = [each for each, table in config.mcp.servers.items() if table.oauth]
    right = "write `oauth = true` in the table [mcp.servers.<name>] of a server with a `url`"
    raise ConfigError([f"NAME {not_one_of(name, known)}" if known else f"no MCP server has a login; {right}"])


def _log_in(config: "Config", name: str, file: "LoginFile", *, browser: bool) -> None:
    from keephold.tools.remote.auth import log_in

    async def show(address: str) -> None:
        click.echo(f"To log in to MCP server `{name}`, open:\n{exact_line(address)}")
        if browser:
            import webbrowser

            await asyncio.to_thread(webbrowser.open, address)

    table = config.mcp.servers[name]
    logging.disable(logging.CRITICAL)  # `mcp` logs answers that it refuses, with the secrets in them (K5)
    try:
        file.write(asyncio.run(log_in(file.url, table.headers, table.scope, show)))
    except OSError as error:
        raise KeepholdError(f"the login cannot be kept: {error.strerror}", code="mcp_error") from None
    except KeepholdError as error:
        text = f"not logged in to MCP server `{name}`: {error.message}"
        raise KeepholdError(text, code="mcp_error") from None
    finally:
        logging.disable(logging.NOTSET)
