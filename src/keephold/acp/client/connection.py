"""A client of ACP agents whose turns end when the agent says so (X3).

    async with keephold.acp.connect(["my-agent", "--acp"]) as agent:
        session = await agent.new_session(".")
        turn = session.prompt("hello", on_update=show)
        result = await turn             # the agent has answered
        await turn.drained()            # and every update of the turn has been handled, in order

No timer decides anything here. If the agent dies, everything that waits for it raises `ConnectionLost` at once.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from keephold.acp.client.process import AgentProcess
from keephold.acp.client.session import Handler, OnPermission, Session, read, reject
from keephold.acp.wire import (
    PROTOCOL_VERSION,
    TURN_COMPLETE,
    Id,
    Params,
    Peer,
    RpcCall,
    invalid_params,
    table,
    unknown_method,
)
from keephold.errors import KeepholdError

_TERMINAL = frozenset(f"terminal/{verb}" for verb in ("create", "output", "wait_for_exit", "kill", "release"))

Answering: TypeAlias = Callable[[Params], Awaitable[Any]]


@asynccontextmanager
async def connect(
    command: str | Sequence[str],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_env: Sequence[str] = (),
    client_capabilities: Mapping[str, Any] | None = None,
    on_permission: OnPermission = reject,
    on_elicitation: Answering | None = None,
    handlers: Mapping[str, Answering] | None = None,
) -> AsyncIterator["Connection"]:
    """Start an agent and shake hands. The agent is ended when the block is left.

    `env` is added to the environment, which has no API keys and other secrets except those that `pass_env` names.
    `on_permission` gets a request and returns an option's id, or None for "cancelled"; without it every request is
    rejected. `handlers` answer the agent's other requests, by method: `fs/read_text_file`, `fs/write_text_file`,
    `terminal/create` … and extensions. The agent is offered the capabilities that the handlers make up, plus
    `client_capabilities`.
    """
    answers = dict(handlers or {})
    if on_elicitation is not None:
        answers["elicitation/create"] = on_elicitation
    connection = Connection(command, cwd, env, on_permission, answers, pass_env)
    try:
        await connection._shake_hands(capabilities(answers) | dict(client_capabilities or {}))
        yield connection
    finally:
        await connection.close()


def capabilities(handlers: Mapping[str, Answering]) -> dict[str, Any]:
    """Return the client capabilities that these handlers make up."""
    offered: dict[str, Any] = {
        "fs": {
            "readTextFile": "fs/read_text_file" in handlers,
            "writeTextFile": "fs/write_text_file" in handlers,
        },
        "terminal": handlers.keys() >= _TERMINAL,
    }
    if "elicitation/create" in handlers:
        offered["elicitation"] = {"form": {}}
    return offered


class Connection:
    """A running agent, and its sessions."""

    def __init__(
        self,
        command: str | Sequence[str],
        cwd: str | Path | None,
        env: Mapping[str, str] | None,
        on_permission: OnPermission,
        handlers: Mapping[str, Answering],
        pass_env: Sequence[str] = (),
    ) -> None:
        self.agent_info: dict[str, Any] = {}
        """Name and version, if the agent sends them."""
        self.agent_capabilities: dict[str, Any] = {}
        self.auth_methods: list[dict[str, Any]] = []
        self._on_permission = on_permission
        self._handlers = handlers
        self._sessions: dict[str, Session] = {}
        self._opening: set[object] = set()
        """Requests that open a session and have no answer yet."""
        self._early: list[tuple[str, Params]] = []
        self.process = AgentProcess(command, cwd=cwd, env=env, pass_env=pass_env, exited=self._exited)
        self.peer = Peer(
            self.process.reading,
            self.process.writing,
            on_request=self._requested,
            on_notification=self._notified,
            on_end=self._silent,
        )
        self.peer.start()

    # Sessions

    async def new_session(
        self,
        cwd: str | Path,
        *,
        mcp_servers: Sequence[Mapping[str, Any]] = (),
        on_background: Handler | None = None,
    ) -> Session:
        """Begin a conversation. `on_background` gets updates that belong to no turn."""
        return await self._open("session/new", {}, cwd, mcp_servers, on_background)

    async def load_session(
        self,
        id: str,
        cwd: str | Path,
        *,
        mcp_servers: Sequence[Mapping[str, Any]] = (),
        on_update: Handler | None = None,
        on_background: Handler | None = None,
    ) -> Session:
        """Load a conversation. `on_update` gets its history, all of which has been handled when this returns.

        If the session is open here, the returned one replaces it.
        """
        return await self._open_again("session/load", id, cwd, mcp_servers, on_update, on_background)

    async def resume_session(
        self,
        id: str,
        cwd: str | Path,
        *,
        mcp_servers: Sequence[Mapping[str, Any]] = (),
        on_background: Handler | None = None,
    ) -> Session:
        """Resume a conversation without its history."""
        return await self._open_again("session/resume", id, cwd, mcp_servers, on_background, on_background)

    async def list_sessions(self, cwd: str | Path | None = None) -> list[dict[str, Any]]:
        """Return all sessions the agent knows; with `cwd` only those of that directory."""
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {} if cwd is None else {"cwd": _absolute(cwd)}
        while True:
            page = await self.request("session/list", params)
            found += page.get("sessions", [])
            if not (cursor := page.get("nextCursor")):
                return found
            params["cursor"] = cursor

    # Other requests

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        """Send the agent any request. Raises `RpcError` if it refuses."""
        return await self.peer.request(method, params)

    async def authenticate(self, method: str) -> None:
        """Log in by one of `auth_methods`."""
        await self.request("authenticate", {"methodId": method})

    @property
    def session_capabilities(self) -> dict[str, Any]:
        """Which of `list`, `resume`, `close` … the agent has."""
        return table(self.agent_capabilities.get("sessionCapabilities"))

    @property
    def offers_turn_complete(self) -> bool:
        """Whether the agent signals when a turn is complete."""
        extensions = table(self.agent_capabilities.get("_meta"))
        return TURN_COMPLETE in extensions or "turnComplete" in self.session_capabilities

    @property
    def stderr(self) -> str:
        """The last 64 KiB of the agent's standard error."""
        return self.process.stderr

    async def close(self) -> None:
        """End all sessions and the agent. A second call does nothing."""
        for session in list(self._sessions.values()):
            await session._close()
        await self.peer.close()
        await self.process.end()

    async def _shake_hands(self, offered: Mapping[str, Any]) -> None:
        us = {"name": "keephold", "title": "keephold", "version": version("keephold")}
        params = {"protocolVersion": PROTOCOL_VERSION, "clientCapabilities": offered, "clientInfo": us}
        answer = table(await self.request("initialize", params))
        if answer.get("protocolVersion") != PROTOCOL_VERSION:
            theirs = answer.get("protocolVersion")
            raise KeepholdError(
                f"the agent speaks version {theirs!r} of ACP, and this client version 1", code="acp_error"
            )
        self.agent_capabilities = table(answer.get("agentCapabilities"))
        self.agent_info = table(answer.get("agentInfo"))
        self.auth_methods = answer.get("authMethods") or []

    async def _open(
        self,
        method: str,
        params: dict[str, Any],
        cwd: str | Path,
        mcp_servers: Sequence[Mapping[str, Any]],
        on_background: Handler | None,
    ) -> Session:
        params |= {"cwd": _absolute(cwd), "mcpServers": list(mcp_servers)}
        made: list[Session] = []
        opening = object()

        def answered(call: RpcCall) -> None:  # called in order with the updates, so that later updates find the session
            self._opening.discard(opening)
            if call.exception() is None:
                info = table(call.result())
                id = params.get("sessionId") or info.get("sessionId")
                if id and isinstance(id, str):
                    session = self._sessions.setdefault(id, Session(self, id, on_background))
                    session.info = info
                    made.append(session)
            self._tell_early()

        self._opening.add(opening)
        try:
            await self.peer.request(method, params, answered=answered)
        except BaseException:
            for session in made:  # given up after its answer was read
                await session._close()
            raise
        finally:
            if opening in self._opening:  # given up before its answer
                self._opening.discard(opening)
                self._tell_early()
        if not made:
            raise KeepholdError(f"the agent's answer to {method} has no `sessionId`", code="acp_error")
        return made[0]

    async def _open_again(
        self,
        method: str,
        id: str,
        cwd: str | Path,
        mcp_servers: Sequence[Mapping[str, Any]],
        on_update: Handler | None,
        on_background: Handler | None,
    ) -> Session:
        """Open a session by its id; `on_update` gets the updates meanwhile. A session that is open here is closed, or
        stays as it is if the agent refuses."""
        before = self._sessions.get(id)
        if before is not None and before.busy:
            raise KeepholdError(f"a turn of session `{id}` is running; await its end first", code="turn_open")
        session = self._sessions[id] = Session(self, id, on_update)
        try:
            await self._open(method, {"sessionId": id}, cwd, mcp_servers, on_update)
            await session._queue.place()
        except BaseException:
            await session._close()
            if before is not None:
                self._sessions.setdefault(id, before)
            raise
        session.on_background = on_background
        if before is not None:
            await before._close()
        return session

    def _forget(self, session: Session) -> None:
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]

    # Messages of the agent

    def _notified(self, method: str, params: Params) -> None:
        if method in ("session/update", "_keephold/turn_complete"):
            session = self._sessions.get(str(params.get("sessionId")))
            if session is None:
                if self._opening:  # an agent may send updates of a session before it has answered with its id
                    self._early.append((method, params))
            elif method == "session/update":
                session._updated(params)
            else:
                session._completed(params)
        elif method == "$/cancel_request":
            self.peer.cancel(params.get("requestId"))

    def _tell_early(self) -> None:
        early, self._early = self._early, []
        for method, params in early:
            self._notified(method, params)

    def _requested(self, method: str, params: Params, id: Id) -> None:
        if method == "session/request_permission":
            permission = read(params)
            session = self._sessions.get(permission.session_id)
            if session is None:
                raise invalid_params(f"no session {permission.session_id}")
            self.peer.answer(id, session._permit(permission, self._on_permission, session._queue.place()))
        elif method in self._handlers:
            self.peer.answer(id, self._answer(self._handlers[method], params))
        else:
            raise unknown_method(method)

    async def _answer(self, handler: Answering, params: Params) -> Any:
        answer = await handler(params)
        return {} if answer is None else answer

    def _silent(self, _: str) -> None:
        """The connection has ended. The reason is known when the process has exited."""
        self.peer.stop_writing()
        self.process.hurry()

    def _exited(self) -> None:
        self.peer.lost(self.process.epitaph())


def _absolute(path: str | Path) -> str:
    return str(Path(path).absolute())
