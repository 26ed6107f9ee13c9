"""Sub-agents: agents of the configuration as stateful tools, and for `execute_agent_async` (G2).

A sub-agent is a handle with a conversation of its own. Its messages are the handle's output, `apply` sends it a further
message, its last message is the result. After a crash it resumes at the end of its transcript. When it ends, everything
it started is aborted, because no result could be delivered.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keephold.config.model import AgentSettings, Config
from keephold.errors import ToolError
from keephold.handles.state import Failure
from keephold.ids import agent_of, conversation_of, depth_of
from keephold.text import to_json
from keephold.tools.base import ACTIONS, OnCrash, QuestionPolicy, SpawnPolicy, Tool
from keephold.tools.call import Call
from keephold.tools.function import Function
from keephold.tools.guard import Guard
from keephold.tools.signature import Signature
from keephold.tools.toolbox import Selection
from keephold.tools.waiting.agents import PERMISSION, AgentRequest, Agents

if TYPE_CHECKING:
    from keephold.agent.conversation import Conversation
    from keephold.agent.events import Event, TurnAnswer
    from keephold.runtime import Runtime

ABORT_GRACE_MS = 8000
"""The time to end everything a sub-agent started, including its own sub-agents."""
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "minLength": 1, "description": "The task, with all it needs."}},
    "required": ["prompt"],
    "additionalProperties": False,
}
_ROLE = (
    "You work for another assistant, which has given you the task. It sees only your last message: make that the "
    "complete result. It cannot be asked anything."
)


RunProgram = Callable[[str, AgentSettings, Path, Guard, Call, str], Awaitable[dict[str, Any]]]
"""Run an agent that is another program: id, settings, the configuration's directory, guard, call and prompt."""


def tools_of(runtime: "Runtime", conversation: str, patterns: Sequence[str], only: Sequence[str] = ("*",)) -> Selection:
    """Return the tools of the agent whose conversation that is: its own, of those `only` the ones its caller allows."""
    deepest = depth_of(conversation) >= runtime.limits.agent_depth
    toolbox = runtime.toolbox.of(conversation)
    chosen = Selection(toolbox, only)

    def allowed(tool: Tool) -> bool:
        return chosen.has(tool) and not (deepest and tool.kind == "agent")

    return Selection(toolbox, patterns, allowed)


async def tools_by_name(runtime: "Runtime", config: Config | None, conversation: str) -> Selection | None:
    """Return the tools of an agent that does not run in this process, by the name of its conversation and its handle.

    None if the conversation belongs to no agent. An agent that the configuration does not have any more has none."""
    named = agent_of(conversation)
    if named is None:
        return None
    id, uid = named
    settings = None if config is None else config.agents.get(id)
    record = await runtime.registry.store.handle(uid)
    if settings is None or record is None:
        return Selection(runtime.toolbox, ())
    return tools_of(runtime, conversation, settings.tools, record.arguments.get("tools") or ("*",))


class AgentRuns(Function):
    """Run sub-agents. They take no slot of the runtime: their own calls would wait behind them forever (W11)."""

    takes_slot = False


def agent_tools(
    runtime: "Runtime", config: Config, agents: Agents, guard: Guard, run_program: RunProgram
) -> list[Tool]:
    """Return a tool for each agent of the configuration, and register them for `execute_agent_async`."""
    tools = []
    for id in config.agents:
        agent = SubAgent(runtime, config, guard, run_program, id)
        settings = agent.settings
        agents.add(
            id,
            agent.asked,
            agent.on_crash,
            settings.max_running,
            run=settings.run,
            questions=agent.questions,
            tool=id,
        )
        tools.append(agent.tool())
    return tools


