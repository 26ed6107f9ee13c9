"""All that is asked of a person, wherever it is asked: what is open here (`needs.py`), and what the handles ask that
other processes of the store run."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from keephold.control.handle_json import question_json
from keephold.control.open_requests import Needs, need_json
from keephold.control.store_view import PAGE, Reading
from keephold.handles.state import Waiting
from keephold.runtime import Runtime
from keephold.store.base import Record
from keephold.tools.base import Action
from keephold.turn.prompts import Prompt, RunTool
from keephold.turn.slot import Slot, ToolCall, checked_again

_ELSEWHERE = "handle-"
"""How the id of a need begins that is the open question of another process's handle."""


class Asked(Reading):
    """What is stored, and what waits for a person."""

    def __init__(self, runtime: Runtime, needs: Needs | None) -> None:
        super().__init__(runtime.registry.store)
        self.runtime = runtime
        self.prompts = needs
        if needs is not None:
            runtime.people.passed_on = needs.passed

    async def needs(self, *, handle: str | None = None, limit: int = PAGE) -> list[dict[str, Any]]:
        """Whatever a person has to decide, the first of it. With `handle`, what is asked of that uid."""
        size, listed = self._size(limit), []
        if self.prompts is not None:
            listed = self.prompts.listed(size) if handle is None else self.prompts.listed(size, self._is_about(handle))
            self._name_handles(listed)
        if handle is None:
            listed += [_need(record) for record in await self._asking_elsewhere(size)]
        elif (need := await self._asked_elsewhere(handle)) is not None:
            listed.append(need)
        return sorted(listed, key=lambda need: need["since"])[:size]

    async def need(self, id: str) -> dict[str, Any] | None:
        """One of it; None if it is not open any more."""
        found = self.prompts.described(id) if self.prompts is not None else None
        if found is not None:
            return found
        elsewhere = question_of(id)
        need = await self._asked_elsewhere(elsewhere[0]) if elsewhere is not None else None
        return need if need is not None and need["id"] == id else None

    async def count_needs(self) -> int:
        """How much there is of it."""
        here = len(self.prompts) if self.prompts is not None else 0
        return here + sum((await self._others()).values())

    def _is_about(self, uid: str) -> Callable[[Prompt], bool]:
        handle = self.runtime.registry.loaded(uid)
        named = None if handle is None else (handle.conversation, handle.id)
        return lambda prompt: prompt.uid == uid or (prompt.uid is None and (prompt.conversation, prompt.id) == named)

    def _name_handles(self, needs: list[dict[str, Any]]) -> None:
        """A permission to send something to a handle knows it by its id alone."""
        known: dict[str, dict[str, str]] = {}
        for need in needs:
            if need["handle"] is None and need["handle_id"] is not None:
                place = need["conversation"]
                if place not in known:
                    known[place] = {handle.id: handle.uid for handle in self.runtime.registry.live(place)}
                need["handle"] = known[place].get(need["handle_id"])

    def _check_edited(self, prompt: RunTool, edited: Any) -> None:
        """What a person made of the arguments, while they look at it (P5); of a tool that only its turn has, later."""
        tool = self.runtime.toolbox.get(prompt.tool)
        if tool is not None:
            slot = Slot(ToolCall("", prompt.tool), 0)
            slot.handle_id = prompt.id
            if tool.launching is None:
                slot.action = cast(Action | None, prompt.action)
            checked_again(slot, tool, edited, self.runtime.toolbox, self.runtime.limits)

    async def _others(self) -> dict[str, int]:
        """How many questions are open of each other process that lives."""
        store = self._store
        asking = await store.asking()
        return {each: count for each, count in asking.items() if each != store.owner and store.alive(each)}

    async def _asking_elsewhere(self, most: int) -> list[Record]:
        """The first handles that other processes run and that ask something."""
        others, after = await self._others(), None
        found: list[Record] = []
        while len(found) < min(most, sum(others.values())):
            page = await self._store.handles(state="waiting", stateful=None, after=after, limit=PAGE)
            if not page:
                break
            found += [each for each in page if each.owner in others]
            after = page[-1].uid
            await asyncio.sleep(0)  # reading does not wait for anything
        return found[:most]

    async def _asked_elsewhere(self, uid: str) -> dict[str, Any] | None:
        record = await self._store.handle(uid)
        if record is None or not isinstance(record.state, Waiting) or record.owner in (None, self._store.owner):
            return None
        return _need(record) if self._store.alive(str(record.owner)) else None


def question_of(id: str) -> tuple[str, str] | None:
    """Of a need that is a question of another process's handle: the handle's uid, and which of its questions."""
    uid, _, number = id.removeprefix(_ELSEWHERE).partition("-")
    return (uid, number) if id.startswith(_ELSEWHERE) else None


def _need(record: Record) -> dict[str, Any]:
    state = record.state
    assert isinstance(state, Waiting)
    return need_json(
        f"{_ELSEWHERE}{record.uid}-{state.number}",
        "secret" if state.question.secret else "question",
        conversation=record.conversation,
        tool=record.tool,
        handle=record.uid,
        handle_id=record.id if record.stateful else None,
        since=state.asked,
        question=question_json(state.question, state.number),
    )
