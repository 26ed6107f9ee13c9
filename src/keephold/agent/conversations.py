"""A runtime's conversations, and the models that they share (G1, G2, Q2)."""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pydantic_ai.messages import ModelResponse

from keephold.agent.conversation import Conversation
from keephold.agent.model_inquiry import inquire
from keephold.agent.models import Assistant, laid_over, open_assistant
from keephold.agent.spending import Allowance, Spending, need_price
from keephold.agent.subagents import tools_of
from keephold.agent.transcript import Transcript
from keephold.config.model import AgentSettings, AssistantSettings, Config
from keephold.durable.lineage import conversation_of
from keephold.errors import KeepholdError
from keephold.store.base import HandleQuery
from keephold.tools.toolbox import Selection
from keephold.turn.inquiry import Inquiry

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from keephold.runtime import Runtime


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

    def assistant(self, settings: AssistantSettings, model: "Model[Any] | str | None" = None) -> Assistant:
        """Return the model of these settings; the same settings give the same model."""
        if model is not None and not isinstance(model, str):
            return open_assistant(settings, self.config.root, model)
        key = (
            model or settings.model,
            settings.base_url,
            settings.api_key_env,
        )  # the settings that connections depend on
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
        self, id: str | None, model: "Model[Any] | str | None" = None, own_instructions: str | None = None
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
