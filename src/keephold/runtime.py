"""The runtime: tools, handles and turns in one place. A Python program opens it first."""

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import msgspec

from keephold.durable.calls import Durability
from keephold.durable.deferred import ResolveOutcome
from keephold.durable.keys import Key
from keephold.durable.waits import open_keys
from keephold.errors import ConfigError, KeepholdError
from keephold.handles.clock import Clock, SystemClock
from keephold.handles.handle import HandleInfo
from keephold.handles.observing import Measure, Metrics
from keephold.handles.registry import Registry
from keephold.handles.spool import Spool
from keephold.handles.view import Conditions, Handles
from keephold.ids import parent_of, root_of
from keephold.limits import Limits
from keephold.listeners import Listeners
from keephold.schema.dialects import DIALECTS, Dialect
from keephold.store import open_store
from keephold.store.base import ProcessEvent, Store, address_of
from keephold.store.rows import Level
from keephold.tools.base import Tool, guarded
from keephold.tools.builtin import builtin_tools
from keephold.tools.environment import withhold
from keephold.tools.guard import Guard
from keephold.tools.toolbox import Offers, Toolbox, Tools
from keephold.tools.waiting import NAMES as WAIT_TOOLS
from keephold.tools.waiting import WaitToolHost, need_packages, wait_tools
from keephold.tools.waiting.agents import AgentFunction, Agents
from keephold.tools.workflow.expressions import Expressions
from keephold.turn.actions import Actions
from keephold.turn.admission import Admission
from keephold.turn.approvals import Approvals
from keephold.turn.attach_server import Streams
from keephold.turn.batch import Batch
from keephold.turn.budget import Projector, ProjectorProtocol
from keephold.turn.ending import end_calls, release_waiting
from keephold.turn.inquiry import TIMEOUT_SECS, Inquire, Inquiries, Inquiry
from keephold.turn.notifications import Notifications
from keephold.turn.owner_connection import SearchElsewhere
from keephold.turn.parts import Lifecycle, Parts
from keephold.turn.permission import Permission
from keephold.turn.prompt_queue import PromptQueue
from keephold.turn.prompts import Prompter
from keephold.turn.questions import Questions
from keephold.turn.recovery import Deadlines, Recovery
from keephold.turn.relay import Relay
from keephold.turn.replies import Replies
from keephold.turn.single_calls import CallQueue, CallQueues
from keephold.turn.tool_services import ToolServices
from keephold.turn.turn import Turn
from keephold.upkeep import Upkeep

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from keephold.agent.conversation import Conversation
    from keephold.agent.conversations import Conversations
    from keephold.config import Config
    from keephold.engines.base import Engine
    from keephold.engines.front import FrontEnd
    from keephold.tools.remote.server import McpServer
    from keephold.tools.remote.servers import Servers
    from keephold.tools.terminal.emulator_worker import EmulatorHost

_RETENTION_MEMORY, _RETENTION_STORED = 3600.0, 7 * 86_400.0


