"""Builds the MCP servers of a configuration, with the settings for their tools (M6)."""

import os
from dataclasses import replace

from keephold.config.build import policy_fields, spawn_policy
from keephold.config.model import Config, McpServerSettings, ToolSettings
from keephold.config.source import DEFAULTS
from keephold.config.trust import state_directory
from keephold.tools.base import ACTIONS, SpawnPolicy, Tool
from keephold.tools.remote.login import LoginFile
from keephold.tools.remote.server import McpServer, pattern


def mcp_servers(config: Config) -> list[McpServer]:
    """Return the enabled servers, in order."""
    return [_server(config, name, table) for name, table in config.mcp.servers.items() if table.enabled]


def login_file(url: str) -> LoginFile:
    """Return the file of the user's login at a server."""
    state = state_directory()
    return LoginFile(url, None if state is None else state / "mcp-logins")


def _server(config: Config, name: str, table: McpServerSettings) -> McpServer:
    words = [table.command] if isinstance(table.command, str) else table.command or []
    named = {
        own: (settings.tool or own, _like(own, settings, table.stateful))
        for own, settings in config.conversation.tools.items()
        if settings.source == "mcp" and settings.server == name
    }
    return McpServer(
        name=name,
        command=(*words, *table.args),
        env=table.env,
        pass_env=tuple(table.pass_env),
        cwd=os.path.normpath(config.root / table.cwd) if words else None,
        url=table.url,
        headers=table.headers,
        login=login_file(table.url) if table.oauth and table.url is not None else None,
        timeout_secs=table.timeout_secs,
        tools=None if table.tools is None else tuple(table.tools),
        prefix=table.prefix,
        like=_like("", _defaults(config), table.stateful),
        named=named,
    )


def _defaults(config: Config) -> ToolSettings:
    written = {} if config.source is None else config.source.tool(DEFAULTS)
    return ToolSettings.model_validate({**written, "source": "mcp"})


def _like(name: str, settings: ToolSettings, stateful: bool) -> Tool:
    """Return the policies of a tool; `stateful` is the server's setting, for tools that have none of their own."""
    fields = policy_fields(settings, "head")
    written = settings.spawn.actions is not None or settings.spawn.stateful is not None
    actions = settings.actions if written or not stateful else ACTIONS
    if "on_crash" not in settings.model_fields_set:
        del fields["on_crash"]
    return replace(pattern(), name=name, actions=actions, spawn=spawn_policy(settings, SpawnPolicy()), **fields)
