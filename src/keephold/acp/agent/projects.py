"""The projects of an editor: a runtime for each directory and its configuration, all on one store (X6).

Sessions of one directory share a runtime, and with it resources and limits. Its recovery resumes only the calls of
sessions that were opened in it, because a tool of the same name in another project is another tool.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from keephold.acp.agent.shown import check_kinds
from keephold.handles.handle import Handle
from keephold.ids import root_of
from keephold.tools.toolbox import Selection
from keephold.turn.approvals import Approvals
from keephold.turn.prompt_queue import LeftOpen, PromptQueue
from keephold.turn.prompts import Decision, Prompt

if TYPE_CHECKING:
    from keephold.acp.agent.session import AgentSession
    from keephold.agent.conversation import Conversation
    from keephold.config import Config
    from keephold.runtime import Runtime

Find = Callable[[str, Sequence[str]], "tuple[Config, str]"]
"""Return the configuration of a session by its directory and the additional ones, and why a found file is ignored."""


class SessionPrompts:
    """Ask the user at the client that has the session open (P, Q). A `Prompter`; prompts of closed sessions wait until
    they are opened."""

    who = "the user of the editor"

    def __init__(self) -> None:
        self.approvals: Approvals | None = None
        """Those of the runtime, which lists open prompts."""
        self._prompt_queues: WeakValueDictionary[str, PromptQueue] = WeakValueDictionary()
        """Kept as long as a call or a prompt needs them: a conversation has one at a time."""
        self._sessions: dict[str, AgentSession] = {}

    async def __call__(self, prompt: Prompt) -> Decision:
        session = self._sessions.get(root_of(prompt.conversation))
        if session is None:
            raise LeftOpen
        return await session.ask(prompt)

    def of(self, root: str) -> PromptQueue:
        """Return the queue of prompts for calls below that conversation, one at a time (Q5)."""
        prompt_queue = self._prompt_queues.get(root)
        if prompt_queue is None:
            prompt_queue = self._prompt_queues[root] = PromptQueue(self, self.approvals)
        return prompt_queue

    def opened(self, session: "AgentSession") -> None:
        """Ask the prompts that wait: the client has opened the session."""
        self._sessions[session.id] = session
        self.of(session.id).again()

    def closed(self, session: "AgentSession") -> None:
        """Ask nothing until the session is opened again."""
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]

    async def close(self) -> None:
        """Withdraw all prompts."""
        for prompt_queue in tuple(self._prompt_queues.values()):
            await prompt_queue.close()


class Project:
    """One runtime and its open sessions."""

    def __init__(self, runtime: "Runtime", persons: SessionPrompts) -> None:
        self.runtime = runtime
        self.persons = persons
        self.sessions: dict[str, AgentSession] = {}
        self.opening = 0
        """The number of sessions that are being opened here."""
        self._conversations: WeakValueDictionary[str, Conversation] = WeakValueDictionary()
        """Sessions hold them. A runtime has one object for each, which a closed session's remains may still hold."""
        self._adopted: set[str] = set()
        """The sessions that were opened here, whose calls are resumed here."""
        check_kinds(runtime.toolbox)
        persons.approvals = runtime.approvals
        runtime.recovery.adopts.append(self.holds)
        runtime.registry.on_created.add(self._created)
        runtime.prompt_queue.finders.append(lambda handle: persons.of(root_of(handle.conversation)))
        runtime.permission.finders.append(lambda conversation: persons.of(root_of(conversation)))
        runtime.permission.unattended.append(self._unattended)

    def _created(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            session = self.sessions.get(root_of(handle.conversation))
            if session is not None:
                session.calls.created(handle)

    def _unattended(self, conversation: str) -> bool:
        session = self.sessions.get(root_of(conversation))
        return session is not None and session.mode == "unattended"

    @property
    def idle(self) -> bool:
        return not self.sessions and not self.opening and not self.runtime.live()

    def holds(self, conversation: str) -> bool:
        """Return whether the conversation is that of a session opened here, or of one of its agents."""
        return root_of(conversation) in self._adopted

    async def adopt(self, session: str) -> None:
        """Resume the calls that dead processes left in a session."""
        self._adopted.add(session)
        if self.runtime.registry.store.durable:
            await self.runtime.recovery.sweep()

    def forget(self, session: str) -> None:
        """Leave the session's calls to the project that opens it next."""
        self._adopted.discard(session)

    def converse(self, id: str, model: str | None) -> "Conversation":
        """Return the conversation of a session, with the tools of the MCP servers that it has brought now."""
        conversation = self._conversations.get(id)
        if conversation is None:
            conversation = self._conversations[id] = self.runtime.conversation(id, model=model)
        conversation.selection = Selection(self.runtime.toolbox.of(id))
        return conversation

    def opened(self, session: "AgentSession") -> None:
        self.sessions[session.id] = session
        self.persons.opened(session)

    async def closed(self, session: "AgentSession") -> None:
        """End the MCP servers that it brought. Its kept handles continue."""
        self.persons.closed(session)
        del self.sessions[session.id]
        await self.runtime._dismiss_servers(session.id)

    async def close(self) -> None:
        await self.runtime.close()
        await self.persons.close()


class Projects:
    """The projects of one editor. `home` is there for the store; with `find`, sessions have runtimes of their own."""

    def __init__(
        self, runtime: "Runtime", persons: SessionPrompts, *, find: Find | None = None, store: str = "memory:"
    ) -> None:
        self.home = Project(runtime, persons)
        self._find = find
        self._store = store
        self._others: dict[Any, Project] = {}

    def __iter__(self) -> Iterator[Project]:
        yield self.home
        yield from self._others.values()

    async def of(self, cwd: str, additional: Sequence[str]) -> tuple[Project, str]:
        """Return the project of a session, and why the configuration that was found there is ignored. The project is
        not closed before the caller has reduced its `opening`."""
        if self._find is None:
            self.home.opening += 1
            return self.home, ""
        config, ignored = self._find(cwd, additional)
        key = (cwd, *additional), config.root, config.model_dump_json()
        project = self._others.get(key)
        if project is None:
            project = self._others[key] = self._make(config)
        project.opening += 1
        try:
            await project.runtime.open()
        except BaseException:
            project.opening -= 1
            self._others.pop(key, None)
            raise
        return project, ignored

    def _make(self, config: "Config") -> Project:
        from keephold.runtime import Runtime

        persons = SessionPrompts()
        return Project(Runtime(store=self._store, config=config, prompter=persons), persons)

    def holding(self, session: str) -> Project:
        """Return the project in which a session was opened last, else the first one."""
        return next((project for project in self if project.holds(session)), self.home)

    async def close_idle(self) -> None:
        """Close the runtimes that have neither sessions nor running handles."""
        for key in [key for key, project in self._others.items() if project.idle]:
            await self._others.pop(key).close()

    async def close(self) -> None:
        await asyncio.gather(*(project.close() for project in self))
