"""Open requests to the user: permissions, questions, results to approve, passwords.

`OpenRequests` is a prompter (`turn/prompts.py`) that keeps all its prompts open at once. A prompt is open until it is
decided, here or elsewhere, or until its call no longer needs the decision. It never times out.

`RequestsView` adds the open questions of handles that other processes of the store run.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypedDict

import msgspec

from keephold.control.handle_json import OpenQuestion, Seconds, Shape, as_json, open_question
from keephold.control.store_view import PAGE
from keephold.durable.keys import masked, unmasked
from keephold.errors import KeepholdError
from keephold.handles.question import answer_fits, expected
from keephold.handles.state import Waiting
from keephold.listeners import Listeners
from keephold.runtime import Runtime
from keephold.store.base import HandleQuery, Record, browsable
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

_log = logging.getLogger("keephold.control")

_PASSING_SECS = 5.0
"""How long a decision may take to reach its asker; normally one or two iterations of the loop."""
_WORDS: dict[type[Prompt], tuple[str, ...]] = {
    RunTool: ("approve", "deny", "edit", "cancel"),
    DeliverResult: ("approve", "deny", "edit", "cancel"),
    AskQuestion: ("answer", "cancel"),
}
"""The decisions that each kind of prompt takes."""


@dataclass(frozen=True, slots=True)
class _Open:
    prompt: Prompt
    since: float
    decided: "asyncio.Future[Decision]"
    passed: "asyncio.Future[None]"
    """Done when the asker has the decision."""


class Decided(TypedDict):
    """Whether a decision was `taken`, must be made `again`, or came too late."""

    status: Literal["taken", "again", "gone"]
    problem: str | None


class OpenRequests:
    """A prompter that lists its open prompts and takes decisions by their ids."""

    at_once = True

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._ids = secrets.token_hex(4)
        """Makes the ids of this process differ from those of the process before it."""
        self._count = 0
        self._passing: dict[str, _Open] = {}
        """Decided requests whose asker has not yet got the decision."""
        self.on_changed: Listeners[[]] = Listeners()
        """Called when a request was opened or is no longer open."""

    async def __call__(self, prompt: Prompt) -> Decision:
        self._count += 1
        id = f"{self._ids}-{self._count}"
        loop = asyncio.get_running_loop()
        decided: asyncio.Future[Decision] = loop.create_future()
        self._open[id] = _Open(prompt, time.time(), decided, loop.create_future())
        self.on_changed()
        try:
            return await decided
        except asyncio.CancelledError:  # withdrawn; a decision made in the same iteration reaches nobody
            if self._open.pop(id, None) is not None:
                self.on_changed()
            self._reached(id)
            raise

    def beside(self, other: Prompter) -> Prompter:
        """Ask here and there; the first answer wins. Secrets are asked for only here."""

        async def both(prompt: Prompt) -> Decision:
            if isinstance(prompt, AskQuestion) and prompt.question.secret:
                return await self(prompt)
            here, there = asyncio.ensure_future(self(prompt)), asyncio.ensure_future(_unless_gone(other, prompt))
            try:
                await asyncio.wait((here, there), return_when=asyncio.FIRST_COMPLETED)
                if there.done() and there.result() is None:  # the other prompter could not ask
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
        """List the first `limit` open requests that `wanted` accepts, oldest first."""
        chosen = (id for id, opened in self._open.items() if not opened.decided.done() and wanted(opened.prompt))
        return [_described(id, self._open[id]) for id in islice(chosen, limit)]

    def described(self, id: str) -> dict[str, Any] | None:
        """Describe the open request of that id, or return None."""
        opened = self._open.get(id)
        return None if opened is None else _described(id, opened)

    def decide(
        self, id: str, said: Mapping[str, Any], check: Callable[[RunTool, Any], object] | None = None
    ) -> Decided:
        """Decide an open request: `taken`, `gone`, or `again` with the problem if the decision is invalid.

        `check` raises `KeepholdError` for invalid edited arguments. The asker checks them too, and would ask again.
        """
        opened = self._open.get(id)
        if opened is None or opened.decided.done():  # or its asker was cancelled in this iteration
            return {"status": "gone", "problem": "nobody waits for this any more: it was decided, or ended"}
        try:
            decision = _decision(opened.prompt, said)
            if check is not None and isinstance(decision, Edited) and isinstance(opened.prompt, RunTool):
                check(opened.prompt, decision.value)
        except KeepholdError as error:
            return {"status": "again", "problem": error.message}
        opened.decided.set_result(decision)
        self._passing[id] = self._open.pop(id)
        self.on_changed()
        return {"status": "taken", "problem": None}

    async def passed_on(self, id: str) -> None:
        """Wait until the asker has the decision; after that the decision can be written (R4)."""
        opened = self._passing.get(id)
        if opened is not None:
            await asyncio.wait([opened.passed], timeout=_PASSING_SECS)
            self._passing.pop(id, None)

    def passed(self, prompt: Prompt) -> None:
        """Note that the asker has the decision; the prompt queue calls this."""
        for id in [id for id, opened in self._passing.items() if opened.prompt is prompt]:
            self._reached(id)

    def _reached(self, id: str) -> None:
        opened = self._passing.pop(id, None)
        if opened is not None and not opened.passed.done():
            opened.passed.set_result(None)


async def _unless_gone(prompter: Prompter, prompt: Prompt) -> Decision | None:
    """Return the prompter's decision; None if it cannot ask."""
    try:
        said = await prompter(prompt)
    except LeftOpen:
        return None
    except Exception as error:
        _log.error("the prompter failed", exc_info=error)
        return None
    return None if isinstance(said, Dismissed) and said.reason is not None else said