class Runtime:
    """Runs tools. Use it as an async context manager; leaving the block ends the work that still runs, or releases it
    for the next runtime on the store.

    `store` is the URL of the store (default: that of the configuration, else `memory:`); `config` is a `keephold.toml`
    whose tools and settings to use. `servers` are MCP servers whose tools to use: they are connected in the background,
    and `connected` waits for them. `builtins` are the names of wait tools that models are offered. `prompter` asks the
    user (`turn/prompts.py`), `inquiry` a model (`turn/inquiry.py`). `metrics` counts handles and waits. `engines` run
    the calls of tools that name them; by default, those of the configuration.
    """

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        *,
        store: str | Store | None = None,
        config: "str | Path | Config | None" = None,
        clock: Clock | None = None,
        projector: ProjectorProtocol | None = None,
        prompter: Prompter | None = None,
        inquiry: Inquire | None = None,
        servers: "Iterable[McpServer]" = (),
        builtins: Iterable[str] = (),
        metrics: Metrics | None = None,
        engines: "Mapping[str, Engine] | None" = None,
    ) -> None:
        loaded = self._config = self._made_with = _load(config)
        self.limits = loaded.limits.policy() if loaded else Limits()
        self.batches: set[Batch] = set()
        """The batches that are not answered yet."""
        self.turns: set[Turn] = set()
        """The open turns."""
        self.on_tools: Listeners[[]] = Listeners()
        """Called when the list of tools has changed."""
        self.agent_functions = Agents()
        """The agents that `execute_agent_async` runs."""
        self._conversations: Conversations | None = None
        self.front_end = _front_end(loaded, engines)
        """The calls that run on engines; None if no engine is configured."""
        _withhold(loaded)
        self._measure = Measure(metrics)
        self._guard = Guard()
        self.expressions = Expressions()
        """The expressions of workflows, in a worker process."""
        detached = loaded.conversation.detached if loaded else "deny"
        if store is None:
            store = (loaded.store_url if loaded else None) or "memory:"
        opened = open_store(store) if isinstance(store, str) else store
        if address_of(opened) is not None:  # its password may be there
            withhold(["PGPASSWORD"], [store] if isinstance(store, str) else ())
        self._guard.spool = opened.directory
        retention = loaded.store.retention_secs if loaded else None
        if retention is None:
            retention = _RETENTION_STORED if opened.durable else _RETENTION_MEMORY
        self.replies = Replies(projector or Projector())
        used = [*servers, *(loaded.mcp_servers() if loaded else ())]
        self._given = [self._on_engine(_checked(tool, self._guard)) for tool in tools]
        self._like = [server.like for server in used]
        self._has_prompter = prompter is not None
        services = ToolServices()
        host = WaitToolHost(
            durability=lambda: self.durability,
            replies=self.replies,
            services=services,
            has_tool=lambda name: self.toolbox.get(name) is not None,
            offered=lambda conversation: self.offers.of(conversation),
            agents=self.agent_functions,
            measure=self._measure,
            expressions=self.expressions,
            detached=detached,
            private_addresses=loaded is not None and loaded.workflows.private_addresses,
            api_hosts=loaded.workflows.api_hosts if loaded else (),
        )
        self._wait_tools = _offered(wait_tools(host), builtins)
        self.toolbox = self._make_toolbox(loaded, self.agent_functions)
        self.toolbox.finders.append(self._toolbox_of)
        self.offers = Offers(self.toolbox, self._tools_of_agent)
        """The tools that each conversation may call."""
        self.registry = Registry(
            opened,
            clock or SystemClock(),
            Spool(opened.directory, self.limits.disk),
            lambda name, conversation: self.toolbox.of(conversation).known(name),
            retention=retention,
        )
        if "opentelemetry.trace" in sys.modules:  # a program that has a tracer provider has imported it
            from keephold.tracing import begin

            begin(self.registry)
        self._measure.begin(self.registry)  # after the traces: a meter counts what they add to commits, too
        if loaded is not None:
            from keephold.config.build import archive_of

            self.registry.shorter = loaded.wait_handles.retention()
            self.registry.archive = archive_of(loaded)
        settings = loaded.conversation.inquiry if loaded else None
        self.inquiries = Inquiries(
            self.registry,
            inquiry,
            assistant=settings.assistant.written() if settings else None,
            timeout=settings.timeout_secs if settings else TIMEOUT_SECS,
        )
        if loaded is not None and loaded.has_model:
            self.inquiries.use(self._inquire)
        self.notifications = Notifications(self.registry, self.replies)
        self.approvals = Approvals(self.registry)
        self.prompt_queue = PromptQueue(prompter, self.approvals)
        self.permission = Permission(detached, self.prompt_queue, self.approvals)
        questions = Questions(self.registry, self.limits, detached, self.prompt_queue, self.inquiries, self.approvals)
        self.durability = Durability(self.registry)
        if self.front_end is not None:
            self.front_end.connect(self.registry, self.durability)
        self.admission = Admission(self.registry, self.toolbox, questions, self.permission, self.replies, self._guard)
        self.recovery = Recovery(self.registry, self.toolbox, self.durability, self.admission)
        self.relay = Relay(self.registry, self.approvals)
        self.registry.output_elsewhere = SearchElsewhere(self.registry, self.relay)
        self.actions = Actions(
            self.registry,
            self.durability,
            self.admission,
            self.permission,
            self.replies,
            self.relay,
            self.toolbox,
            self.limits,
        )
        self.relay.actions, self.relay.recovery = self.actions, self.recovery
        self.recovery.actions = self.actions
        self._lifecycle = Lifecycle(self._open, self._close)
        self._parts = Parts(
            lifecycle=self._lifecycle,
            registry=self.registry,
            toolbox=self.toolbox,
            offers=self.offers,
            limits=self.limits,
            replies=self.replies,
            durability=self.durability,
            inquiries=self.inquiries,
            notifications=self.notifications,
            approvals=self.approvals,
            prompt_queue=self.prompt_queue,
            admission=self.admission,
            recovery=self.recovery,
            relay=self.relay,
            actions=self.actions,
            batches=self.batches,
            turns=self.turns,
        )
        self._call_queues = CallQueues(self._parts)
        services.connect(self._parts, self._call_queues)
        self.streams = self.relay.streams = Streams(self.registry, self.actions)
        self.deadlines = Deadlines(self.registry)
        self.upkeep = Upkeep(self._parts, self.deadlines)
        self.registry.on_cancelled.add(self.recovery.cancelled)
        self.registry.on_held.add(self.recovery.held)
        self.registry.on_deadline.add(self.deadlines.expect)
        if self.front_end is not None:
            self.registry.on_held.add(self.front_end.resolved)
            self.upkeep.on_heard.add(self.front_end.heard)
        self._servers = self._connect(used) if used else None
        self._brought: dict[str, tuple[Toolbox, Servers]] = {}
        """By conversation: the MCP servers that it brought, and the toolbox with their tools (X6)."""
        self._emulators: EmulatorHost | None = None
        """The process that terminals' emulators run in, held while this is open."""

    def _on_engine(self, tool: Tool) -> Tool:
        """Return the tool as its engine runs it, if it names one. Raises `ConfigError` if that is not configured."""
        if tool.engine is None:
            return tool
        if self.front_end is None or tool.engine not in self.front_end.engines:
            why = f"there is no [engines.{tool.engine}] in the configuration, and no `Runtime(engines=…)`"
            raise ConfigError([f'tool `{tool.name}`: engine = "{tool.engine}", but {why}'])
        return self.front_end.on_engine(tool)

    def _make_toolbox(self, config: "Config | None", agents: Agents) -> Toolbox:
        """Collect the given tools, those of the configuration, and the built-ins. Raises `ConfigError`."""
        chosen, waiting = list(self._given), self._wait_tools
        if config is not None:
            from keephold.config import build_tools, configure_builtin

            chosen += map(self._on_engine, build_tools(config, self._guard))
            if config.agents:
                chosen += _layers_above().agent_tools(self, config, agents, self._guard)
            waiting = [configure_builtin(tool, config) for tool in waiting]
        builtins = builtin_tools(
            [*chosen, *self._like],
            self.replies.waited,
            waiting,
            now=lambda name: self.offers.now(name),
            person=self._has_prompter,
        )
        if config is None:
            return Toolbox([*chosen, *builtins])
        builtins = [configure_builtin(tool, config) for tool in builtins]
        shown = config.conversation.actions
        return Toolbox([*chosen, *builtins], max_running=config.runtime.max_running, actions=shown)

    def _connect(
        self, servers: "Iterable[McpServer]", toolbox: Toolbox | None = None, owner: str | None = None
    ) -> "Servers":
        from keephold.tools.remote.server import need_mcp
        from keephold.tools.remote.servers import Servers  # only if servers are used: the import is expensive

        need_mcp()
        return Servers(servers, self._guard, toolbox or self.toolbox, self._tell, self._tools_arrived, owner)

    def _toolbox_of(self, conversation: str) -> Toolbox | None:
        brought = self._brought.get(root_of(conversation)) if self._brought else None
        return None if brought is None else brought[0]

    def _tell(self, kind: str, level: Level, message: str, conversation: str) -> None:
        if not self.closing:
            self.registry.run_soon(self.notifications.notify(kind, level, message, conversation))

    def _tools_arrived(self) -> None:
        """The tools of MCP servers have changed. Calls of dead processes may have waited for them (R1)."""
        self.on_tools()
        if self.registry.store.durable and not self.closing:
            self.registry.run_soon(self.recovery.sweep())

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the store and resume the work of dead processes. Entering the runtime does it."""
        await self._lifecycle.open()

    async def _open(self) -> None:
        store = self.registry.store
        if any(tool.source == "terminal" for tool in self.toolbox):
            from keephold.tools.terminal.emulator_worker import host  # only here: most runtimes have no terminal

            self._emulators = host()
            if self._emulators is not None:
                self._emulators.hold()
        await store.open(self.upkeep.heard)
        if store.durable:
            await self._recover()
        else:
            self.upkeep.begin_collecting()
        if self._servers is not None:
            self._servers.open()

    async def _recover(self) -> None:
        """Resume the work of dead processes, and serve the requests of live ones."""
        store = self.registry.store
        try:
            await self.streams.open()
            await self.registry.collect_sometimes()
            await self.recovery.start()
            await self.deadlines.check()
        except BaseException:
            await self.streams.close()
            await store.close()  # or its lock would claim that a live process runs the claimed calls
            raise
        self.upkeep.begin()

    def turn(self, conversation: str | None = None, *, resume: bool = False, tools: Tools | None = None) -> Turn:
        """Make a turn of a conversation; without a name, of a new one. Open it with `async with`.

        With `resume` it continues a turn that a dead process left open: `turn.unfinished` is the batch that was never
        answered, `turn.resume()` answers it. `tools` are those it may call (default: all that models are offered).
        """
        self._lifecycle.check_open()
        name = f"c-{secrets.token_hex(6)}" if conversation is None else conversation
        return Turn(self._parts, name, f"t-{secrets.token_hex(6)}", resume=resume, tools=tools)

    def conversation(
        self, id: str | None = None, *, model: "Model[Any] | str | None" = None, instructions: str | None = None
    ) -> "Conversation":
        """Open a conversation with a model: that of an earlier `id`, or a new one.

        `model` is a name, `provider:model`, or a model of pydantic-ai (default: that of `[conversation.assistant]`).
        """
        self._lifecycle.check_open()
        made = self.agents.conversation(id, model, instructions)
        self.inquiries.use(self.agents.inquire)
        return made

    @property
    def agents(self) -> "Conversations":
        """The models and conversations of this runtime."""
        if self._conversations is None:
            self._conversations = cast("Conversations", _layers_above().open_conversations(self, self._config))
        return self._conversations

    root_conversation = staticmethod(root_of)
    """Return the top-level conversation that a sub-agent's conversation belongs to."""

    async def _tools_of_agent(self, conversation: str) -> Tools | None:
        """Return the tools of the agent that a conversation belongs to; None if to no agent."""
        if parent_of(conversation) is None:
            return None
        return cast(Tools, await _layers_above().tools_of_agent(self, self._config, conversation))

    async def _inquire(self, inquiry: Inquiry) -> Any:
        return await self.agents.inquire(inquiry)

    def call_queue(self, conversation: str) -> CallQueue:
        """Return the queue that takes calls of a conversation one by one, without a turn."""
        self._lifecycle.check_open()
        return self._call_queues.of(conversation)

    async def connected(self, timeout: float | None = None) -> bool:
        """Wait until every MCP server has listed its tools or could not be reached; return whether all did."""
        await self._parts.ready()
        return self._servers is None or await self._servers.ready(timeout)

    async def add_server(self, server: "McpServer") -> None:
        """Use the tools of one more MCP server, connected in the background. Adding it twice does nothing."""
        await self._parts.ready()
        if self._servers is None:
            self._servers = self._connect([])
        self.toolbox.offer("await", "read_output")
        self._servers.add(server)

    async def _bring_servers(self, conversation: str, servers: "Sequence[McpServer]") -> "Servers":
        """Connect MCP servers in the background whose tools this conversation and its agents alone have, until
        `_dismiss_servers`."""
        await self._parts.ready()
        self.toolbox.offer("await", "read_output")
        own = Toolbox((), actions=self.toolbox.actions, base=self.toolbox)
        brought = self._connect(servers, own, conversation)
        self._brought[conversation] = own, brought
        brought.open()
        return brought

    async def _dismiss_servers(self, conversation: str) -> None:
        """End the servers that a conversation brought. Calls of their tools fail."""
        brought = self._brought.pop(conversation, None)
        if brought is not None:
            await brought[1].close()

    def agent(
        self, id: str, *, on_crash: Literal["replay", "fail"] = "fail", max_running: int | None = None
    ) -> Callable[[AgentFunction], AgentFunction]:
        """Decorator: make `async def (call, request)` the agent of that id, for `execute_agent_async`.

        It returns a text, or an object with `response`. With `replay` it may use `call.durable()` and is run again with
        its journal after a crash, by a runtime that has registered it before it is opened. At most `max_running` of its
        runs run at once; the others queue by priority.
        """

        return self.agent_functions.registering(id, on_crash, max_running)

    def reload(self, config: "Config") -> list[str]:
        """Use the tools, agents and models of this configuration from now on; running calls keep theirs.

        Returns the changed tables that need a new runtime. Raises `ConfigError`, and then nothing has changed."""
        agents = Agents()
        _withhold(config)
        self.toolbox.become(self._make_toolbox(config, agents))
        self.agent_functions.become(agents, instead_of=self._config.agents if self._config is not None else ())
        self._config = config
        if self._conversations is not None:
            self._conversations.config = config
        if config.has_model:
            self.inquiries.use(self._inquire)
        self.on_tools()
        return config.fixed_tables(self._made_with)

    def tools(self, dialect: Dialect = "generic") -> list[dict[str, Any]]:
        """Return the tools as a model sees them, in stable order."""
        if dialect not in DIALECTS:
            raise KeepholdError(f"unknown dialect `{dialect}`; there are {', '.join(DIALECTS)}", code="unknown_dialect")
        return self.toolbox.listed(dialect)

    async def wait(
        self,
        *,
        all: Sequence[str] = (),
        any: Sequence[str] = (),
        output: Conditions = (),
        ready: Sequence[str] = (),
        timeout: float | None = None,
        conversation: str,
    ) -> dict[str, Any]:
        """Wait for handles as `await` does, with values instead of texts and `is_error` in each result. `output` has
        patterns by id."""
        return await self._parts.wait(conversation, all, any, timeout, output, ready)

    async def send(
        self, id: str, input: Any = msgspec.UNSET, *, keys: Sequence[str] = (), conversation: str
    ) -> dict[str, Any]:
        """Send a handle input or a terminal's keys as the user, or answer its open question. None closes its input.

        Returns its state when it has settled. Raises `ToolError` if it is refused.
        """
        return await self._parts.send(conversation, id, input, keys)

    async def resolve(self, key: str, resolution: Mapping[str, Any]) -> ResolveOutcome:
        """Complete the wait that a key stands for: `{"status": "ok", "payload": …}` and its siblings."""
        return await self._parts.resolve(key, resolution)

    async def notify(
        self, kind: str, level: Literal["info", "warning", "error", "critical"], message: str, *, conversation: str
    ) -> None:
        """Queue a notification for the model of a conversation: `kind` is `source.name`."""
        await self._parts.ready()
        await self.notifications.notify(kind, level, message, conversation)

    async def keys(self, id: str, *, conversation: str) -> dict[str, Key]:
        """Return the open keys of the newest handle of that id, by the name of the wait; `completion` is the call's.

        Give them to those who may resolve them, and never to the model.
        """
        await self._parts.ready()
        handle = await Handles(self.registry, conversation).find(id)
        return await open_keys(self.registry.store, handle.uid) if handle.active else {}

    async def revoke_keys(self, conversation: str) -> int:
        """Revoke all open keys of a conversation and stop the calls parked on them. Returns how many."""
        await self._parts.ready()
        return await self.durability.waits.revoke(conversation)

    async def rotate_secret(self) -> str:
        """Sign new keys with a new secret; earlier keys stay valid. Returns the id of the secret."""
        await self._parts.ready()
        return await self.durability.waits.rotate()

    async def process_events(self, process_id: str, *, after: int = 0, limit: int = 1000) -> list[ProcessEvent]:
        """Return the events of a process after the one of that number, oldest first."""
        await self._parts.ready()
        return await self.registry.store.process_events(process_id, after, limit)

    async def handle(self, id: str, *, conversation: str) -> HandleInfo:
        """Return the newest handle of that id."""
        return await self._parts.handle(conversation, id)

    async def handles(
        self,
        *,
        state: Literal["pending", "running", "waiting", "stopped"] | None = None,
        conversation: str | None = None,
        limit: int = 1000,
        after: str | None = None,
    ) -> list[HandleInfo]:
        """Return spawned handles, oldest first; `after` is the last uid of the page before."""
        return await self._parts.handles(conversation, state, limit, after)

    def live(self) -> list[HandleInfo]:
        """Return every handle that this runtime runs, and those whose tool lingers."""
        return [handle.info() for handle in self.registry.live()]

    @property
    def closing(self) -> bool:
        """Whether the runtime is being closed, or is closed."""
        return self._lifecycle.closing

    async def _release_waiting(self) -> bool:
        """Release the calls that only wait to other runtimes on the store; return whether any was.

        From now on this runtime resumes no call of others. Its running calls keep running."""
        self.recovery.adopts = [lambda conversation: False]
        return bool(await release_waiting(self.registry, self.streams.leave))

    async def close(self) -> None:
        """End the work that would not survive, and release the rest for the next runtime on the store."""
        await self._lifecycle.close()

    async def _close(self) -> None:
        self.deadlines.stop()
        self.upkeep.stop()
        with contextlib.suppress(KeepholdError):
            await self.registry.write((), keep=False)  # a key that was resolved just before counts
        self.registry.closing = True
        if self._conversations is not None:
            self._conversations.suspend()
        for turn in tuple(self.turns):
            turn._leave()
        await self.prompt_queue.close()
        self.approvals.close()
        await self.inquiries.close()
        try:
            await end_calls(self.registry, self.admission, self.recovery, self.batches)
        finally:
            self.registry.stop_waiting()
            await self.streams.close()
            if self._servers is not None:
                await self._servers.close()
            for conversation in tuple(self._brought):
                await self._dismiss_servers(conversation)
            if self._conversations is not None:
                await self._conversations.close()
            self.expressions.close()
            await self._guard.leave_kept()
            self._guard.close()
            if self.front_end is not None:
                await self.front_end.close()
            if self._emulators is not None:
                self._emulators.release()
            await self.registry.close()


