"""Joins the layers above the runtime to it: models, sub-agents, and sub-agents that are other programs over ACP.

No other module knows every layer. The runtime loads this one when it is first asked for a model or an agent.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keephold.agent.conversations import Conversations
    from keephold.config import Config
    from keephold.config.model import AgentSettings
    from keephold.runtime import Runtime
    from keephold.tools.base import Tool
    from keephold.tools.call import Call
    from keephold.tools.guard import Guard
    from keephold.tools.toolbox import Tools
    from keephold.tools.waiting.agents import Agents


def open_conversations(runtime: "Runtime", config: "Config | None") -> "Conversations":
    """Make what holds the models and conversations of a runtime. Raises `KeepholdError` if pydantic-ai is missing."""
    from keephold.agent.models import need_pydantic_ai

    need_pydantic_ai()
    from keephold.agent.conversations import Conversations

    return Conversations(runtime, config)


def agent_tools(runtime: "Runtime", config: "Config", agents: "Agents", guard: "Guard") -> "list[Tool]":
    """Make the tools of the sub-agents that a configuration names."""
    from keephold.agent.subagents import agent_tools

    return agent_tools(runtime, config, agents, guard, _run_program)


async def tools_of_agent(runtime: "Runtime", config: "Config | None", conversation: str) -> "Tools | None":
    """Return the tools of the agent that a conversation belongs to, which may not run here; None if to no agent."""
    from keephold.agent.subagents import tools_by_name

    return await tools_by_name(runtime, config, conversation)


async def _run_program(
    id: str, settings: "AgentSettings", root: Path, guard: "Guard", call: "Call", prompt: str
) -> dict[str, Any]:
    """Run an agent that is another program, over ACP."""
    from keephold.acp.subagent import run_program

    return await run_program(id, settings, root, guard, call, prompt)
