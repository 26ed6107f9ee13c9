"""Who is asked what: for each conversation at the top, the person at the client that has its session open (P, Q)."""

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from keephold.turn.lineage import root_of
from keephold.turn.prompt_queue import LeftOpen, People
from keephold.turn.prompts import Decision, Prompt

if TYPE_CHECKING:
    from keephold.acp.agent.session import Session


class Persons:
    """Everyone who may be asked something: a prompter. What concerns a session that is not open is asked when it is."""

    def __init__(self) -> None:
        self._people: WeakValueDictionary[str, People] = WeakValueDictionary()
        """As long as a call or a prompt needs them: a conversation has one at a time."""
        self._sessions: dict[str, Session] = {}

    async def __call__(self, prompt: Prompt) -> Decision:
        session = self._sessions.get(root_of(prompt.conversation))
        if session is None:
            raise LeftOpen
        return await session.ask(prompt)

    def of(self, root: str) -> People:
        """Those who are asked about calls below that conversation, one prompt at a time (Q5)."""
        people = self._people.get(root)
        if people is None:
            people = self._people[root] = People(self)
        return people

    def came(self, session: "Session") -> None:
        """Its client has opened the session: what was left open is asked."""
        self._sessions[session.id] = session
        self.of(session.id).again()

    def went(self, session: "Session") -> None:
        """It is closed: nobody can be asked until it is opened again."""
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]

    async def close(self) -> None:
        """Take everything back."""
        for people in tuple(self._people.values()):
            await people.close()
