"""`keephold tools`: list the tools of a configuration, as a model sees them (G3)."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from keephold.cli.parameters import config_option, no_config, the_config
from keephold.cli.printing import printable, table_lines
from keephold.schema.dialects import DIALECTS, Dialect

if TYPE_CHECKING:
    from keephold.runtime import Runtime

CONNECT_SECS = 30.0


@click.command()
@config_option
@click.option("--dialect", type=click.Choice(DIALECTS), help="Print JSON, with schemas as this provider takes them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def tools(config: Path | None, dialect: Dialect | None, as_json: bool) -> None:
    """List the tools of a configuration, as a model sees them. MCP servers are started to ask for theirs."""
    from keephold.runtime import Runtime

    loaded = the_config(config)
    if loaded.source is None:
        click.echo(no_config(), err=True)
    runtime = Runtime(config=loaded, store="memory:")
    if loaded.mcp_servers():
        import asyncio

        asyncio.run(_connected(runtime))
    listed = runtime.tools(dialect=dialect or "generic")
    if as_json or dialect:
        click.echo(json.dumps(listed, indent=2, ensure_ascii=False))
    else:
        actions = {tool.name: " ".join(tool.actions) for tool in runtime.toolbox}
        rows = [
            (tool["name"], actions.get(tool["name"]) or "-", printable(tool["description"]).strip().partition("\n")[0])
            for tool in listed
        ]
        click.echo("\n".join(table_lines([("NAME", "ACTIONS", "DESCRIPTION"), *rows])))


async def _connected(runtime: "Runtime") -> None:
    async with runtime:
        if not await runtime.connected(CONNECT_SECS):
            click.echo("some MCP servers could not be reached; their tools are not listed", err=True)
