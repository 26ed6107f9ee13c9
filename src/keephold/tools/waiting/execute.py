"""`execute_agent_async` and `execute_workflow_async`: run an agent or a workflow as a handle of its own (W10, W12).

A workflow is durable: a crash resumes it at its step. The results of a failed one's steps are its output, in one line
of JSON: `wait_for` shows it as `partialResult`, and `read_output` reads it.

Whether a workflow may send requests to a host that the configuration does not list, the user is asked (K10) in a call
of its own, so that the answer is kept: a workflow that runs again after a crash finds the call by its name.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

from keephold.errors import ToolError
from keephold.handles.handle import Handle, OnStop
from keephold.handles.question import Question
from keephold.handles.state import Failure
from keephold.ids import made_id
from keephold.store.base import Record
from keephold.text import instant, to_json
from keephold.tools.base import Launch, Launching, QuestionPolicy, RetryPolicy, SpawnPolicy, Tool
from keephold.tools.call import Call
from keephold.tools.cel import shortened
from keephold.tools.function import Function
from keephold.tools.signature import Signature
from keephold.tools.toolbox import Tools, has
from keephold.tools.waiting.agents import EXECUTE, MAY_RUN, PERMISSION, permitted, read_request
from keephold.tools.waiting.create import PRIORITY, TIMEOUT, timed_out
from keephold.tools.waiting.tool import WaitToolHost, function_tool, object_schema
from keephold.tools.waiting.view import COUNT, TEXT, came_to, label, reply, status, text
from keephold.tools.waiting.wait import first, wait
from keephold.tools.workflow import PARAMETERS as OF_WORKFLOWS
from keephold.tools.workflow import WorkflowFailed, read_workflow, run_workflow
from keephold.tools.workflow.definition import all_steps, config_of
from keephold.tools.workflow.http import Http

ALLOW_HOST = "allow_api_host"
"""The tool that asks, and the id of its question. Only workflows call it."""
_PARAMETERS = object_schema("host request", host={"type": "string"}, request={"type": "object"})


def allow_host_tool(detached: str) -> Tool:
    """Make the tool; `detached` is that of `WaitToolHost`.

    It returns if the user allows the host, and raises `ToolError` if not.
    """

    async def allow_api_host(call: Call, host: str, request: dict[str, Any]) -> bool:
        """Ask the user whether a workflow may send requests to a host."""
        question = Question(
            id=ALLOW_HOST,
            text=f"May this workflow send requests to `{host}`?",
            pre_amble=f"The first request is:\n{to_json(request).decode()}",
            answer_type="Boolean",
        )
        try:
            allowed = await call.ask(question)
        except ToolError as error:
            if error.code != "question_unanswered":
                raise
            if detached != "auto":
                raise ToolError(
                    f"A workflow needs permission to send requests to `{host}`, and nobody is there to give it. To "
                    f'allow it, add "{host}" to `api_hosts` in [workflows], or set `detached = "auto"` in '
                    "[conversation].",
                    code="permission_denied",
                ) from None
            allowed = True
        if not allowed:
            raise ToolError(f"The user does not allow requests to `{host}`.", code="permission_denied")
        return True

    exclusive = {ALLOW_HOST: QuestionPolicy(exclusive=True)}
    return function_tool(_PARAMETERS, allow_api_host, source="python", questions=exclusive)


_RETRY = object_schema(
    "maxAttempts",
    maxAttempts={"type": "integer", "minimum": 1, "maximum": 100, "description": "Attempts, with the first."},
    baseDelayMs=COUNT | {"description": "Milliseconds before the second attempt. Default: 200."},
    maxDelayMs=COUNT | {"description": "Maximum pause in milliseconds; each pause doubles. Default: 5000."},
) | {"description": "Try again after a transient failure. Default: never."}
_SHOWN = 20
"""Unknown tools and agents that an error names."""
_STARTED = "async handleId status message startTime timeout?"


def _handle_id(kind: str, name: str, now: float) -> str:
    """Return `agent_<agentId>_<ms>`; characters that an id may not have become `-` (W12)."""
    return f"{kind}_{made_id(name)}_{int(now * 1000)}"


def _retry(arguments: Mapping[str, Any]) -> RetryPolicy | None:
    """Return the retry policy that the call asks for."""
    given = arguments.get("retry")
    if given is None:
        return None
    return RetryPolicy(
        policy="safe",
        max_attempts=given["maxAttempts"],
        base_delay_ms=given.get("baseDelayMs", 200),
        max_delay_ms=given.get("maxDelayMs", 5000),
    )


def _launching(host: WaitToolHost, kind: str, own: Callable[[dict[str, Any]], dict[str, Any]], **how: Any) -> Launching:
    """Return how a call starts an agent or a workflow. `own` returns further fields of the reply."""

    async def reply(handle: Handle, record: Record) -> dict[str, Any]:
        given, waiting = record.arguments, to_json({"handleId": handle.id}).decode()
        timeout_ms = given.get("timeoutMs")
        if timeout_ms and handle.active:
            _end_when_overdue(host, handle, timeout_ms)
        answer = {
            "async": True,
            "handleId": handle.id,
            "status": status(handle),
            "message": f"{kind} execution started asynchronously. Wait for it with wait_for {waiting}.",
            "startTime": instant(handle.state.created),
        }
        return answer | ({"timeout": timeout_ms} if timeout_ms else {}) | own(given)

    return Launching(reply=reply, numbered=True, **how)


def _end_when_overdue(host: WaitToolHost, handle: Handle, timeout_ms: float) -> None:
    """End a call at its timeout while no attempt of it runs: before the first one, or between two (W5)."""

    def due() -> None:
        run, registry = handle.run, host.registry
        if handle.active and not registry.closing and (run is None or run.live is None):
            registry.run_soon(host.services.end(handle, Failure(timed_out(timeout_ms), "timeout"), "timeout"))

    left = handle.state.created + timeout_ms / 1000 - host.now()
    timer = asyncio.get_running_loop().call_later(max(0.0, left), due)
    handle.watch(OnStop(lambda _: timer.cancel()))


STEP = "agent_step"
DESCRIPTION = (
    "Execute an agent asynchronously. Returns a handle at once; wait for its result with wait_for. Use it to hand over "
    "work that needs a model of its own; several agents run side by side. Do not use it for what one tool does. The "
    "result has the agent's `response`."
)
_PROMPT_SHOWN = 100

_AGENTS_OWN = "Default: the agent's own."
_ROLE = {"type": "string", "enum": ["user", "assistant", "system"]}
_MESSAGE = object_schema("role content", role=_ROLE, content=TEXT)
AGENT_PARAMETERS = object_schema(
    "agentId prompt",
    agentId={"type": "string", "minLength": 1, "description": "The id of a registered agent."},
    prompt=text("The task. The agent knows only this, `context` and `documents`."),
    model=label(f"The model's name. {_AGENTS_OWN}"),
    temperature={"type": "number", "minimum": 0, "maximum": 2, "description": _AGENTS_OWN},
    maxTokens={"type": "integer", "minimum": 1, "description": f"Tokens of an answer. {_AGENTS_OWN}"},
    topP={"type": "number", "minimum": 0, "maximum": 1, "description": _AGENTS_OWN},
    systemPrompt=text(f"Its instructions. {_AGENTS_OWN}"),
    context={
        "type": "array",
        "items": _MESSAGE,
        "description": "Earlier messages, oldest first. Default: none.",
    },
    tools={"type": "array", "items": TEXT, "description": "Names of the tools it may use. Default: all of its own."},
    documents={
        "type": "array",
        "items": object_schema("content", id=TEXT, content=TEXT, name=TEXT),
        "description": "Texts for it to read. Default: none.",
    },
    timeoutMs=TIMEOUT,
    priority=PRIORITY,
    retry=_RETRY,
)
AGENT_RETURNS = reply(f"{_STARTED} agentId")


class _AgentRuns(Function):
    """Runs agents, of each at most its `max_running` at once."""

    def __init__(self, host: WaitToolHost, *, asks: bool = False) -> None:
        """`asks`: nothing has asked yet whether the agent may run."""
        agents = host.agents

        async def run(call: Call, **arguments: Any) -> dict[str, Any]:
            if asks:
                await permitted(call, agents.find(arguments["agentId"]), host.detached)
            return await agents.run(host, call, arguments)

        super().__init__(run, Signature(DESCRIPTION, AGENT_PARAMETERS, "call", None))
        self.slots_of = agents.slots_of
        self._agents = agents

    def knows(self, arguments: Mapping[str, Any]) -> bool:
        return self._agents.has(arguments["agentId"])


def agent_step_tool(host: WaitToolHost) -> Tool:
    """Make the tool that a workflow's step calls to run an agent: a call with its own journal and queue entry (G2)."""
    return Tool(
        name=STEP,
        description="Run an agent to its end, for a step of a workflow.",
        parameters=AGENT_PARAMETERS,
        runtime=_AgentRuns(host, asks=True),
        kind="agent",
        errors="object",
        offered=False,
        on_crash="replay",
        questions=dict.fromkeys((MAY_RUN, PERMISSION), QuestionPolicy(exclusive=True)),
    )


