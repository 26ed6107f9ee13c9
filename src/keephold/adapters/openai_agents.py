"""keephold's tools for agents of OpenAI's Agents SDK, which calls tools one at a time (G4).

    agent = Agent(name="builder", tools=openai_agents.tools(rt, "main"))

Each call is a batch of its own, and no turn ends: the model finds its handles in the next run of the conversation.
"""

from typing import Any

from keephold.adapters._parts import answered, need_package
from keephold.runtime import Runtime

__all__ = ["tools"]


def tools(rt: Runtime, conversation: str) -> list[Any]:
    """Return the tools, for `Agent(tools=…)`. Their handles belong to the conversation."""
    need_package("keephold.adapters.openai_agents", "agents", "openai-agents")
    return [_tool(rt, conversation, **tool) for tool in rt.tools("openai")]


def _tool(rt: Runtime, conversation: str, name: str, description: str, parameters: dict[str, Any]) -> Any:
    from agents import FunctionTool

    async def invoke(context: Any, arguments: str) -> str:
        text, _ = await answered(rt, conversation, name, arguments)  # the text of a failed call says so
        return text

    # Not strict: the SDK would rewrite the schema, and refuse one that it cannot make strict.
    return FunctionTool(name, description, parameters, invoke, strict_json_schema=False)
