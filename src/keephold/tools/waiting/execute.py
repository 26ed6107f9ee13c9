"""`execute_agent_async`: run an agent beside the conversation, as a handle of kind `agent` (W12)."""

from collections.abc import Mapping
from typing import Any

from keephold.durable.calls import Durability
from keephold.handles.handle import Handle
from keephold.tools.base import Launch, Launching, QuestionPolicy, SpawnPolicy, Tool
from keephold.tools.call import Call
from keephold.tools.function import Function
from keephold.tools.signature import Signature
from keephold.tools.waiting import launch
from keephold.tools.waiting.agents import MAY_RUN, PERMISSION, Agents, permitted, read_request
from keephold.tools.waiting.create import PRIORITY, TIMEOUT
from keephold.tools.waiting.host import WaitToolHost
from keephold.tools.waiting.tool import object_schema
from keephold.tools.waiting.view import TEXT

NAME = "execute_agent_async"
STEP = "agent_step"
DESCRIPTION = "Execute an agent asynchronously. Returns a handle at once; wait for its result with wait_for."
_PROMPT_SHOWN = 100

PARAMETERS = object_schema(
    {
        "agentId": {"type": "string", "minLength": 1, "description": "Which agent."},
        "prompt": {"type": "string", "description": "What it is to do."},
        "model": {"type": "string"},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "maxTokens": {"type": "integer", "minimum": 1},
        "topP": {"type": "number", "minimum": 0, "maximum": 1},
        "systemPrompt": {"type": "string"},
        "context": {
            "type": "array",
            "items": object_schema(
                {"role": {"type": "string", "enum": ["user", "assistant", "system"]}, "content": TEXT},
                ["role", "content"],
            ),
            "description": "What was said before.",
        },
        "tools": {"type": "array", "items": {"type": "string"}},
        "documents": {
            "type": "array",
            "items": object_schema({"id": TEXT, "content": TEXT, "name": TEXT}, ["content"]),
        },
        "timeoutMs": TIMEOUT,
        "priority": PRIORITY,
        "retry": launch.RETRY,
    },
    ["agentId", "prompt"],
)
RETURNS = object_schema({**launch.RETURNS, "agentId": TEXT}, [*launch.REQUIRED, "agentId"])


class _AgentRuns(Function):
    """Runs agents, of each only so many at once."""

    def __init__(self, agents: Agents, *, detached: str | None = None) -> None:
        """`detached`: nothing has asked yet whether the agent may run; with nobody there that decides."""

        async def run(call: Call, **arguments: Any) -> dict[str, Any]:
            if detached is not None:
                await permitted(call, agents.find(arguments["agentId"]), detached)
            return await agents.run(call, arguments, since=launch.created(call))

        super().__init__(run, Signature(DESCRIPTION, PARAMETERS, "call", None))
        self.slots_of = agents.slots_of
        self._agents = agents

    def knows(self, arguments: Mapping[str, Any]) -> bool:
        return self._agents.has(arguments["agentId"])


def agent_step_tool(around: WaitToolHost) -> Tool:
    """What a step of a workflow calls to run an agent to its end: a call with a journal and a place in the queue of its
    own (G2, W11)."""
    return Tool(
        name=STEP,
        description="Run an agent to its end, for a step of a workflow.",
        parameters=PARAMETERS,
        runtime=_AgentRuns(around.agents, detached=around.detached),
        kind="agent",
        errors="object",
        offered=False,
        on_crash="replay",
        questions=dict.fromkeys((MAY_RUN, PERMISSION), QuestionPolicy(exclusive=True)),
    )


def execute_agent_tool(around: WaitToolHost) -> Tool:
    """The tool."""
    agents = around.agents

    def read(arguments: Mapping[str, Any], now: float) -> Launch:
        request = read_request(arguments)
        agent = agents.find(request.agent_id)
        prompt = request.prompt
        shown = prompt if len(prompt) <= _PROMPT_SHOWN else f"{prompt[:_PROMPT_SHOWN]}..."
        model = {} if request.model is None else {"model": request.model}
        return Launch(
            id=launch.handle_id("agent", agent.id, now),
            kind="agent",
            metadata={"agentId": agent.id, **model, "prompt": shown},
            priority=arguments.get("priority") or 0,
            retry=launch.retry(arguments),
            on_crash=agent.on_crash,
            run=None if agent.run == "unattended" else agent.run,
            questions=agent.questions,
        )

    async def reply(handle: Handle, durability: Durability) -> dict[str, Any]:
        record = await durability.registry.store.handle(handle.uid)
        assert record is not None
        if handle.active and record.arguments.get("timeoutMs"):
            launch.Overdue(durability.registry, handle, record.arguments["timeoutMs"], around.end)
        return launch.reply(handle, "Agent", record.arguments) | {"agentId": record.arguments["agentId"]}

    return Tool(
        name=NAME,
        description=DESCRIPTION,
        parameters=PARAMETERS,
        returns=RETURNS,
        runtime=_AgentRuns(agents),
        launching=Launching(read=read, reply=reply, numbered=True),
        kind="agent",
        errors="object",
        offered=False,
        spawn=SpawnPolicy(on_turn_end="keep"),
        hints={"title": "Run an agent", "readOnlyHint": False, "destructiveHint": False, "openWorldHint": True},
    )
