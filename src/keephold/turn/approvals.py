"""The open prompts and the standing permissions of a runtime, which every process of its store can see (P6).

A decision that the user extends beyond one call is a standing permission: for a tool, or for one question of a tool, in
one conversation. It ends with the conversation's turn. Without a turn, as over MCP, it lasts until somebody revokes it
or the process ends.

Prompts for permission and of results are posted in the store, and so are standing permissions. Another process forwards
a decision to the process that asks (`turn/relay.py`); the first decision counts. Questions are not posted: their handle
is `waiting` in the store. A prompt that is decided at once, as programs do, is not posted.
"""

import asyncio
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keephold.errors import KeepholdError
from keephold.handles.registry import Registry
from keephold.listeners import Listeners
from keephold.store.base import Op, Posted, TakenDown
from keephold.text import to_json
from keephold.turn.prompts import (
    GONE,
    TAKEN,
    AskQuestion,
    Decided,
    DeliverResult,
    Edited,
    RunTool,
    StandingPermission,
    Until,
    begins,
    read_decision,
)

if TYPE_CHECKING:
    from keephold.turn.prompt_queue import Asking

POST_SECS = 0.05
"""Seconds after which an open prompt is posted."""


class Approvals:
    """The open prompts and the standing permissions of one runtime."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._ids = secrets.token_hex(4)
        """Makes the ids of this process differ from those of others."""
        self._count = 0
        self.open: dict[str, Asking] = {}
        """The open prompts by their ids, oldest first."""
        self._starts: dict[str, str] = {}
        """By uid: the open prompt for permission to start the handle's call."""
        self._standing: dict[str, dict[tuple[str, str | None], StandingPermission]] = {}
        """By conversation, then by tool and question."""
        self._new: list[str] = []
        """Open prompts that are not posted yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._posted: set[str] = set()
        self.on_changed: Listeners[[]] = Listeners()
        """Called when a prompt opens or closes, and again when the store has the change. Other processes read it then:
        a load balancer may send the client's next request to one of them."""
        self._closed = False

    def _id(self) -> str:
        self._count += 1
        return f"{self._ids}-{self._count}"

    # Prompts

    def opened(self, asking: "Asking") -> str:
        """Add an open prompt, and return the id by which it is decided."""
        id = (isinstance(asking.prompt, AskQuestion) and asking.prompt.request) or self._id()
        self.open[id], asking.since = asking, self.now()
        if (uid := begins(asking.prompt)) is not None:
            self._starts[uid] = id
        if isinstance(asking.prompt, RunTool | DeliverResult) and self._registry.store.durable and not self._closed:
            self._new.append(id)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(POST_SECS, self._post)
        self.on_changed()
        return id

    def about(self, uid: str) -> str | None:
        """Return the id of the open prompt for permission to start that handle's call."""
        return self._starts.get(uid)

    def closed(self, id: str) -> None:
        """Remove a prompt that is decided or withdrawn."""
        asking = self.open.pop(id, None)
        if asking is not None and asking.prompt.uid is not None and self._starts.get(asking.prompt.uid) == id:
            del self._starts[asking.prompt.uid]
        if id in self._posted:
            self._take_down(id)
        self.on_changed()

    def _post(self) -> None:
        self._timer, new, self._new = None, self._new, []
        asked = {id: self.open[id] for id in new if id in self.open}
        self._write(*(Posted(id, "prompt", each.since, to_json(each.prompt)) for id, each in asked.items()))
        self._posted.update(asked)

    def _take_down(self, *ids: str) -> None:
        self._posted.difference_update(ids)
        self._write(TakenDown(ids))

    def _write(self, *ops: Op) -> None:
        """Post or take down. A store that cannot write keeps the operations until it can."""
        if ops and not self._closed:
            self._registry.commit(ops, lambda _: self.on_changed(), lambda _: None, keep=True)

    def decide(self, id: str, said: Mapping[str, Any], by: str | None) -> Decided:
        """Decide an open prompt of this process, wherever it is shown."""
        asking = self.open.get(id)
        if asking is None:
            return GONE
        try:
            decision = read_decision(asking.prompt, said, by)
            if asking.check is not None and isinstance(decision, Edited):
                asking.check(decision.value)
        except KeepholdError as error:
            return {"status": "again", "problem": error.message}
        asking.decide(decision)
        return TAKEN

    # Standing permissions

    def now(self) -> float:
        """Return the time, for the record of a decision."""
        return self._registry.clock.now()

    def until(self, conversation: str) -> Until:
        """Return when a standing permission that is given now would end."""
        return "revoked" if self._registry.conversation(conversation).turn is None else "turn"

    def standing(self, conversation: str, tool: str, question: str | None = None) -> StandingPermission | None:
        """Return the decision about calls of a tool, or about a question of it, that holds now."""
        known = self._standing.get(conversation)
        return None if known is None else known.get((tool, question))

    def give(
        self,
        conversation: str,
        tool: str,
        value: Any,
        *,
        by: str,
        question: str | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> StandingPermission:
        """Add a standing permission, in place of an earlier one."""
        self._end(conversation, (tool, question))
        given = StandingPermission(
            id=self._id(),
            conversation=conversation,
            tool=tool,
            question=question,
            value=value,
            by=by,
            at=self.now(),
            until=self.until(conversation),
            arguments=arguments,
        )
        self._standing.setdefault(conversation, {})[tool, question] = given
        asyncio.get_running_loop().call_soon(self._settle)  # after the call about which the user was asked
        if self._registry.store.durable and not self._closed:
            self._posted.add(given.id)
            self._write(Posted(given.id, "standing", given.at, to_json(given)))
        return given

    def _settle(self) -> None:
        """Withdraw the open prompts that a standing permission covers: their calls have it now (P5, Q2)."""
        for asking in tuple(self.open.values()):
            if asking.then is not None and asking.settled():
                asking.withdraw()

    def _end(self, conversation: str, what: tuple[str, str | None]) -> None:
        known = self._standing.get(conversation, {})
        ended = known.pop(what, None)
        if not known:
            self._standing.pop(conversation, None)
        if ended is not None and ended.id in self._posted:
            self._take_down(ended.id)

    def permissions(self) -> list[StandingPermission]:
        """Return the standing permissions of this process, oldest first."""
        found = [each for known in self._standing.values() for each in known.values()]
        return sorted(found, key=lambda each: each.at)

    def revoke(self, id: str) -> bool:
        """End a standing permission of this process: the next call asks again. Return whether there was one."""
        found = next((each for each in self.permissions() if each.id == id), None)
        if found is None:
            return False
        self._end(found.conversation, (found.tool, found.question))
        return True

    def forget(self, conversation: str) -> None:
        """End the standing permissions of a turn that has ended."""
        for what in tuple(self._standing.get(conversation, ())):
            self._end(conversation, what)

    def close(self) -> None:
        """Take down everything: the process ends."""
        if self._timer is not None:
            self._timer.cancel()
        if self._posted:
            self._take_down(*self._posted)
        self.open.clear()
        self._closed = True