class OpenRequest(Shape, kw_only=True):
    """An open request; fields that do not concern its kind are null or false."""

    id: str
    kind: Literal["permission", "question", "result", "secret"]
    conversation: str
    tool: str
    handle: str | None
    handle_id: str | None
    since: Seconds
    action: str | None = None
    arguments: dict[str, Any] | None = None
    result: str | None = None
    is_error: bool | None = None
    question: OpenQuestion | None = None
    may_remember: bool = False
    edit: bool = False
    problem: str | None = None


def _described(id: str, opened: _Open) -> dict[str, Any]:
    prompt, fields = opened.prompt, dict[str, Any]()
    match prompt:
        case RunTool():
            fields = {
                "kind": "permission",
                "action": prompt.action,
                "arguments": masked(prompt.arguments),
                "edit": prompt.edit,
                "may_remember": True,
                "problem": prompt.problem,
            }
        case DeliverResult():
            fields = {
                "kind": "result",
                "result": masked(prompt.result),
                "is_error": prompt.is_error,
                "edit": prompt.edit,
            }
        case AskQuestion():
            fields = {
                "kind": "secret" if prompt.question.secret else "question",
                "question": open_question(prompt.question),
                "may_remember": prompt.may_remember,
                "problem": prompt.problem,
            }
    request = OpenRequest(
        id=id,
        conversation=prompt.conversation,
        tool=prompt.tool,
        handle=prompt.uid,
        handle_id=prompt.id,
        since=opened.since,
        **fields,
    )
    return as_json(request)


def _decision(prompt: Prompt, said: Mapping[str, Any]) -> Decision:
    """Read a decision about the prompt. Raises `KeepholdError` if it is invalid."""
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
            raise _wrong("`value` must be the text that the model is to see")
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
"""Prefix of a request's id if it is the open question of another process's handle."""


