"""keephold's tools for agents of the Claude Agent SDK, as an MCP server in this process (G4).

    ClaudeAgentOptions(mcp_servers={"keephold": claude_agent.server(rt, "main")}, allowed_tools=["mcp__keephold"])

The server is that of `keephold mcp`, without a process of its own. The SDK is not needed here: it takes a dictionary.
"""

from typing import Any

from keephold.runtime import Runtime

__all__ = ["server"]


def server(rt: Runtime, conversation: str) -> Any:
    """Return the server, for `ClaudeAgentOptions(mcp_servers=…)`. Its handles belong to the conversation."""
    from keephold.mcp.server import Server  # names the extra if it is not installed

    made = Server(rt, conversation=conversation, middleware=[_without_forms])
    return {"type": "sdk", "name": "keephold", "instance": made._lowlevel_server}


async def _without_forms(ctx: Any, call_next: Any) -> Any:
    """Claude Code declares that it shows forms, but the SDK refuses them: the runtime's prompter is asked instead."""
    capabilities = ctx.session.client_capabilities
    if capabilities is not None:
        capabilities.elicitation = None
    return await call_next(ctx)