def _load(config: "str | Path | Config | None") -> "Config | None":
    if config is None:
        return None
    from keephold.config import Config, load_config

    return config if isinstance(config, Config) else load_config(Path(config))


def _front_end(config: "Config | None", engines: "Mapping[str, Engine] | None") -> "FrontEnd | None":
    if engines is None and config is not None and config.engines:
        from keephold.config.build import engines_of

        engines = engines_of(config)
    if not engines:
        return None
    from keephold.engines.front import FrontEnd  # only here: most runtimes use no engine

    return FrontEnd(engines)


def _withhold(config: "Config | None") -> None:
    """Let no child inherit the secrets of the configuration (K10)."""
    if config is not None:
        from keephold.config.secrets import withhold_secrets

        withhold_secrets(config)


def _offered(tools: list[Tool], names: Iterable[str]) -> list[Tool]:
    """Return the wait tools, of which the named ones are offered to models."""
    wanted = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in wanted if name not in WAIT_TOOLS]
    if unknown:
        known = ", ".join(WAIT_TOOLS)
        raise ConfigError([f"builtins: `{name!s:.80}` is not a wait tool; there are {known}" for name in unknown])
    need_packages(wanted)
    return [replace(tool, offered=True) if tool.name in wanted else tool for tool in tools]


def _checked(tool: object, guard: Guard) -> Tool:
    if not isinstance(tool, Tool):
        raise ConfigError([f"{tool!r:.80} is not a tool; make one of a function with @keephold.tool"])
    return guarded(tool, guard)


def _layers_above() -> Any:
    """Load the module that joins the layers above: by name and on first use, because the runtime is below them."""
    return import_module("keephold.assembly")
