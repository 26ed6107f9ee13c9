"""Several servers on one store, which a load balancer chooses at random (M3).

Any of them takes up a session, because the session is in its id. But a call is answered by the server that got it. So a
server passes on what its clients send about a call or a session as a whole: answers, cancellations, subscriptions, and
the end of a session. Servers know each other by posts in the store, and a message is a request there (`turn/relay.py`).
"""

import asyncio
import logging

import msgspec

from keephold.errors import KeepholdError
from keephold.mcp.sessions import Sessions
from keephold.runtime import Runtime
from keephold.store.base import Posted

_log = logging.getLogger("keephold.mcp")

_MAILBOX = "mcp"
_LONGEST, _MOST = 1 << 20, 100
"""Characters of a message that is passed on, and how many may wait for that: each is a row of the store for a while."""


_KNOWN = 1000
"""How many ended sessions a server that is started later learns."""


class _Message(msgspec.Struct):
    """A message of a client, for a session; without a body, the session has ended."""

    session: str
    body: str | None


class OtherServers:
    """Passes messages of clients on to the other servers of the store, and delivers theirs."""

    def __init__(self, runtime: Runtime, sessions: Sessions) -> None:
        self._runtime = runtime
        self._sessions = sessions
        self._order = asyncio.Lock()
        self._waiting = 0
        sessions.forward = self._forward
        runtime.relay.mailboxes[_MAILBOX] = self._receive

    async def begin(self) -> None:
        """Let other servers know this one, and learn from them which sessions have ended."""
        await self._post()
        for post in await self._runtime.registry.store.posts("server"):
            if post.body:
                self._sessions.note_ended(msgspec.json.decode(post.body, type=list[str]))

    async def _post(self) -> None:
        """Post this server, and the sessions that have ended, for servers that are started later."""
        registry = self._runtime.registry
        ended = msgspec.json.encode(self._sessions.ended[-_KNOWN:])
        post = Posted(f"server:{registry.store.owner}", "server", registry.clock.now(), ended)
        await registry.write((post,), keep=False)

    async def _forward(self, session: str, body: str | None) -> None:
        if body is None:
            await self._tell_all(session, None)  # then no server takes up the session any more
            await self._post()
        elif len(body) > _LONGEST or self._waiting >= _MOST:
            _log.warning("a message of a client was not passed on to other servers: it is too long, or one of too many")
        else:
            self._waiting += 1
            self._runtime.registry.run_soon(self._tell_all(session, body))

    async def _tell_all(self, session: str, body: str | None) -> None:
        store, message = self._runtime.registry.store, msgspec.json.encode(_Message(session, body)).decode()
        try:
            async with self._order:
                others = {post.owner for post in await store.posts("server")} - {store.owner}
                await asyncio.gather(*(self._tell(owner, message) for owner in others))
        finally:
            self._waiting -= body is not None

    async def _tell(self, owner: str, message: str) -> None:
        try:
            await self._runtime.relay.tell(owner, _MAILBOX, message)
        except KeepholdError as error:
            _log.warning("another server of the store did not get a message of a client: %s", error)

    async def _receive(self, message: str) -> bool:
        received = msgspec.json.decode(message, type=_Message)
        if received.body is None:
            await self._sessions.end(received.session)
        else:
            await self._sessions.deliver(received.session, received.body)
        return True
