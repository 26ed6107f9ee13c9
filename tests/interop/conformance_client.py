"""Our MCP client as the conformance suite's client: `python -m tests.interop.conformance_client URL`.

It calls what the scenario's context says, else every tool with made-up arguments, as a model would.
"""

import asyncio
import json
import os
import sys
from typing import Any

import keephold
from keephold import ToolCall
from keephold.handles.question import form_of
from keephold.tools.builtin import NAMES
from keephold.turn.prompts import Answer, AskQuestion, Decision, Dismissed, Prompt

MADE_UP = {"number": 5, "integer": 5, "string": "a", "boolean": True, "array": [], "object": {}}
FOCAL, ECHO = "json_schema_2020_12_tool", "json_schema_echo"
"""The suite wants to see the schema that came with the first tool as the argument of the second."""


async def person(prompt: Prompt) -> Decision:
    """Keeps what a form suggests."""
    form = form_of(prompt.question) if isinstance(prompt, AskQuestion) else None
    if form is None:
        return Answer(True) if isinstance(prompt, AskQuestion) else Dismissed()
    return Answer({name: field["default"] for name, field in form["properties"].items() if "default" in field})


def calls(tools: list[dict[str, Any]]) -> list[ToolCall]:
    schemas = {tool["name"]: tool["parameters"] for tool in tools if tool["name"] not in NAMES}
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    wanted = {name: _made_up(schema) for name, schema in schemas.items()}
    if ECHO in schemas:
        wanted[ECHO] = {"schema": schemas[FOCAL]}
    listed = [(each["name"], each.get("arguments") or {}) for each in context.get("toolCalls", ())] or wanted.items()
    return [ToolCall(id=str(at), name=name, arguments=arguments) for at, (name, arguments) in enumerate(listed)]


def _made_up(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: MADE_UP.get(field.get("type"), 1) for name, field in (schema.get("properties") or {}).items()}


async def main(url: str) -> None:
    server = keephold.mcp_server("suite", url=url, run="unattended")
    async with keephold.Runtime(servers=[server], prompter=person) as rt:
        await rt.connected(timeout=20)
        async with rt.turn(conversation="main") as turn:
            for call in calls(rt.tools("canonical")):
                (response,) = await turn.run([call])
                print(call.name, call.arguments, response.result)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