def execute_agent_tool(host: WaitToolHost) -> Tool:
    agents = host.agents

    def read(arguments: Mapping[str, Any], now: float, tools: Tools | None) -> Launch:
        request = read_request(arguments)
        agent = agents.find(request.agent_id, tools)
        prompt = request.prompt
        shown = prompt if len(prompt) <= _PROMPT_SHOWN else f"{prompt[:_PROMPT_SHOWN]}..."
        model = {} if request.model is None else {"model": request.model}
        return Launch(
            id=_handle_id("agent", agent.id, now),
            kind="agent",
            metadata={"agentId": agent.id, **model, "prompt": shown},
            priority=arguments.get("priority") or 0,
            retry=_retry(arguments),
            on_crash=agent.on_crash,
            run=None if agent.run == "unattended" else agent.run,
            questions=agent.questions,
        )

    return Tool(
        name=EXECUTE,
        description=DESCRIPTION,
        parameters=AGENT_PARAMETERS,
        returns=AGENT_RETURNS,
        runtime=_AgentRuns(host),
        launching=_launching(host, "Agent", lambda given: {"agentId": given["agentId"]}, read=read),
        kind="agent",
        errors="object",
        offered=False,
        spawn=SpawnPolicy(on_turn_end="keep"),
        hints={"title": "Run an agent", "readOnlyHint": False, "destructiveHint": False, "openWorldHint": True},
    )


