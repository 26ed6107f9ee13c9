"""A runtime's conversations, the models that they share, and inquiries that a model answers (G1, G2, Q2, T2).

For an inquiry, a structured question beside the conversation, the model gets the conversation, then the question. The
asking code checks the answer. Neither becomes part of the conversation.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import msgspec
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from keephold.agent.conversation import Conversation
from keephold.agent.models import Assistant, laid_over, open_assistant
from keephold.agent.requests import TEACHING, ModelCall
from keephold.agent.spending import Allowance, Spending, need_price, usage_of
from keephold.agent.subagents import tools_of
from keephold.agent.transcript import Transcript, response_text
from keephold.config.model import AgentSettings, AssistantSettings, Config
from keephold.errors import KeepholdError
from keephold.ids import conversation_of
from keephold.store.base import HandleQuery
from keephold.text import to_json
from keephold.tools.toolbox import Selection
from keephold.turn.inquiry import Inquiry

if TYPE_CHECKING:
    from keephold.runtime import Runtime

_TOOL = "answer"
_ASKED = "[Automatic question. It is not from the user; answer it by the form that is asked for.]\n"


async def inquire(assistant: Assistant, conversation: Conversation | None, inquiry: Inquiry) -> Any:
    """Return the model's answer, decoded. An exception counts as a failed inquiry."""
    messages = [] if conversation is None else _before(conversation.transcript.messages)
    messages = _with_question(messages, inquiry)
    forms, profile = [_by_tool(inquiry)], assistant.model.profile
    if profile.get("default_structured_output_mode") == "native":
        forms = [_native(inquiry)]
    elif profile.get("supports_json_schema_output"):
        forms.append(_native(inquiry))  # some reasoning models cannot be forced to call a tool, and answer in text
    for form in forms:
        if conversation is not None:
            form = replace(form, instruction_parts=conversation.parameters().instruction_parts)
        response = await ModelCall(assistant, messages, form, None).answer()
        if conversation is not None and conversation.spending is not None:
            conversation.spending.count(usage_of(response))
        with contextlib.suppress(ValueError):
            return _answer(response)
    raise ValueError("the model did not answer in the form that was asked for")