class RequestsView:
    """Lists all open requests: those of this process, and the open questions of handles that other processes run."""

    def __init__(self, runtime: Runtime, here: OpenRequests | None) -> None:
        self.here = here
        self._registry = runtime.registry
        self._store = runtime.registry.store
        if here is not None:
            runtime.people.on_settled.add(here.passed)

    async def page(self, *, handle: str | None = None, limit: int = PAGE) -> list[dict[str, Any]]:
        """List the oldest open requests; with `handle`, those that concern the handle of that uid."""
        size, listed = max(1, min(limit, PAGE)), []
        if self.here is not None:
            listed = self.here.listed(size) if handle is None else self.here.listed(size, self._is_about(handle))
            self._name_handles(listed)
        if handle is None:
            listed += [_of_record(record) for record in await self._asking_elsewhere(size)]
        elif (request := await self._asked_elsewhere(handle)) is not None:
            listed.append(request)
        return sorted(listed, key=lambda request: request["since"])[:size]

    async def get(self, id: str) -> dict[str, Any] | None:
        """Return one request; None if it is not open any more."""
        found = self.here.described(id) if self.here is not None else None
        if found is not None:
            return found
        elsewhere = question_of(id)
        request = await self._asked_elsewhere(elsewhere[0]) if elsewhere is not None else None
        return request if request is not None and request["id"] == id else None

    async def count(self) -> int:
        """Count the open requests."""
        here = len(self.here) if self.here is not None else 0
        return here + sum((await self._others()).values())

    def _is_about(self, uid: str) -> Callable[[Prompt], bool]:
        handle = self._registry.loaded(uid)
        named = None if handle is None else (handle.conversation, handle.id)
        return lambda prompt: prompt.uid == uid or (prompt.uid is None and (prompt.conversation, prompt.id) == named)

    def _name_handles(self, requests: list[dict[str, Any]]) -> None:
        """Add the uid to permissions to send something to a handle: they know the handle by its id alone."""
        known: dict[str, dict[str, str]] = {}
        for request in requests:
            if request["handle"] is None and request["handle_id"] is not None:
                place = request["conversation"]
                if place not in known:
                    known[place] = {handle.id: handle.uid for handle in self._registry.live(place)}
                request["handle"] = known[place].get(request["handle_id"])

    async def _others(self) -> dict[str, int]:
        """Count the open questions of each other live process."""
        store = self._store
        asking = await browsable(store).asking()
        return {each: count for each, count in asking.items() if each != store.owner and store.alive(each)}

    async def _asking_elsewhere(self, most: int) -> list[Record]:
        """Return the oldest handles of other processes that have an open question."""
        others, after = await self._others(), None
        found: list[Record] = []
        while len(found) < min(most, sum(others.values())):
            page = await self._store.handles(HandleQuery(state="waiting", stateful=None, after=after, limit=PAGE))
            if not page:
                break
            found += [each for each in page if each.owner in others]
            after = page[-1].uid
            await asyncio.sleep(0)  # reading the store does not yield to the loop
        return found[:most]

    async def _asked_elsewhere(self, uid: str) -> dict[str, Any] | None:
        record = await self._store.handle(uid)
        if record is None or not isinstance(record.state, Waiting) or record.owner in (None, self._store.owner):
            return None
        return _of_record(record) if self._store.alive(str(record.owner)) else None


def question_of(id: str) -> tuple[str, str] | None:
    """Return the uid and the question's number if the request is a question of another process's handle."""
    uid, _, number = id.removeprefix(_ELSEWHERE).partition("-")
    return (uid, number) if id.startswith(_ELSEWHERE) else None


def _of_record(record: Record) -> dict[str, Any]:
    state = record.state
    assert isinstance(state, Waiting)
    request = OpenRequest(
        id=f"{_ELSEWHERE}{record.uid}-{state.number}",
        kind="secret" if state.question.secret else "question",
        conversation=record.conversation,
        tool=record.tool,
        handle=record.uid,
        handle_id=record.id if record.stateful else None,
        since=state.asked,
        question=open_question(state.question, state.number),
    )
    return as_json(request)
