"""An agent of OpenAI's Agents SDK with keephold's tools and a model that says what it was told; prints what the model
read."""

import asyncio
import json
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from tests.interop.toolbox import SCRIPT, TOOLS, cancel_one

from keephold import Runtime
from keephold.adapters import openai_agents


class Scripted(Model):  # type: ignore[misc]
    """Says one line after the other; `read` is what it was sent last, `tools` those it was offered."""

    def __init__(self) -> None:
        self._said = [
            [
                ResponseFunctionToolCall(type="function_call", call_id=id, name=name, arguments=json.dumps(given))
                for id, name, given in calls
            ]
            for calls in SCRIPT
        ]
        self.read: list[Any] = []
        self.tools: list[Any] = []

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: Any, tools: Any, *rest: Any, **options: Any
    ) -> Any:
        self.read, self.tools = list(input), tools
        text = ResponseOutputText(type="output_text", text="done", annotations=[])
        done = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(self._said.pop(0) if self._said else [done], Usage(), None)

    def stream_response(self, *request: Any, **options: Any) -> Any:
        raise NotImplementedError


async def main() -> None:
    set_tracing_disabled(True)
    model = Scripted()
    async with Runtime(TOOLS) as rt:
        tools = openai_agents.tools(rt, "main")
        result = await Runner.run(Agent(name="builder", model=model, tools=tools), "go")
        by_name = {tool.name: tool for tool in tools}
        context = ToolContext(context=None, tool_name="hang", tool_call_id="h", tool_arguments="{}")
        cancelled = await cancel_one(by_name["hang"].on_invoke_tool(context, "{}"))
        shown = [(tool.name, tool.description, tool.params_json_schema) for tool in model.tools]
        offered = shown == [tuple(tool.values()) for tool in rt.tools("openai")]
    read = [
        [item["call_id"], item["output"], None] for item in model.read if item.get("type") == "function_call_output"
    ]
    print(json.dumps({"read": read, "last": result.final_output, "offered": offered, "cancelled": cancelled}))


asyncio.run(main())
