"""An agent in an editor, over the Agent Client Protocol. Run it: `python examples/editor_agent.py`.

This program plays the editor. It starts `keephold acp`, as Zed or Neovim would, sends a prompt, approves a call, and
prints the updates until the turn ends. It needs the `agent` extra, but neither an API key nor a network, because the
model is a function. To use a provider, replace the function by a name such as "anthropic:claude-sonnet-4-5".
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from keephold.acp import PermissionRequest, connect

HERE = str(Path(__file__).resolve().parent)
CONFIG = """
[conversation.assistant]
model = "python:editor_agent:model"

[conversation.tools.check]
source = "local"
command = ["echo", "{{ tool.arguments.package }}: no problems"]
description = "Type-check a package."
parameters.package = { type = "string", required = true }
spawn.stateful = true
"""


# The model


async def _plays(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Play the model: first a batch of two calls, then a streamed answer."""
    if any(isinstance(message, ModelResponse) for message in messages):
        for word in ("The package ", "has no problems."):
            yield word
        return
    calls = [("check", {"action": "spawn", "id": "app", "package": "app"}), ("await", {"all": ["app"]})]
    for at, (name, arguments) in enumerate(calls):
        yield {at: DeltaToolCall(name, json.dumps(arguments), tool_call_id=str(at))}


model = FunctionModel(stream_function=_plays)


# The editor


def decide(permission: PermissionRequest) -> str | None:
    """Approve, as a click would."""
    title = permission.tool_call.get("title")
    print(f"  editor: asked whether {title} may run: yes", flush=True)
    return permission.option("allow_once")


def show(update: dict[str, Any]) -> None:
    """Print an update, as an editor would show it."""
    match update:
        case {"sessionUpdate": "agent_message_chunk", "content": {"text": text}}:
            print(f"  agent: {text}", flush=True)
        case {"sessionUpdate": "tool_call", "title": title, "status": status}:
            print(f"  agent: {title} ({status})", flush=True)
        case {"sessionUpdate": "tool_call_update", "status": "completed", "toolCallId": id}:
            print(f"  agent: call {id} is completed", flush=True)


async def main() -> None:
    command = [sys.executable, "-m", "keephold", "acp", "--config", "keephold.toml", "--store", "sqlite:///work.db"]
    async with connect(command, env={"PYTHONPATH": HERE}, on_permission=decide) as agent:
        session = await agent.new_session(".")
        print("  editor: Check the app.", flush=True)
        turn = session.prompt("Check the app.", on_update=show)
        answer = await turn
        print(f"  editor: the turn has ended ({answer.stop_reason}), by {await turn.drained()}", flush=True)


if __name__ == "__main__":
    print("An agent in an editor:")
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        Path("keephold.toml").write_text(CONFIG)
        asyncio.run(main())
        os.chdir("/")
