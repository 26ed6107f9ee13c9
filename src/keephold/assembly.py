"""Which tools a runtime has: those it was given, those of its configuration, and what comes with keephold."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keephold.errors import ConfigError
from keephold.tools.base import Tool
from keephold.tools.builtin import builtin_tools
from keephold.tools.call import Call
from keephold.tools.guard import Guard
from keephold.tools.toolbox import Toolbox
from keephold.tools.waiting.agents import Agents

if TYPE_CHECKING:
    from keephold.config import Config
    from keephold.config.model import AgentSettings
    from keephold.runtime import Runtime
    from keephold.tools.remote.server import McpServer


def assemble(
    runtime: "Runtime",
    tools: Iterable[Tool],
    config: "Config | None",
    *,
    servers: "Sequence[McpServer]",
    waiting: Sequence[Tool],
    guard: Guard,
    agents: Agents,
    person: bool,
) -> Toolbox:
    """The toolbox. `waiting` are the wait tools; `person`: somebody is there to be asked. Raises `ConfigError`."""
    chosen = [_checked(tool, guard) for tool in tools]
    if config is not None:
        from keephold.config import build_tools, configure_builtin

        chosen += build_tools(config, guard)
        if config.agents:
            from keephold.agent.subagents import agent_tools

            chosen += agent_tools(runtime, config, agents, guard, _run_program)
        waiting = [configure_builtin(tool, config) for tool in waiting]
    known = [*chosen, *(server.like for server in servers)]
    builtins = builtin_tools(known, runtime.replies.waited, waiting, now=runtime.tools_of, person=person)
    if config is None:
        return Toolbox([*chosen, *builtins])
    builtins = [configure_builtin(tool, config) for tool in builtins]
    return Toolbox([*chosen, *builtins], max_running=config.runtime.max_running)


async def _run_program(
    id: str, settings: "AgentSettings", root: Path, guard: Guard, call: Call, prompt: str
) -> dict[str, Any]:
    """Run an agent that is another program over ACP, which is imported when the first one runs."""
    from keephold.acp.subagent import run_program

    return await run_program(id, settings, root, guard, call, prompt)


def _checked(tool: object, guard: Guard) -> Tool:
    if not isinstance(tool, Tool):
        raise ConfigError([f"{tool!r:.80} is not a tool; make one of a function with @keephold.tool"])
    guarded = getattr(tool.runtime, "guarded", None)  # SupportsGuard
    return tool if guarded is None else replace(tool, runtime=guarded(guard))