class SubAgent:
    """One agent of the configuration."""

    def __init__(self, runtime: "Runtime", config: Config, guard: Guard, run_program: RunProgram, id: str) -> None:
        self._runtime = runtime
        self._config = config
        self._guard = guard
        self._run_program = run_program
        self.id = id
        self.settings: AgentSettings = config.agents[id]

    @property
    def on_crash(self) -> OnCrash:
        """A program's conversation is lost with it; a conversation of ours is in the store."""
        return "fail" if self.settings.command is not None else "replay"

    @property
    def questions(self) -> dict[str, QuestionPolicy]:
        """Only the user answers a program's requests for permission."""
        return {PERMISSION: QuestionPolicy(exclusive=True)} if self.settings.command is not None else {}

    def tool(self) -> Tool:
        settings = self.settings
        description = settings.description or f"An agent named {self.id}."

        async def run(call: Call, prompt: str) -> str:
            return str((await self.run(call, prompt))["response"])

        return Tool(
            name=self.id,
            description=f"{description} An agent: it works by itself and returns its last words.",
            parameters=PARAMETERS,
            runtime=AgentRuns(run, Signature(description, PARAMETERS, "call", None)),
            kind="agent",
            actions=ACTIONS,
            run=settings.run,
            on_crash=self.on_crash,
            max_running=settings.max_running,
            timeout_secs=settings.timeout_secs,
            spawn=SpawnPolicy(abort_grace_ms=ABORT_GRACE_MS, on_turn_end=settings.on_turn_end),
            questions=self.questions,
            hints={"title": self.id, "readOnlyHint": False, "openWorldHint": True},
        )

    async def asked(self, call: Call, request: AgentRequest) -> dict[str, Any]:
        """Run for `execute_agent_async` (W12)."""
        return await self.run(call, _prompt(request), request)

    async def run(self, call: Call, prompt: str, request: AgentRequest | None = None) -> dict[str, Any]:
        """Run the agent to its result. Raises `ToolError` with its last message if it did not finish."""
        if depth_of(call.conversation) >= self._runtime.limits.agent_depth:
            raise ToolError(
                f"agents may start agents {self._runtime.limits.agent_depth} deep ([limits] agent_depth); do it "
                "yourself",
                code="limit_exceeded",
            )
        if self.settings.command is not None:
            own = "cwd" in self.settings.model_fields_set
            here = self._config.root if own else self._config.directory
            return await self._run_program(self.id, self.settings, here, self._guard, call, prompt)
        id = conversation_of(call.conversation, self.id, call.uid)
        conversation = None
        try:
            conversation = self._open(call, id, request)
            answer = await self._converse(call, conversation, prompt)
        except BaseException:
            if not self._runtime.closing:
                await self._end_all(id)
                if conversation is not None and conversation.interrupted:  # nobody will resume its turn
                    await conversation.end_interrupted()
            raise
        return _result(self.id, conversation.assistant.name, answer)

    def _open(self, call: Call, id: str, request: AgentRequest | None) -> "Conversation":
        agency, settings = self._runtime.agents, self.settings
        wanted = settings.assistant_over(agency.config.conversation.assistant)
        own = settings.instructions
        only: tuple[str, ...] = ("*",)
        if request is not None:
            asked = {"temperature": request.temperature, "top_p": request.top_p, "max_tokens": request.max_tokens}
            given = {key: value for key, value in asked.items() if value is not None}
            wanted = wanted.under(given)
            own, only = request.system_prompt or own, request.tools or only
        assistant = agency.assistant(wanted, None if request is None else _asked_model(request))
        return agency.of_agent(
            id,
            settings,
            call.conversation,
            assistant,
            own_instructions=(_ROLE, own, self._config.surroundings),
            only=only,
        )

    async def _converse(self, call: Call, conversation: "Conversation", prompt: str) -> "TurnAnswer":
        await conversation.open()
        conversation.inbox = lambda: [text for text in map(as_message, call.received()) if text]
        show = _Showing(call)
        answer = conversation.finished  # it finished before the crash
        if conversation.interrupted:
            answer = await conversation.resume(listener=show)
        elif answer is None:
            answer = await conversation.prompt(prompt, listener=show)
        await self._end_all(conversation.id)
        while answer.stop_reason == "end_turn" and (said := conversation.received()):  # sent while the turn ended
            answer = await conversation.prompt("\n\n".join(map(str, said)), listener=show)
            await self._end_all(conversation.id)
        return answer

    async def _end_all(self, conversation: str) -> None:
        """Abort the handles that it kept or parked."""
        from keephold.turn.ending import end_conversation

        runtime = self._runtime
        why = Failure(f"Aborted: agent `{self.id}`, which started it, has ended.", "aborted")
        await end_conversation(runtime.registry, runtime.admission, conversation, why)


def as_message(sent: Any) -> str:
    return sent if isinstance(sent, str) else to_json(sent).decode()


class _Showing:
    """Write a sub-agent's events to the output of its handle."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._line = True
        """Whether the output is at the start of a line."""

    def __call__(self, event: "Event") -> None:
        from keephold.agent.events import Called, Retrying, Text, Used

        match event:
            case Text(text):
                self._emit(text)
            case Called(calls):
                for each in calls:
                    given = each.arguments if isinstance(each.arguments, str) else to_json(each.arguments).decode()
                    self._emit(f"{'' if self._line else chr(10)}→ {each.name} {given:.200}\n")
            case Retrying(_, _, why):
                self._emit(f"{'' if self._line else chr(10)}[the model is asked again: {why}]\n")
            case Used(usage):
                self._call.progress(usage.requests, None, "request" if usage.requests == 1 else "requests")

    def _emit(self, text: str) -> None:
        self._call.emit(text)
        self._line = text.endswith("\n")


def _asked_model(request: AgentRequest) -> str | None:
    """Return the requested model. The request may come from a model, so it may not name a module to import."""
    if request.model is not None and request.model.startswith("python:"):
        raise ToolError("`model` must be `provider:name`; modules are named in the configuration only",
                        code="invalid_arguments")  # fmt: skip
    return request.model


def _prompt(request: AgentRequest) -> str:
    said = [f"{each.role}: {each.content}" for each in request.context]
    before = "Said before:\n" + "\n".join(said) if said else ""
    documents = [f'<document name="{each.name or each.id or "document"}">\n{each.content}\n</document>'
                 for each in request.documents]  # fmt: skip
    return "\n\n".join(part for part in (before, *documents, request.prompt) if part)


def _result(id: str, model: str, answer: "TurnAnswer") -> dict[str, Any]:
    if answer.stop_reason in ("error", "refusal", "max_turn_requests", "cancelled"):
        said = f" It had said: {answer.text}" if answer.text else ""
        why = answer.error or answer.stop_reason
        raise ToolError(f"Agent `{id}` did not finish: {why}.{said}", code="model_failed")
    usage = answer.usage
    counted: Mapping[str, Any] = {
        "promptTokens": usage.input_tokens,
        "completionTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens,
    }
    reason = "length" if answer.stop_reason == "max_tokens" else "stop"
    return {"response": answer.text, "model": model, "usage": dict(counted), "finishReason": reason}
