"""keephold's agent over ACP: one runtime and one store for all sessions of a client, on one connection (X1).

A session's id is its conversation's id. Methods are answered in tasks of their own, so that a turn delays nothing else;
a prompt, a cancel or a mode must keep its order, so it is begun when it is read.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import msgspec

from keephold.acp.agent.content import prompt_content
from keephold.acp.agent.describing import check_kinds
from keephold.acp.agent.params import (
    client_of,
    cursor_of,
    directory,
    is_session,
    listed,
    next_cursor,
    normal,
    servers,
    string,
)
from keephold.acp.agent.replay import replay_session
from keephold.acp.agent.session import MODES, AgentSession, Client, Mode, Signal
from keephold.acp.agent.updates import current_mode
from keephold.acp.rpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PROTOCOL_VERSION,
    RESOURCE_NOT_FOUND,
    TURN_COMPLETE,
    Id,
    Params,
    RpcError,
    invalid_params,
    unknown_method,
)
from keephold.acp.wire import Peer
from keephold.errors import ConfigError, KeepholdError
from keephold.handles.handle import Handle
from keephold.handles.state import Failure
from keephold.store.base import ConversationRow, Forgotten, Store
from keephold.turn.approvals import Approvals
from keephold.turn.ending import end_conversation
from keephold.turn.lineage import root_of
from keephold.turn.prompt_queue import LeftOpen, PromptQueue
from keephold.turn.prompts import Decision, Prompt

if TYPE_CHECKING:
    from keephold.acp.agent.session import AgentSession
    from keephold.agent.conversation import Conversation
    from keephold.runtime import Runtime
    from keephold.tools.remote.server import McpServer


class SessionPrompts:
    """Ask the user at the client that has the session open (P, Q). A `Prompter`; prompts of closed sessions wait until
    they are opened."""

    who = "the user of the editor"

    def __init__(self) -> None:
        self.approvals: Approvals | None = None
        """Those of the runtime, which lists open prompts."""
        self._people: WeakValueDictionary[str, PromptQueue] = WeakValueDictionary()
        """Kept as long as a call or a prompt needs them: a conversation has one at a time."""
        self._sessions: dict[str, AgentSession] = {}

    async def __call__(self, prompt: Prompt) -> Decision:
        session = self._sessions.get(root_of(prompt.conversation))
        if session is None:
            raise LeftOpen
        return await session.ask(prompt)

    def of(self, root: str) -> PromptQueue:
        """Return the queue of prompts for calls below that conversation, one at a time (Q5)."""
        people = self._people.get(root)
        if people is None:
            people = self._people[root] = PromptQueue(self, self.approvals)
        return people

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
        for people in tuple(self._people.values()):
            await people.close()


_DELETE_PAGE = 1000
_ENDED = Failure("Aborted: its session was deleted.", "aborted")


async def delete(runtime: "Runtime", session: str) -> None:
    """Delete a closed session with the conversations of its sub-agents. An unknown session is not an error."""
    registry = runtime.registry
    await end_conversation(registry, runtime.admission, session, _ENDED)
    conversations = await _below(registry.store, session)
    for conversation in conversations:  # of sub-agents that a crash has left
        await end_conversation(registry, runtime.admission, conversation, _ENDED)
    await registry.write([Forgotten(each) for each in (session, *conversations)])


async def _below(store: Store, session: str) -> list[str]:
    """Return the conversations of the session's sub-agents, and of theirs."""
    found: list[str] = []
    before: tuple[float, str] | None = None
    while page := await store.conversations(before=before, limit=_DELETE_PAGE):
        found += [row.id for row in page if row.id != session and root_of(row.id) == session]
        before = page[-1].updated, page[-1].id
    return found


_PAGE = 50
_CONNECT_SECS = 10.0
"""How long a session waits for the tools of MCP servers; they may come later."""


