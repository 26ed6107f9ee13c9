"""`keephold acp`: an agent for editors over stdin and stdout (X1). Output of tools and libraries goes to stderr."""

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click

from keephold.cli.parameters import config_option, config_unasked, model_option, tell_source
from keephold.cli.process import Signals, log_to_stderr, own_children
from keephold.cli.store import store_of, store_option
from keephold.config import Config
from keephold.config.model import McpSettings
from keephold.runtime import Runtime


@click.command()
@config_option
@store_option
@model_option
@click.option(
    "--mode",
    type=click.Choice(["ask", "unattended"]),
    default="ask",
    show_default=True,
    help="Start sessions in this mode.",
)
def acp(config: Path | None, store: str | None, model: str | None, mode: Literal["ask", "unattended"]) -> None:
    """Run an agent for an editor that speaks the Agent Client Protocol.

    \b
    The editor starts it with this setting:
      {"command": "keephold", "args": ["acp", "--config", "/path/to/keephold.toml"]}

    One process serves all sessions of its editor. The tools of a session run in its directory. Without --config, it has
    the keephold.toml of that directory or the nearest one above, unless that is not trusted: then the session says so,
    and a session that is opened after `keephold trust` has the tools. Sessions are kept in one store: the one of
    --store, else of the directory in which keephold was started. The next prompt resumes a turn that was interrupted.
    """
    from keephold.agent.models import need_pydantic_ai

    need_pydantic_ai()
    log_to_stderr()
    loaded, ignored = config_unasked(config)
    if ignored:
        logging.getLogger("keephold.acp").warning("%s", ignored)
    else:
        tell_source(loaded)
    sys.exit(asyncio.run(_serve(loaded, config, store or store_of(loaded), model, mode)))


def _own_stdio() -> tuple[int, int]:
    """Return the client's pipes, moved where neither child processes nor `print` can reach them."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return read_fd, write_fd


async def _serve(
    config: Config, file: Path | None, store: str, model: str | None, mode: Literal["ask", "unattended"]
) -> int:
    """Serve until the client leaves or a signal comes, then close the runtime in good order (R6)."""
    pipes = _own_stdio()
    from keephold.acp.agent.projects import Projects, SessionPrompts
    from keephold.acp.agent.server import AgentServer

    def find(cwd: str, additional: Sequence[str]) -> tuple[Config, str]:
        found, ignored = (config, "") if file is not None else config_unasked(None, Path(cwd))
        if ignored:
            logging.getLogger("keephold.acp").warning("%s", ignored)
        elif file is None and found.source is not None:
            tell_source(found)
        return found.in_session(cwd, additional), ignored

    persons, settings = SessionPrompts(), config.acp
    without_servers = config.model_copy(update={"mcp": McpSettings()})  # no session uses them here
    own_children()
    runtime = Runtime(store=store, config=without_servers, prompter=persons)
    agent = AgentServer(
        Projects(runtime, persons, find=find, store=store),
        model=model,
        mode=mode,
        signal=settings.turn_complete,
        terminals=settings.terminals,
    )
    signals = Signals()
    async with runtime:
        serving = asyncio.create_task(agent.serve(*pipes))
        signals.listen(agent.stop)
        await serving
    return signals.code
