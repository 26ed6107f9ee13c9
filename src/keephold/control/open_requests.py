"""What waits for a person: permissions, questions, results, passwords, all before them at once; they choose.

`Needs` is a prompter (`turn/prompts.py`). A prompt is open from when it is asked until somebody decides, here or
elsewhere, or nobody needs the decision any more. Nothing times out: a person may come back tomorrow.

All that is asked of a person, wherever it is asked: what is open here (`needs.py`), and what the handles ask that
other processes of the store run.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import msgspec

from keephold.control.handle_json import question_json
from keephold.control.store_view import PAGE, StoreView
from keephold.durable.keys import masked, unmasked
from keephold.errors import KeepholdError
from keephold.handles.question import answer_fits, expected
from keephold.handles.state import Waiting
from keephold.runtime import Runtime
from keephold.store.base import Record
from keephold.tools.base import Action
from keephold.turn.prompt_queue import LeftOpen
from keephold.turn.prompts import (
    Answer,
    Approved,
    AskQuestion,
    Decision,
    DeliverResult,
    Denied,
    Dismissed,
    Edited,
    Prompt,
    Prompter,
    RunTool,
)
from keephold.turn.send_input import read_answer
from keephold.turn.slot import Slot, ToolCall, checked_again

_log = logging.getLogger("keephold.control")

_PASSING_SECS = 5.0
"""How long it may take until a decision has reached whoever asked: a pass of the loop or two."""
_WORDS: dict[type[Prompt], tuple[str, ...]] = {
    RunTool: ("approve", "deny", "edit", "cancel"),
    DeliverResult: ("approve", "deny", "edit", "cancel"),
    AskQuestion: ("answer", "cancel"),
}
"""What may be decided about each kind of prompt."""


@dataclass(frozen=True, slots=True)
class _Open:
    prompt: Prompt
    since: float
    decided: "asyncio.Future[Decision]"
    passed: "asyncio.Future[None]"
    """Done when the decision has reached whoever asked."""


class OpenRequests:
    """Every prompt that is open to whoever looks."""

    at_once = True

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._ids = secrets.token_hex(4)
        """Of this process: an id of the one before names nothing here."""
        self._count = 0
        self._passing: dict[str, _Open] = {}
        """What is decided and has not reached whoever asked."""
        self.changed: Callable[[], None] = lambda: None
        """Called when something was opened or is open no more."""

    async def __call__(self, prompt: Prompt) -> Decision:
        self._count += 1
        id = f"{self._ids}-{self._count}"
        loop = asyncio.get_running_loop()
        decided: asyncio.Future[Decision] = loop.create_future()
        self._open[id] = _Open(prompt, time.time(), decided, loop.create_future())
        self.changed()
        try:
            return await decided
        except asyncio.CancelledError:  # withdrawn; what was decided in this very moment reaches nobody
            if self._open.pop(id, None) is not None:
                self.changed()
            self._reached(id)
            raise

    def beside(self, other: Prompter) -> Prompter:
        """Ask here and there; whoever answers first has answered. Secrets are asked for here alone."""

        async def both(prompt: Prompt) -> Decision:
            if isinstance(prompt, AskQuestion) and prompt.question.secret:
                return await self(prompt)
            here, there = asyncio.ensure_future(self(prompt)), asyncio.ensure_future(_unless_gone(other, prompt))
            try:
                await asyncio.wait((here, there), return_when=asyncio.FIRST_COMPLETED)
                if there.done() and there.result() is None:  # could not be asked there
                    return await here
                return here.result() if here.done() else there.result() or Dismissed()
            finally:
                here.cancel()
                there.cancel()

        return both

    def __len__(self) -> int:
        return len(self._open)

    def listed(
        self, limit: int | None = None, wanted: Callable[[Prompt], bool] = lambda prompt: True
    ) -> list[dict[str, Any]]:
        """What is open and wanted, in the order it came; the first `limit` of it."""
        chosen = (id for id, opened in self._open.items() if not opened.decided.done() and wanted(opened.prompt))
        return [_described(id, self._open[id]) for id in islice(chosen, limit)]

    def described(self, id: str) -> dict[str, Any] | None:
        """What is open under that id, if anything is."""
        opened = self._open.get(id)
        return None if opened is None else _described(id, opened)

    def decide(
        self, id: str, said: Mapping[str, Any], check: Callable[[RunTool, Any], object] | None = None
    ) -> dict[str, Any]:
        """Decide what is open under that id: `taken`; `again` if what was said does not fit, and why; `gone`.

        `check` raises `KeepholdError` if edited arguments do not fit. Whoever asked checks them anyway, and asks again.
        """
        opened = self._open.get(id)
        if opened is None or opened.decided.done():  # nobody waits who was cancelled this moment
            return {"status": "gone", "problem": "nobody waits for this any more: it was decided, or ended"}
        try:
            decision = _decision(opened.prompt, said)
            if check is not None and isinstance(decision, Edited) and isinstance(opened.prompt, RunTool):
                check(opened.prompt, decision.value)
        except KeepholdError as error:
            return {"status": "again", "problem": error.message}
        opened.decided.set_result(decision)
        self._passing[id] = self._open.pop(id)
        self.changed()
        return {"status": "taken", "problem": None}

    async def passed_on(self, id: str) -> None:
        """Until what was decided under that id has reached whoever asked; after that it can be written (R4)."""
        opened = self._passing.get(id)
        if opened is not None:
            await asyncio.wait([opened.passed], timeout=_PASSING_SECS)
            self._passing.pop(id, None)

    def passed(self, prompt: Prompt) -> None:
        """What was said to a prompt has reached whoever asked; `People` tells."""
        for id in [id for id, opened in self._passing.items() if opened.prompt is prompt]:
            self._reached(id)

    def _reached(self, id: str) -> None:
        opened = self._passing.pop(id, None)
        if opened is not None and not opened.passed.done():
            opened.passed.set_result(None)


async def _unless_gone(prompter: Prompter, prompt: Prompt) -> Decision | None:
    """What is said there; None if nobody there can be asked."""
    try:
        said = await prompter(prompt)
    except LeftOpen:
        return None
    except Exception as error:
        _log.error("the prompter failed", exc_info=error)
        return None
    return None if isinstance(said, Dismissed) and said.reason is not None else said


def need_json(
    id: str, kind: str, *, conversation: str, tool: str, handle: str | None, handle_id: str | None, since: float,
    **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Something that waits for a person; what does not concern its kind is there, and says nothing."""
    nothing: dict[str, Any] = {
        "action": None,
        "arguments": None,
        "result": None,
        "is_error": None,
        "question": None,
        "may_remember": False,
        "edit": False,
        "problem": None,
    }
    return {
        "id": id,
        "kind": kind,
        "conversation": conversation,
        "tool": tool,
        "handle": handle,
        "handle_id": handle_id,
        "since": since,
        **nothing,
        **more,
    }