class AgentServer:
    """Serve one client."""

    def __init__(
        self,
        runtime: "Runtime",
        persons: SessionPrompts,
        *,
        model: str | None = None,
        mode: Mode = "ask",
        signal: Signal = "extension",
        terminals: bool = True,
        notice: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """`notice` is called when a session is opened; the session shows the text it returns, if any."""
        self._runtime = runtime
        self._notice = notice
        self._persons = persons
        self._model, self._mode, self._signal, self._terminals = model, mode, signal, terminals
        self._client: Client | None = None
        """The client's capabilities, once it has sent them."""
        self._sessions: dict[str, AgentSession] = {}
        self._conversations: WeakValueDictionary[str, Conversation] = WeakValueDictionary()
        """Sessions hold them. A runtime has one object for each, which a closed session's remains may still hold."""
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One request at a time opens, closes or deletes a session."""
        self._peer: Peer | None = None
        self._prompts: dict[Id, AgentSession] = {}
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        check_kinds(runtime.toolbox)
        self._listen_to_runtime()
        self._methods: dict[str, Callable[[Params], Coroutine[Any, Any, Any]]] = {
            "authenticate": self._authenticate,
            "session/new": self._new,
            "session/load": partial(self._open_again, show=True),
            "session/resume": partial(self._open_again, show=False),
            "session/list": self._list,
            "session/close": self._close,
            "session/delete": self._delete,
        }

    def _listen_to_runtime(self) -> None:
        """Listen to handles, and provide the prompts of sessions."""
        runtime = self._runtime

        def created(handles: Sequence[Handle]) -> None:
            for handle in handles:
                session = self._sessions.get(root_of(handle.conversation))
                if session is not None:
                    session.calls.created(handle)

        runtime.registry.on_created.add(created)
        self._persons.approvals = runtime.approvals
        runtime.people.finders.append(lambda handle: self._persons.of(root_of(handle.conversation)))
        runtime.permission.finders.append(lambda conversation: self._persons.of(root_of(conversation)))
        runtime.permission.unattended.append(self._unattended)

    def _unattended(self, conversation: str) -> bool:
        session = self._sessions.get(root_of(conversation))
        return session is not None and session.mode == "unattended"

    async def serve(self, read_fd: int, write_fd: int) -> None:
        """Serve until the client leaves. Unfinished turns stay in the store (R6)."""
        peer = self._peer = Peer(read_fd, write_fd, on_request=self._on_request, on_notification=self._on_notification)
        try:
            peer.start()
            await asyncio.wait(
                (ended := asyncio.ensure_future(peer.ended()), self._stop), return_when="FIRST_COMPLETED"
            )
            ended.cancel()
        finally:
            await self._runtime.close()  # before the tasks that answer: an interrupted turn is not a cancelled one
            await self._persons.close()
            await peer.close()

    def stop(self) -> None:
        if not self._stop.done():
            self._stop.set_result(None)

    # Requests and notifications, in order

    def _on_request(self, method: str, params: Params, id: Id) -> None:
        assert self._peer is not None
        if method == "initialize":
            self._peer.respond(id, self._initialize(params))
        elif method in ("session/prompt", "session/set_mode") or method in self._methods:
            if self._client is None:
                raise RpcError(INVALID_REQUEST, "Invalid request: `initialize` comes first")
            if method == "session/prompt":
                self._prompt(params, id)
            elif method == "session/set_mode":
                self._peer.respond(id, self._set_mode(params))
            else:
                self._peer.answer(id, self._answered(method, params))
        else:
            raise unknown_method(method)

    def _on_notification(self, method: str, params: Params) -> None:
        if method == "session/cancel":
            session = self._sessions.get(str(params.get("sessionId")))
            if session is not None:
                session.cancel()
        elif method == "$/cancel_request":
            request = params.get("requestId")
            if request in self._prompts:
                self._prompts[request].cancel()
            elif self._peer is not None:
                self._peer.cancel(request)

    async def _answered(self, method: str, params: Params) -> Any:
        try:
            return await self._methods[method](params)
        except KeepholdError as error:
            if isinstance(error, RpcError):
                raise
            raise RpcError(INTERNAL_ERROR, error.message, {"code": error.code}) from error

    # The connection

    def _initialize(self, params: Params) -> dict[str, Any]:
        from importlib.metadata import version

        said = params.get("clientCapabilities")
        client = client_of(said if isinstance(said, dict) else {}, self._signal)
        client = self._client = msgspec.structs.replace(client, terminals=client.terminals and self._terminals)
        sessions: dict[str, Any] = {"list": {}, "resume": {}, "close": {}, "delete": {}}
        capabilities: dict[str, Any] = {
            "loadSession": True,
            "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
            "mcpCapabilities": {"http": True, "sse": False},
            "sessionCapabilities": sessions,
        }
        if client.signal == "update":
            sessions["turnComplete"] = {}
        elif client.signal == "extension":
            capabilities["_meta"] = {TURN_COMPLETE: {}}
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentCapabilities": capabilities,
            "agentInfo": {"name": "keephold", "title": "keephold", "version": version("keephold")},
            "authMethods": [],
        }

    async def _authenticate(self, params: Params) -> dict[str, Any]:
        return {}

    # Sessions

    def _named(self, params: Params) -> AgentSession:
        session = self._sessions.get(string(params, "sessionId"))
        if session is None or session.closing:
            why = f"session `{params['sessionId']}` is not open; `session/load` or `session/resume` opens it"
            raise RpcError(RESOURCE_NOT_FOUND, why)
        return session

    def _converse(self, id: str) -> "Conversation":
        conversation = self._conversations.get(id)
        if conversation is None:
            conversation = self._conversations[id] = self._runtime.conversation(id, model=self._model)
        return conversation

    def _open(self, conversation: "Conversation", cwd: str, before: ConversationRow | None) -> AgentSession:
        assert self._peer is not None and self._client is not None
        session = AgentSession(self._peer, self._client, conversation, cwd, before, self._mode)
        self._sessions[session.id] = session
        return session

    async def _connect(self, brought: Sequence["McpServer"]) -> None:
        """Connect the servers of one session for all: they belong to the same user and editor."""
        for server in brought:
            await self._add(server)
        if brought:
            await self._runtime.connected(_CONNECT_SECS)

    async def _add(self, server: "McpServer", number: int = 1) -> None:
        """Add a server. Editors reuse a name with other arguments for each project: add a number."""
        named = server if number == 1 else replace(server, name=f"{server.name[:60]}-{number}")
        try:
            await self._runtime.add_server(named)
        except ConfigError:
            await self._add(server, number + 1)

    @asynccontextmanager
    async def _noticing(self) -> AsyncIterator[str]:
        """Yield what a session must show. If it cannot be opened, the error says it."""
        notice = "" if self._notice is None else await self._notice()
        try:
            yield notice
        except KeepholdError as error:
            if not notice or isinstance(error, RpcError):
                raise
            raise KeepholdError(f"{error.message}\n{notice}", code=error.code) from error

    async def _new(self, params: Params) -> dict[str, Any]:
        cwd, brought = directory(params), servers(params)
        async with self._noticing() as notice:
            await self._connect(brought)
            conversation = self._converse(f"s-{secrets.token_hex(16)}")
            await conversation.open()
        session = self._open(conversation, cwd, None)
        session.notice = notice
        self._persons.opened(session)
        return {"sessionId": session.id, "modes": session.modes()}

    async def _open_again(self, params: Params, *, show: bool) -> dict[str, Any]:
        cwd, id, brought = directory(params), string(params, "sessionId"), servers(params)
        async with self._lock(id), self._noticing() as notice:
            row = await self._row(id)
            await self._connect(brought)
            here = self._sessions.get(id)
            if here is not None and here.busy:
                raise RpcError(INVALID_REQUEST, f"Invalid request: a turn of session `{id}` is running")
            await self._close_session(id)
            conversation = self._converse(id)
            await conversation.open()
            assert self._peer is not None
            before = await replay_session(conversation, self._peer if show else None)
            session = self._open(conversation, cwd, row)
            session.notice = notice
            session.restore(before, known=show)
            self._persons.opened(session)
            return {"modes": session.modes()}

    def _lock(self, id: str) -> asyncio.Lock:
        return self._changing.setdefault(id, asyncio.Lock())

    async def _row(self, id: str) -> ConversationRow | None:
        """Return the session's row; None if it is open and empty."""
        await self._runtime.open()
        row = await self._runtime.registry.store.conversation(id)
        if row is None and id not in self._sessions:
            raise RpcError(RESOURCE_NOT_FOUND, f"there is no session `{id}`; `session/list` lists those there are")
        return row

    async def _close(self, params: Params) -> dict[str, Any]:
        async with self._lock(string(params, "sessionId")):
            await self._close_session(self._named(params).id)
        return {}

    async def _close_session(self, id: str) -> None:
        session = self._sessions.get(id)
        if session is not None:
            await session.close()
            self._persons.closed(session)
            del self._sessions[id]

    async def _delete(self, params: Params) -> dict[str, Any]:
        id = string(params, "sessionId")
        async with self._lock(id):
            await self._close_session(id)
            await self._runtime.open()
            await delete(self._runtime, id)
        return {}

    async def _list(self, params: Params) -> dict[str, Any]:
        wanted = {"cwd": normal(params["cwd"])} if isinstance(params.get("cwd"), str) else None
        before = cursor_of(params.get("cursor"))
        await self._runtime.open()
        rows = await self._runtime.registry.store.conversations(metadata=wanted, before=before, limit=_PAGE)
        page: dict[str, Any] = {"sessions": [listed(row) for row in rows if is_session(row)]}
        if len(rows) == _PAGE:
            page["nextCursor"] = next_cursor(rows[-1])
        return page

    def _set_mode(self, params: Params) -> dict[str, Any]:
        session, mode = self._named(params), string(params, "modeId")
        if mode not in [each["id"] for each in MODES]:
            raise invalid_params(f"there is no mode `{mode}`; there are ask and unattended")
        session.mode = mode  # type: ignore[assignment]
        session.update(current_mode(mode))
        return {}

    def _prompt(self, params: Params, id: Id) -> None:
        assert self._peer is not None
        session, content = self._named(params), prompt_content(params.get("prompt"))
        if session.busy:
            why = "a turn of this session is running; wait for its end, or cancel it by `session/cancel`"
            raise RpcError(INVALID_REQUEST, f"Invalid request: {why}")
        session.begin()
        self._prompts[id] = session
        self._peer.answer(id, self._turn(session, id, params["prompt"], content))

    async def _turn(self, session: AgentSession, id: Id, blocks: Sequence[Any], content: Any) -> Any:
        try:
            return await session.run(id, blocks, content)
        finally:
            self._prompts.pop(id, None)
