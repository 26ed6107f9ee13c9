"""Agents: functions that `execute_agent_async` runs beside the conversation (W12).

A program registers them with `@rt.agent("id")`. Each has its own `max_running`, queued by priority (W11), and its own
`on_crash`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from keephold.errors import ConfigError, ToolError, WrongArguments
from keephold.handles.question import Question
from keephold.text import instant
from keephold.tools.base import OnCrash, QuestionPolicy, RunMode
from keephold.tools.call import Call
from keephold.tools.toolbox import Tools, has, nearest
from keephold.tools.waiting.create import timed_out
from keephold.tools.waiting.tool import WaitToolHost

EXECUTE = "execute_agent_async"
"""The tool that runs agents by their ids."""
MAY_RUN = "run_agent"
"""The question whether an agent may run; only the user answers it."""
PERMISSION = "permission"
"""The question of an agent that is a program (`acp/subagent.py`); only the user answers it."""


class Message(msgspec.Struct, frozen=True):
    """A message of the earlier conversation."""

    role: str
    content: str


class Document(msgspec.Struct, frozen=True, omit_defaults=True):
    """A document for the agent."""

    content: str
    id: str | None = None
    name: str | None = None


class AgentRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The request to an agent. If a field is None, the agent decides."""

    agent_id: str
    prompt: str
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    system_prompt: str | None = None
    context: tuple[Message, ...] = ()
    tools: tuple[str, ...] = ()
    documents: tuple[Document, ...] = ()
    timeout_ms: float | None = None


AgentFunction = Callable[[Call, AgentRequest], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Agent:
    id: str
    function: AgentFunction
    on_crash: OnCrash
    max_running: int | None
    run: RunMode = "unattended"
    """Whether starting it needs permission (P1)."""
    questions: Mapping[str, QuestionPolicy] = field(default_factory=dict)
    tool: str = EXECUTE
    """The tool without which a conversation may not run it (K10)."""


class Agents:
    def __init__(self) -> None:
        self._agents: dict[str, Agent] = {}

    def become(self, other: "Agents", instead_of: Iterable[str]) -> None:
        """Use the agents of another registry from now on, instead of those with these ids."""
        gone = frozenset(instead_of)
        self._agents = {id: agent for id, agent in self._agents.items() if id not in gone} | other._agents

    def registering(
        self, id: str, on_crash: OnCrash, max_running: int | None
    ) -> Callable[[AgentFunction], AgentFunction]:
        """Return a decorator that makes a function an agent."""

        def register(function: AgentFunction) -> AgentFunction:
            self.add(id, function, on_crash, max_running)
            return function

        return register

    def add(
        self,
        id: str,
        function: AgentFunction,
        on_crash: OnCrash,
        max_running: int | None,
        *,
        run: RunMode = "unattended",
        questions: Mapping[str, QuestionPolicy] | None = None,
        tool: str = EXECUTE,
    ) -> None:
        """Register a function as an agent. Only conversations that are offered `tool` may run it."""
        if not id or id in self._agents:
            why = "is registered already; choose another id" if id else "needs an id that is not empty"
            raise ConfigError([f"agent `{id}` {why}"])
        if not asyncio.iscoroutinefunction(function):
            raise ConfigError([f"agent `{id}`: {function!r:.80} is not async; make it `async def (call, request)`"])
        if on_crash not in ("replay", "fail"):
            raise ConfigError([f'agent `{id}`: on_crash must be "replay" or "fail", not {on_crash!r}'])
        if max_running is not None and max_running < 1:
            raise ConfigError([f"agent `{id}`: max_running must be 1 or more, not {max_running}"])
        self._agents[id] = Agent(id, function, on_crash, max_running, run, questions or {}, tool)

    @property
    def ids(self) -> list[str]:
        return list(self._agents)

    def has(self, id: str, tools: Tools | None = None) -> bool:
        """Whether there is an agent of that id; with `tools`, whether these offer it."""
        agent = self._agents.get(id)
        return agent is not None and (tools is None or has(tools, agent.tool))

    def find(self, id: str, tools: Tools | None = None) -> Agent:
        """Return the agent of that id. Raises a `ToolError` that lists the known ones. With `tools`, agents that these
        do not offer are unknown (K10)."""
        agent = self._agents.get(id)
        if agent is None or (tools is not None and not has(tools, agent.tool)):
            offered = [each.id for each in self._agents.values() if tools is None or has(tools, each.tool)]
            known = ", ".join(offered) or "none; a program registers them with @rt.agent"
            why = f"Agent {id} not found; known agents: {known}"
            raise WrongArguments(
                why, instead=dict.fromkeys(("agentId",) if offered else (), (*nearest(id, offered), *offered, "")[0])
            )
        return agent

    def slots_of(self, arguments: Mapping[str, Any]) -> dict[str, int]:
        """Return the slots that a run of the agent needs (W11)."""
        agent = self._agents.get(arguments["agentId"])
        return {} if agent is None or agent.max_running is None else {f"agent:{agent.id}": agent.max_running}

    async def run(self, host: WaitToolHost, call: Call, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Run an agent and return its result. Its timeout starts when its handle is made (W5)."""
        request = read_request(arguments)
        agent = self.find(request.agent_id)
        limit = request.timeout_ms or None
        left = None if limit is None else host.created(call) + limit / 1000 - host.now()
        if limit is not None and left is not None and left <= 0:  # it was queued, paused or without an owner too long
            raise ToolError(timed_out(limit), code="timeout")
        try:
            async with asyncio.timeout(left) as timeout:
                value = await agent.function(call, request)
        except TimeoutError:
            if limit is None or not timeout.expired():
                raise
            raise ToolError(timed_out(limit), code="timeout") from None
        return _result(request, value, host.now())


async def permitted(call: Call, agent: Agent, detached: str) -> None:
    """Ask the user whether the agent may run, if nothing has asked yet (P1). Without a user `detached` decides."""
    if agent.run == "unattended":
        return
    question = Question(id=MAY_RUN, text=f"Run agent `{agent.id}`?", answer_type="Boolean")
    try:
        allowed = agent.run != "skip" and await call.ask(question)
    except ToolError as error:
        if error.code != "question_unanswered":
            raise
        allowed = detached == "auto"
        if not allowed:
            raise ToolError(
                f'Agent `{agent.id}` needs permission to run (`run = "{agent.run}"`) and nobody is there to give it. '
                f'To allow it, set `run = "unattended"` in [agents.{agent.id}], or `detached = "auto"` in '
                "[conversation].",
                code="permission_denied",
            ) from None
    if not allowed:
        raise ToolError(f"Agent {agent.id} was skipped by user.", code="permission_denied")


def read_request(arguments: Mapping[str, Any]) -> AgentRequest:
    """Return the request of these arguments. Raises `ToolError`."""
    try:
        return msgspec.convert(arguments, AgentRequest)
    except msgspec.ValidationError as error:
        raise ToolError(f"not what an agent can be asked: {error}", code="invalid_arguments") from None


def _result(request: AgentRequest, value: Any, now: float) -> dict[str, Any]:
    """A text is the response; an object with `response` may add to it."""
    said = value if isinstance(value, dict) and "response" in value else {"response": value}
    return {
        "agentId": request.agent_id,
        "response": said["response"],
        "model": said.get("model", request.model),
        "usage": said.get("usage"),
        "finishReason": said.get("finishReason", "stop"),
        "timestamp": instant(now),
    }
