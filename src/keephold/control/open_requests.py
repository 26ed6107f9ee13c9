"""What waits for a person: permissions, questions, results, passwords, all before them at once; they choose.

`Needs` is a prompter (`turn/prompts.py`). A prompt is open from when it is asked until somebody decides, here or
elsewhere, or nobody needs the decision any more. Nothing times out: a person may come back tomorrow.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from keephold.control.handle_json import question_json
from keephold.durable.keys import masked, unmasked
from keephold.errors import KeepholdError
from keephold.handles.question import answer_fits, expected
from keephold.turn.prompt_queue import LeftOpen
from keephold.turn.prompts import (
    Approved,
    AskQuestion,
    Cancelled,
    Decision,
    DeliverResult,
    Denied,
    Edited,
    Prompt,
    Prompter,
    RunTool,
    Said,
)
from keephold.turn.send_input import read_answer

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


class Needs:
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
                return here.result() if here.done() else there.result() or Cancelled()
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
    return None if isinstance(said, Cancelled) and said.reason is not None else said


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
            return Said(_answer(prompt, said.get("value")), remember)
        case _:
            return Cancelled()


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