def _described(id: str, opened: _Open) -> dict[str, Any]:
    prompt = opened.prompt
    need = need_json(
        id,
        "question",
        conversation=prompt.conversation,
        tool=prompt.tool,
        handle=prompt.uid,
        handle_id=prompt.id,
        since=opened.since,
    )
    match prompt:
        case RunTool():
            return need | {
                "kind": "permission",
                "action": prompt.action,
                "arguments": masked(prompt.arguments),
                "edit": prompt.edit,
                "may_remember": True,
                "problem": prompt.problem,
            }
        case DeliverResult():
            return need | {
                "kind": "result",
                "result": masked(prompt.result),
                "is_error": prompt.is_error,
                "edit": prompt.edit,
            }
        case AskQuestion():
            return need | {
                "kind": "secret" if prompt.question.secret else "question",
                "question": question_json(prompt.question),
                "may_remember": prompt.may_remember,
                "problem": prompt.problem,
            }


def _decision(prompt: Prompt, said: Mapping[str, Any]) -> Decision:
    """What was said, as a decision about the prompt. Raises `KeepholdError` if it is none."""
    word, remember, reason = said.get("decision"), bool(said.get("remember")), said.get("reason")
    words = _WORDS[type(prompt)]
    if word not in words:
        raise _wrong(f"`decision` must be one of {', '.join(words)} here")
    match word:
        case "approve":
            return Approved(remember)
        case "deny":
            return Denied(reason if isinstance(reason, str) and reason.strip() else None, remember)
        case "edit":
            return Edited(_edited(prompt, said.get("value")))
        case "answer":
            assert isinstance(prompt, AskQuestion)
            return Answer(_answer(prompt, said.get("value")), remember)
        case _:
            return Dismissed()


def _edited(prompt: Prompt, value: Any) -> Any:
    if isinstance(prompt, DeliverResult):
        if not isinstance(value, str):
            raise _wrong("`value` must be the text that the assistant is to see")
        return unmasked(value, prompt.result)
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _wrong(f"the arguments are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _wrong("the arguments must be a JSON object")
    return unmasked(value, prompt.arguments) if isinstance(prompt, RunTool) else value


def _answer(prompt: AskQuestion, value: Any) -> Any:
    given = read_answer(prompt.question, value) if isinstance(value, str) else value
    if not answer_fits(prompt.question, given):
        raise _wrong(f"the answer must be {expected(prompt.question)}", code="bad_answer")
    return given


def _wrong(message: str, code: str = "invalid_arguments") -> KeepholdError:
    return KeepholdError(message, code=code)


_ELSEWHERE = "handle-"
"""How the id of a need begins that is the open question of another process's handle."""


class OpenPrompts(StoreView):
    """What is stored, and what waits for a person."""

    def __init__(self, runtime: Runtime, needs: OpenRequests | None) -> None:
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
