"""Tools of keephold that the fixture server has for tasks: quick and slow ones, some that fail, some that ask.

Names and arguments are those of the conformance suite; `label` is sent by it and means nothing.
"""

import asyncio
from dataclasses import replace
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

import keephold
from keephold import Call, Question, ToolError


@keephold.tool(task="never")
async def greet(name: str) -> str:
    """Says hello; never a task."""
    return f"Hello, {name}!"


@keephold.tool
async def slow_compute(seconds: float, label: str = "") -> str:
    """Takes so many seconds."""
    await asyncio.sleep(seconds)
    return f"computed in {seconds:g} s"


@keephold.tool(task="required")
async def failing_job() -> str:
    """Fails after a moment; always a task."""
    await asyncio.sleep(0.2)
    raise ToolError("this job always fails")


@keephold.tool(task="required")
async def protocol_error_job() -> str:
    """Ends without an answer of its own; always a task."""
    await asyncio.sleep(0.2)
    raise ToolError("this job never answers", code="mcp_error")


@keephold.tool
async def confirm_delete(call: Call, filename: str) -> str:
    """Asks before it deletes; it deletes nothing."""
    confirmed = await call.ask(Question(id="confirm", text=f"Delete {filename}?", answer_type="Boolean"))
    return f"deleted {filename}" if confirmed else f"kept {filename}"


@keephold.tool
async def multi_input(call: Call) -> str:
    """Asks two questions at once."""
    name, confirmed = await asyncio.gather(
        call.ask(Question(id="name", text="What is your name?")),
        call.ask(Question(id="confirm", text="Go on?", answer_type="Boolean")),
    )
    return f"{name}, {'confirmed' if confirmed else 'not confirmed'}"


@keephold.tool(task="required")
async def test_tool_with_task(name: str = "") -> str:
    """Asks for a name first, then works on as a task."""
    return f"Hello, {name}!"


JOBS = (greet, slow_compute, failing_job, protocol_error_job, confirm_delete, multi_input, test_tool_with_task)


async def name_first(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """A middleware that gets the argument of `test_tool_with_task` from the person, before the call is made."""
    params = dict(ctx.params or {})
    if ctx.method != "tools/call" or params.get("name") != "test_tool_with_task":
        return await call_next(ctx)
    answer = (params.pop("inputResponses", None) or {}).get("user_name")
    if answer is None:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        form = ElicitRequestFormParams(message="What is your name?", requested_schema=schema)
        return InputRequiredResult(input_requests={"user_name": ElicitRequest(params=form)})
    return await call_next(replace(ctx, params={**params, "arguments": {"name": answer["content"]["name"]}}))