def _before(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Return the history without calls that have no results yet, which providers refuse."""
    last = messages[-1] if messages else None
    if not isinstance(last, ModelResponse) or not last.tool_calls:
        return list(messages)
    said = [part for part in last.parts if isinstance(part, TextPart)]
    calls = "\n".join(f"{part.tool_name} {to_json(part.args).decode()}" for part in last.tool_calls)
    running = UserPromptPart(f"[Automatic message.] You have called these tools, which are running:\n{calls}")
    kept: list[ModelMessage] = list(messages[:-1])
    return [*kept, ModelResponse(said), ModelRequest([running])] if said else [*kept, ModelRequest([running])]


def _with_question(messages: list[ModelMessage], inquiry: Inquiry) -> list[ModelMessage]:
    question = UserPromptPart(_ASKED + inquiry.text)
    last = messages[-1] if messages else None
    if isinstance(last, ModelRequest):
        return [*messages[:-1], ModelRequest([*last.parts, question])]
    return [*messages, ModelRequest([question])]


def _by_tool(inquiry: Inquiry) -> ModelRequestParameters:
    tool = ToolDefinition(
        name=_TOOL, parameters_json_schema=inquiry.schema, description="Answer the question.", kind="output"
    )
    return ModelRequestParameters(
        output_mode="tool",
        output_tools=[tool],
        allow_text_output=False,
        instruction_parts=[InstructionPart(content=TEACHING)],
    )


def _native(inquiry: Inquiry) -> ModelRequestParameters:
    return ModelRequestParameters(
        output_mode="native",
        output_object=OutputObjectDefinition(json_schema=inquiry.schema, name=_TOOL),
        instruction_parts=[InstructionPart(content=TEACHING)],
    )


def _answer(response: ModelResponse) -> Any:
    for part in response.parts:
        if isinstance(part, ToolCallPart) and part.tool_name == _TOOL:
            return part.args_as_dict()
    text = response_text(response).strip()
    if text.startswith("```"):
        text = text.strip("`").removeprefix("json").strip()
    if not text:
        raise ValueError("the model did not answer")
    return msgspec.json.decode(text)


class Conversations:
    """Make conversations, and keep their models and connections until the runtime closes."""

    def __init__(self, runtime: "Runtime", config: Config | None) -> None:
        self._runtime = runtime
        self.config = config or Config()
        self._conversations: WeakValueDictionary[str, Conversation] = WeakValueDictionary()
        self._shared: dict[tuple[str | None, ...], Model[Any]] = {}
        self._models: dict[int, Assistant] = {}
        """The models whose connections are open."""
        self._entered = AsyncExitStack()
        self._entering = asyncio.Lock()

    def assistant(self, settings: AssistantSettings, model: Model[Any] | str | None = None) -> Assistant:
        """Return the model of these settings; the same settings give the same model."""
        if model is not None and not isinstance(model, str):
            return open_assistant(settings, self.config.root, model)
        key = (model or settings.model, settings.base_url, settings.api_key_env)  # what connections depend on
        made = open_assistant(settings, self.config.root, self._shared.get(key, model))
        self._shared[key] = made.model
        return made

    async def enter(self, assistant: Assistant) -> None:
        """Open the model's connections until the runtime closes."""
        async with self._entering:
            if id(assistant.model) not in self._models:
                await self._entered.enter_async_context(assistant.model)
                self._models[id(assistant.model)] = assistant

    def conversation(
        self, id: str | None, model: Model[Any] | str | None = None, own_instructions: str | None = None
    ) -> Conversation:
        """Return a new conversation, or the one of that id."""
        settings = self.config.conversation
        open_here = None if id is None else self._conversations.get(id)
        if open_here is not None:
            raise KeepholdError(f"conversation `{id}` is open here already; use that object", code="turn_open")
        made = Conversation(
            self._runtime,
            f"c-{secrets.token_hex(6)}" if id is None else id,
            self.assistant(settings.assistant, model),
            selection=Selection(self._runtime.toolbox if id is None else self._runtime.toolbox.of(id)),
            own_instructions=(settings.instructions, self.config.surroundings, own_instructions or ""),
            allowance=Allowance(
                max_requests=settings.max_requests, max_tokens=settings.max_tokens, max_cost=settings.max_cost
            ),
            context_tokens=settings.context_tokens,
        )
        self._conversations[made.id] = made
        return made

    def of_agent(
        self,
        id: str,
        agent: AgentSettings,
        parent: str,
        assistant: Assistant,
        *,
        own_instructions: Sequence[str],
        only: Sequence[str] = ("*",),
    ) -> Conversation:
        """Return the conversation of a sub-agent: its tools (limited to `only`), instructions and limits. The calling
        conversation pays for it, too."""
        bound: list[Spending] = []  # the spending of the turn that started it, which it may outlive

        def above() -> Spending | None:
            caller = self._conversations.get(parent)
            if not bound and caller is not None and caller.spending is not None:
                bound.append(caller.spending)
            return bound[0] if bound else None

        above()
        made = Conversation(
            self._runtime,
            id,
            assistant,
            allowance=Allowance(max_requests=agent.max_requests, max_tokens=agent.max_tokens, max_cost=agent.max_cost),
            context_tokens=agent.context_tokens,
            above=above,
            selection=tools_of(self._runtime, id, agent.tools, only),
            own_instructions=own_instructions,
        )
        self._conversations[id] = made
        return made

    async def spent_by_agents(self, conversation: str, turn: str | None = None) -> list[ModelResponse]:
        """Return the responses of agents that a turn, or a whole conversation, started, and of their agents."""
        store, spent = self._runtime.registry.store, list[ModelResponse]()
        after: str | None = None
        while page := await store.handles(
            HandleQuery(conversation=conversation, turn=turn, kind="agent", stateful=None, after=after)
        ):
            for record in page:
                name = conversation_of(conversation, record.arguments.get("agentId", record.tool), record.uid)
                spent += await Transcript(self._runtime.registry, name).responses()
                spent += await self.spent_by_agents(name)
            after = page[-1].uid
        return spent

    async def inquire(self, inquiry: Inquiry) -> Any:
        """Ask the model that the inquiry names, else the model of its conversation."""
        conversation = self._conversations.get(inquiry.conversation)
        if inquiry.assistant:
            assistant = self.assistant(laid_over(self.config.conversation.assistant, inquiry.assistant))
        elif conversation is not None:
            assistant = conversation.assistant
        else:
            assistant = self.assistant(self.config.conversation.assistant)
        if conversation is not None and conversation.spending is not None:
            spent = conversation.spending.spent_up()
            if spent is not None:
                raise KeepholdError(f"the turn may not ask any more: it has taken {spent}", code="limit_exceeded")
            need_price(assistant.model, conversation.spending.max_cost)
        await self.enter(assistant)
        return await inquire(assistant, conversation, inquiry)

    def suspend(self) -> None:
        """Stop asking models: the runtime is closing (R6)."""
        for conversation in tuple(self._conversations.values()):
            conversation.suspend()

    async def close(self) -> None:
        """Close the models' connections."""
        await self._entered.aclose()