WORKFLOW_PARAMETERS = {**OF_WORKFLOWS, "properties": {**OF_WORKFLOWS["properties"], "retry": _RETRY}}
WORKFLOW_RETURNS = reply(f"{_STARTED} workflowId name stepCount")


def execute_workflow_tool(host: WaitToolHost) -> Tool:
    def read(arguments: Mapping[str, Any], now: float, tools: Tools | None) -> Launch:
        missing = list(islice(_missing(arguments["steps"], host, tools), _SHOWN))
        if missing:  # refused now, and not recovered after a crash: another process may have it (R1)
            raise ToolError("; ".join(missing), code="invalid_arguments")
        id, name, count = arguments["workflowId"], arguments["name"], len(arguments["steps"])
        return Launch(
            id=_handle_id("workflow", id, now),
            kind="workflow",
            metadata={"workflowId": id, "name": name, "stepCount": count},
            priority=arguments.get("priority") or 0,
            retry=_retry(arguments),
        )

    async def check(arguments: Mapping[str, Any]) -> None:
        await read_workflow(_definition(arguments), host.expressions)

    async def execute_workflow_async(call: Call, **arguments: Any) -> dict[str, Any]:
        """Execute a workflow asynchronously. Returns a handle at once; wait for its result with wait_for. Use it for
        several steps that need no decision of yours in between; they continue after a crash. Do not use it for one call
        of a tool. The result is that of the last step; a failed workflow has the steps' results in `partialResult`.
        """
        workflow = await read_workflow(_definition(arguments), host.expressions)
        conversation = _Conversation(call, host)
        try:
            return await run_workflow(
                workflow,
                call.durable(),
                conversation,
                expressions=host.expressions,
                now=host.now,
                http=Http(private=host.private_addresses, hosts=host.api_hosts, permit=conversation.may_ask),
            )
        except WorkflowFailed as failed:
            call.emit(to_json(failed.partial) + b"\n")
            raise

    def own(given: dict[str, Any]) -> dict[str, Any]:
        return {"workflowId": given["workflowId"], "name": given["name"], "stepCount": len(given["steps"])}

    return function_tool(
        WORKFLOW_PARAMETERS,
        execute_workflow_async,
        returns=WORKFLOW_RETURNS,
        source="python",
        kind="workflow",
        launching=_launching(host, "Workflow", own, read=read, check=check),
        on_crash="replay",
        spawn=SpawnPolicy(on_turn_end="keep"),
        hints={"title": "Run a workflow", "readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
    )


def _definition(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != "retry"}


def _missing(steps: Any, host: WaitToolHost, tools: Tools | None) -> Iterator[str]:
    """Yield the unknown tools and agents that steps name, nested ones included. A name may also be an expression.

    Tools that the conversation is not offered are unknown; for a workflow that was started before, only those that this
    process does not have."""
    for step in all_steps(steps):
        where, config = f"step `{shortened(step['id'])}`", config_of(step)
        match step["type"], config.get("name"), config.get("agentId"):
            case "tool", str() as name, _:
                if not (host.has_tool(name) if tools is None else has(tools, name)):
                    yield f"{where}: there is no tool `{shortened(name)}`"
            case "agent", _, str() as name:
                if not host.agents.has(name, tools):
                    yield f"{where}: there is no agent `{shortened(name)}`"


class _Conversation:
    """The conversation that a workflow runs in (a `WorkflowHost`)."""

    def __init__(self, call: Call, host: WaitToolHost) -> None:
        self._call = call
        self._host = host

    async def tool(self, name: str, arguments: dict[str, Any], entry: str, *, internal: bool = False) -> Any:
        call, label = self._call, f"{self._call.uid}:{entry}"
        again = call.attempt > 1
        return await self._host.services.run(
            call.conversation, name, arguments, label=label, again=again, internal=internal
        )

    async def agent(self, agent_id: str, parameters: dict[str, Any], entry: str) -> Any:
        self._host.agents.find(agent_id, await self._host.offered(self._call.conversation))
        return await self.tool(STEP, {**parameters, "agentId": agent_id}, entry, internal=True)

    async def may_ask(self, host: str, request: dict[str, Any], entry: str) -> None:
        """Ask the user whether requests to a host may be sent. Raises `ToolError` if not."""
        await self.tool(ALLOW_HOST, {"host": host, "request": request}, entry, internal=True)

    async def wait(self, ids: Sequence[str], mode: Literal["all", "any", "race"]) -> Any:
        handles = tuple((await self._host.find_all(self._call, ids)).values())
        waited = await wait(self._host, self._call, mode, handles, None)
        if waited.needs_input:
            what = "cannot continue: the handle waits for input"
            raise ToolError(f"waiting for {', '.join(ids)} {what}", code="not_running")
        counted = (first(waited),) if mode == "race" else handles
        said = {each.id: came_to(each, self._host.replies.printed) for each in counted}
        good = {id: each["result"] for id, each in said.items() if "result" in each}
        bad = [f"{id} failed: {each['error']}" for id, each in said.items() if "error" in each]
        if (bad and mode != "any") or not good:
            raise ToolError("; ".join(bad))
        return good[handles[0].id] if len(handles) == 1 else good

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self._call.progress(done, total, message)
