"""Who is asked what: for each conversation at the top, the person at the client that has its session open (P, Q)."""

import asyncio
from typing import TYPE_CHECKING

from holdfast.agent.lineage import root_of
from holdfast.turn.people import People
from holdfast.turn.prompts import Decision, Prompt

if TYPE_CHECKING:
    from holdfast.acp.sessions import Session


class Persons:
    """Everyone who may be asked something: a prompter. Prompts of a session that is not open wait until it is."""

    def __init__(self) -> None:
        self._people: dict[str, People] = {}
        self._sessions: dict[str, Session] = {}
        self._opened: dict[str, asyncio.Event] = {}

    async def __call__(self, prompt: Prompt) -> Decision:
        opened = self._opened.setdefault(root_of(prompt.conversation), asyncio.Event())
        await opened.wait()
        return await self._sessions[root_of(prompt.conversation)].ask(prompt)

    def of(self, root: str) -> People:
        """Those who are asked about calls below that conversation, one prompt at a time (Q5)."""
        if root not in self._people:
            self._people[root] = People(self)
        return self._people[root]

    def came(self, session: "Session") -> None:
        self._sessions[session.id] = session
        self._opened.setdefault(session.id, asyncio.Event()).set()

    def went(self, session: "Session") -> None:
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
            self._opened.pop(session.id).clear()

    async def close(self) -> None:
        """Take everything back."""
        for people in self._people.values():
            await people.close()
