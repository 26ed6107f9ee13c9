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
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from keephold.errors import KeepholdError
from keephold.handles.registry import Registry
from keephold.store.base import Op, Posted, TakenDown
from keephold.text import to_json
from keephold.turn.decisions import GONE, TAKEN, Decided, read_decision
from keephold.turn.prompts import (
    AskQuestion,
    Decision,
    DeliverResult,
    Edited,
    Prompt,
    RunTool,
    StandingPermission,
    Until,
)

POST_SECS = 0.05
"""Seconds after which an open prompt is posted."""


class OpenPrompt(Protocol):
    """A prompt that waits for its decision (`turn/prompt_queue.py`)."""

    prompt: Prompt
    check: Callable[[Any], object] | None
    """Raises `KeepholdError` for edited arguments that the tool does not take."""

    def decide(self, decision: Decision) -> None:
        """Take this decision instead of the prompter's."""


class Approvals:
    """The open prompts and the standing permissions of one runtime."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._ids = secrets.token_hex(4)
        """Makes the ids of this process differ from those of others."""
        self._count = 0
        self._open: dict[str, OpenPrompt] = {}
        self._starts: dict[str, str] = {}
        """By uid: the open prompt for permission to start the handle's call."""
        self._standing: dict[str, dict[tuple[str, str | None], StandingPermission]] = {}
        """By conversation, then by tool and question."""
        self._new: list[str] = []
        """Open prompts that are not posted yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._posted: set[str] = set()
        self._closed = False

    def _id(self) -> str:
        self._count += 1
        return f"{self._ids}-{self._count}"

    # Prompts

    def opened(self, asking: OpenPrompt) -> str:
        """Add an open prompt, and return the id by which it is decided."""
        id = (isinstance(asking.prompt, AskQuestion) and asking.prompt.request) or self._id()
        self._open[id] = asking
        if isinstance(asking.prompt, RunTool) and asking.prompt.uid is not None:
            self._starts[asking.prompt.uid] = id
        if isinstance(asking.prompt, RunTool | DeliverResult) and self._registry.store.durable and not self._closed:
            self._new.append(id)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(POST_SECS, self._post)
        return id

    def about(self, uid: str) -> str | None:
        """Return the id of the open prompt for permission to start that handle's call."""
        return self._starts.get(uid)

    def closed(self, id: str) -> None:
        """Remove a prompt that is decided or withdrawn."""
        asking = self._open.pop(id, None)
        if asking is not None and asking.prompt.uid is not None and self._starts.get(asking.prompt.uid) == id:
            del self._starts[asking.prompt.uid]
        if id in self._posted:
            self._take_down(id)

    def _post(self) -> None:
        self._timer, new, self._new = None, self._new, []
        at = self.now()
        prompts = {id: self._open[id].prompt for id in new if id in self._open}
        self._write(*(Posted(id, "prompt", at, to_json(prompt)) for id, prompt in prompts.items()))
        self._posted.update(prompts)

    def _take_down(self, *ids: str) -> None:
        self._posted.difference_update(ids)
        self._write(TakenDown(ids))

    def _write(self, *ops: Op) -> None:
        """Post or take down. A store that cannot write keeps the operations until it can."""
        if ops and not self._closed:
            self._registry.commit(ops, lambda _: None, lambda _: None, keep=True)

    def decide(self, id: str, said: Mapping[str, Any], by: str | None) -> Decided:
        """Decide an open prompt of this process, wherever it is shown."""
        asking = self._open.get(id)
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
        if self._registry.store.durable and not self._closed:
            self._posted.add(given.id)
            self._write(Posted(given.id, "standing", given.at, to_json(given)))
        return given

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
        self._open.clear()
        self._closed = True
