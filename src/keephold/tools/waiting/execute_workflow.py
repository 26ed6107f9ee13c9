"""`execute_workflow_async`: run a workflow beside the conversation, as a durable handle of kind `workflow` (W10, W12).

A crash resumes it at its step. What a failed one has done is kept as its output, in one line of JSON: `wait_for` shows
it as `partialResult`, and `read_output` reads it.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from keephold.durable.calls import Durability
from keephold.errors import ToolError
from keephold.handles.handle import Handle
from keephold.handles.text import to_json
from keephold.tools.base import Launch, Launching, SpawnPolicy, Tool
from keephold.tools.call import Call
from keephold.tools.waiting import launch
from keephold.tools.waiting.execute import STEP
from keephold.tools.waiting.host import WaitToolHost
from keephold.tools.waiting.tool import function_tool, object_schema
from keephold.tools.waiting.view import COUNT, TEXT, came_to, find_all
from keephold.tools.waiting.wait import first, wait
from keephold.tools.workflow import PARAMETERS as OF_WORKFLOWS
from keephold.tools.workflow import WorkflowFailed, definition, read_workflow, run_workflow

NAME = "execute_workflow_async"
PARAMETERS = {**OF_WORKFLOWS, "properties": {**OF_WORKFLOWS["properties"], "retry": launch.RETRY}}
RETURNS = object_schema(
    {**launch.RETURNS, "workflowId": TEXT, "name": TEXT, "stepCount": COUNT},
    [*launch.REQUIRED, "workflowId", "name", "stepCount"],
)


def execute_workflow_tool(around: WaitToolHost) -> Tool:
    """The tool."""

    def read(arguments: Mapping[str, Any], now: float) -> Launch:
        workflow = read_workflow(_definition(arguments))
        missing = list(_missing(workflow.steps, around))
        if missing:  # refused now, and left alone when a dead process is recovered: somebody else may have it (R1)
            raise ToolError("; ".join(missing), code="invalid_arguments")
        return Launch(
            id=launch.handle_id("workflow", workflow.id, now),
            kind="workflow",
            metadata={"workflowId": workflow.id, "name": workflow.name, "stepCount": len(arguments["steps"])},
            priority=workflow.priority,
            retry=launch.retry(arguments),
        )

    async def run(call: Call, **arguments: Any) -> dict[str, Any]:
        registry = call._durability.registry
        workflow = read_workflow(_definition(arguments))
        try:
            return await run_workflow(
                workflow,
                call.durable(),
                _Conversation(call, around),
                now=registry.clock.now,
                private_addresses=around.private_addresses,
            )
        except WorkflowFailed as failed:
            call.emit(to_json(failed.partial) + b"\n")
            raise

    async def reply(handle: Handle, durability: Durability) -> dict[str, Any]:
        record = await durability.registry.store.handle(handle.uid)
        assert record is not None
        given = record.arguments
        if handle.active and given.get("timeoutMs"):
            launch.Overdue(durability.registry, handle, given["timeoutMs"], around.end)
        more = {"workflowId": given["workflowId"], "name": given["name"], "stepCount": len(given["steps"])}
        return launch.reply(handle, "Workflow", given) | more

    return function_tool(
        NAME,
        "Execute a workflow asynchronously. Returns a handle at once; wait for its result with wait_for.",
        PARAMETERS,
        run,
        returns=RETURNS,
        source="python",
        kind="workflow",
        launching=Launching(read=read, reply=reply, numbered=True),
        on_crash="replay",
        spawn=SpawnPolicy(on_turn_end="keep"),
        hints={"title": "Run a workflow", "readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
    )


def _definition(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != "retry"}


def _missing(part: Any, around: WaitToolHost, step: str = "") -> Iterator[str]:
    """What steps, nested ones too, call by names that are nobody's here. A name may also be an expression."""
    match part:
        case definition.Step(id=id, kind=kind):
            yield from _missing(kind, around, id)
        case definition.Tool(name=definition.Value(given=str() as name)) if not around.has_tool(name):
            yield f"step `{step}`: there is no tool `{name}`"
        case definition.Agent(agent_id=definition.Value(given=str() as name)) if not around.agents.has(name):
            yield f"step `{step}`: there is no agent `{name}`"
        case definition.Value():
            pass
        case tuple():
            for each in part:
                yield from _missing(each, around, step)
        case _ if dataclasses.is_dataclass(part):
            for field in dataclasses.fields(part):
                yield from _missing(getattr(part, field.name), around, step)


class _Conversation:
    """The conversation that a workflow runs in (`workflow.Surroundings`)."""

    def __init__(self, call: Call, around: WaitToolHost) -> None:
        self._call = call
        self._around = around

    async def tool(self, name: str, arguments: dict[str, Any], entry: str) -> Any:
        call = self._call
        return await self._around.run(
            call.conversation, name, arguments, label=f"{call.uid}:{entry}", again=call.attempt > 1
        )

    async def agent(self, agent_id: str, parameters: dict[str, Any], entry: str) -> Any:
        self._around.agents.find(agent_id)
        return await self.tool(STEP, {**parameters, "agentId": agent_id}, entry)

    async def wait(self, ids: Sequence[str], mode: Literal["all", "any", "race"], timeout: float | None) -> Any:
        handles = tuple((await find_all(self._call, ids)).values())
        waited = await wait(self._call, mode, handles, None if timeout is None else timeout * 1000)
        if waited.timed_out or waited.needs_input:
            what = "timed out" if waited.timed_out else "cannot go on: the handle waits for input"
            raise ToolError(
                f"waiting for {', '.join(ids)} {what}", code="timeout" if waited.timed_out else "not_running"
            )
        counted = (first(waited),) if mode == "race" else handles
        said = {each.id: came_to(each, self._around.text) for each in counted}
        good = {id: each["result"] for id, each in said.items() if "result" in each}
        bad = [f"{id} failed: {each['error']}" for id, each in said.items() if "error" in each]
        if (bad and mode != "any") or not good:
            raise ToolError("; ".join(bad))
        return good[handles[0].id] if len(handles) == 1 else good

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self._call.progress(done, total, message)
