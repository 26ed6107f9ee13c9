"""keephold's agent over ACP: one store for all sessions of a client, on one connection (X1).

A session's id is its conversation's id. Methods are answered in tasks of their own, so that a turn delays nothing else;
a prompt, a cancel or a mode must keep its order, so it is begun when it is read.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import msgspec

from keephold.acp.agent.params import (
    Client,
    Signal,
    client_of,
    cursor_of,
    directories,
    directory,
    is_session,
    listed,
    next_cursor,
    normal,
    prompt_content,
    servers,
    string,
)
from keephold.acp.agent.projects import Project, Projects
from keephold.acp.agent.replay import replay_session
from keephold.acp.agent.session import AgentSession, Mode, Models, Opening
from keephold.acp.wire import (
    INTERNAL_ERROR,
    PROTOCOL_VERSION,
    RESOURCE_NOT_FOUND,
    TURN_COMPLETE,
    Id,
    Params,
    Peer,
    RpcError,
    invalid_request,
    unknown_method,
)
from keephold.errors import KeepholdError
from keephold.handles.state import Failure
from keephold.ids import root_of
from keephold.store.base import ConversationRow, Forgotten, Store, browsable
from keephold.turn.ending import end_conversation

if TYPE_CHECKING:
    from keephold.agent.conversation import Conversation
    from keephold.runtime import Runtime
    from keephold.tools.remote.server import McpServer


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
    while page := await browsable(store).conversations(before=before, limit=_DELETE_PAGE):
        found += [row.id for row in page if row.id != session and root_of(row.id) == session]
        before = page[-1].updated, page[-1].id
    return found


_PAGE = 50
_SESSION_CAPABILITIES = ("list", "resume", "close", "delete", "additionalDirectories")
_CONNECT_SECS = 10.0
"""How long a session waits for the tools of MCP servers; they may come later."""


class AgentServer:
    """Serve one client."""

    def __init__(
        self,
        projects: Projects,
        *,
        model: str | None = None,
        mode: Mode = "ask",
        signal: Signal = "extension",
        terminals: bool = True,
    ) -> None:
        self._projects = projects
        self._model, self._mode, self._signal, self._terminals = model, mode, signal, terminals
        self._client: Client | None = None
        """The client's capabilities, once it has sent them."""
        self._sessions: dict[str, AgentSession] = {}
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One request at a time opens, closes or deletes a session."""
        self._peer: Peer | None = None
        self._prompts: dict[Id, AgentSession] = {}
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._at_once: dict[str, Callable[[Params], Any]] = {
            "session/set_mode": partial(self._choose, "mode", "modeId"),
            "session/set_config_option": self._set_option,
            "session/set_model": partial(self._choose, "model", "modelId"),
        }
        self._methods: dict[str, Callable[[Params], Coroutine[Any, Any, Any]]] = {
            "authenticate": self._authenticate,
            "session/new": self._new,
            "session/load": partial(self._open_again, show=True),
            "session/resume": partial(self._open_again, show=False),
            "session/list": self._list,
            "session/close": self._close,
            "session/delete": self._delete,
        }

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
            await self._projects.close()  # before the tasks that answer: an interrupted turn is not a cancelled one
            await peer.close()

    def stop(self) -> None:
        if not self._stop.done():
            self._stop.set_result(None)

    # Requests and notifications, in order

    def _on_request(self, method: str, params: Params, id: Id) -> None:
        assert self._peer is not None
        if method == "initialize":
            self._peer.respond(id, self._initialize(params))
        elif method == "session/prompt" or method in self._at_once or method in self._methods:
            if self._client is None:
                raise invalid_request("`initialize` comes first")
            if method == "session/prompt":
                self._prompt(params, id)
            elif method in self._at_once:
                self._peer.respond(id, self._at_once[method](params))
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
        sessions: dict[str, Any] = {name: {} for name in _SESSION_CAPABILITIES}
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

    @asynccontextmanager
    async def _opening(self, params: Params, id: str) -> AsyncIterator[tuple[Project, "Opening"]]:
        """Yield the project of a session, and how the session is opened in it: with its MCP servers, and with a notice
        that it must show. If it cannot be opened, the error says it."""
        cwd, additional, brought = directory(params), directories(params), servers(params)
        project, notice = await self._projects.of(cwd, additional)
        try:
            await self._move(id, project)
            yield project, Opening(cwd, additional, await self._connect(project, id, brought), notice)
        except BaseException as error:
            if id not in self._sessions:
                await project.runtime._dismiss_servers(id)
            if not notice or isinstance(error, RpcError) or not isinstance(error, KeepholdError):
                raise
            raise KeepholdError(f"{error.message}\n{notice}", code=error.code) from error
        finally:
            project.opening -= 1

    async def _move(self, id: str, project: Project) -> None:
        """Close the session, if it is open, and let only this project resume its calls."""
        here = self._sessions.get(id)
        if here is not None and here.busy:
            raise invalid_request(f"a turn of session `{id}` is running")
        await self._close_session(id)
        for other in self._projects:
            if other is not project:
                other.forget(id)

    async def _connect(self, project: Project, id: str, brought: Sequence["McpServer"]) -> Callable[[], list[str]]:
        """Connect the servers of one session; return what reports their problems."""
        if not brought:
            return list
        try:
            connecting = await project.runtime._bring_servers(id, brought)
        except KeepholdError as error:  # mcp is not installed
            return partial(list, (error.message,))
        await connecting.ready(_CONNECT_SECS)
        return connecting.problems

    def _open(
        self, project: Project, conversation: "Conversation", how: "Opening", before: ConversationRow | None
    ) -> AgentSession:
        assert self._peer is not None and self._client is not None
        choice = Models(project.runtime.agents, self._model)
        session = AgentSession(self._peer, self._client, conversation, how, before, self._mode, choice)
        self._sessions[session.id] = session
        return session

    async def _new(self, params: Params) -> dict[str, Any]:
        id = f"s-{secrets.token_hex(16)}"
        async with self._opening(params, id) as (project, how):
            await project.adopt(id)
            conversation = project.converse(id, self._model)
            await conversation.open()
            session = self._open(project, conversation, how, None)
        project.opened(session)
        return {"sessionId": id, **session.choices()}

    async def _open_again(self, params: Params, *, show: bool) -> dict[str, Any]:
        id = string(params, "sessionId")
        async with self._lock(id):
            row = await self._row(id)
            async with self._opening(params, id) as (project, how):
                await project.adopt(id)
                conversation = project.converse(id, self._model)
                await conversation.open()
                assert self._peer is not None
                before = await replay_session(conversation, self._peer if show else None)
                session = self._open(project, conversation, how, row)
            session.restore(before, known=show)
            project.opened(session)
            await self._projects.close_idle()
            return session.choices()

    def _lock(self, id: str) -> asyncio.Lock:
        return self._changing.setdefault(id, asyncio.Lock())

    async def _row(self, id: str) -> ConversationRow | None:
        """Return the session's row; None if it is open and empty."""
        row = None
        for store in await self._stores():
            row = row or await store.conversation(id)
        if row is None and id not in self._sessions:
            raise RpcError(RESOURCE_NOT_FOUND, f"there is no session `{id}`; `session/list` lists those there are")
        return row

    async def _close(self, params: Params) -> dict[str, Any]:
        async with self._lock(string(params, "sessionId")):
            await self._close_session(self._named(params).id)
            await self._projects.close_idle()
        return {}

    async def _close_session(self, id: str) -> None:
        session = self._sessions.get(id)
        if session is not None:
            await session.close()
            del self._sessions[id]
            await self._projects.holding(id).closed(session)

    async def _stores(self) -> list[Store]:
        """Return the stores that sessions are in: one file for all projects, else the memory of each."""
        await self._projects.home.runtime.open()
        stores = [project.runtime.registry.store for project in self._projects]
        return stores[:1] if stores[0].durable else stores

    async def _delete(self, params: Params) -> dict[str, Any]:
        id = string(params, "sessionId")
        async with self._lock(id):
            await self._close_session(id)
            await self._projects.home.runtime.open()
            await delete(self._projects.holding(id).runtime, id)
            await self._projects.close_idle()
        return {}

    async def _list(self, params: Params) -> dict[str, Any]:
        wanted = {"cwd": normal(params["cwd"])} if isinstance(params.get("cwd"), str) else None
        before = cursor_of(params.get("cursor"))
        rows: list[ConversationRow] = []
        for store in await self._stores():
            rows += await browsable(store).conversations(metadata=wanted, before=before, limit=_PAGE)
        rows = sorted(rows, key=lambda row: (row.updated, row.id), reverse=True)[:_PAGE]
        page: dict[str, Any] = {"sessions": [listed(row) for row in rows if is_session(row)]}
        if len(rows) == _PAGE:
            page["nextCursor"] = next_cursor(rows[-1])
        return page

    def _choose(self, option: str, key: str, params: Params) -> dict[str, Any]:
        """Choose the mode or the model as clients of earlier versions of the protocol do."""
        self._named(params).choose(option, string(params, key))
        return {}

    def _set_option(self, params: Params) -> dict[str, Any]:
        session = self._named(params)
        session.choose(string(params, "configId"), string(params, "value"), asked=True)
        return {"configOptions": session.options()}

    def _prompt(self, params: Params, id: Id) -> None:
        assert self._peer is not None
        session, content = self._named(params), prompt_content(params.get("prompt"))
        if session.busy:
            why = "a turn of this session is running; wait for its end, or cancel it by `session/cancel`"
            raise invalid_request(why)
        session.begin()
        self._prompts[id] = session
        self._peer.answer(id, self._turn(session, id, params["prompt"], content))

    async def _turn(self, session: AgentSession, id: Id, blocks: Sequence[Any], content: Any) -> Any:
        try:
            return await session.run(id, blocks, content)
        finally:
            self._prompts.pop(id, None)
