"""Open requests to the user: permissions, questions, results to approve, passwords.

`OpenRequests` is a prompter (`turn/prompts.py`) that keeps all its prompts open at once. A prompt is open until it is
decided, here or elsewhere, or until its call no longer needs the decision. It never times out.

`RequestsView` adds the requests of other processes (`posted_requests.py`).
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from keephold.control.posted_requests import PostedRequests, described
from keephold.control.store_view import PAGE
from keephold.errors import KeepholdError
from keephold.listeners import Listeners
from keephold.runtime import Runtime
from keephold.turn.decisions import GONE, TAKEN, Decided, read_decision
from keephold.turn.prompt_queue import LeftOpen
from keephold.turn.prompts import AskQuestion, Decision, Dismissed, Edited, Prompt, Prompter, RunTool

_log = logging.getLogger("keephold.control")

_PASSING_SECS = 5.0
"""How long a decision may take to reach its asker; normally one or two iterations of the loop."""


@dataclass(frozen=True, slots=True)
class _Open:
    prompt: Prompt
    since: float
    decided: "asyncio.Future[Decision]"
    passed: "asyncio.Future[None]"
    """Done when the asker has the decision."""


class OpenRequests:
    """A prompter that lists its open prompts and takes decisions by their ids."""

    at_once = True
    who = "the dashboard"

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
        id = prompt.request
        if not id:
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
        return [self._described(id) for id in islice(chosen, limit)]

    def has(self, id: str) -> bool:
        """Whether the request is open here, or was just decided and its asker does not know yet."""
        return id in self._open or id in self._passing

    def described(self, id: str) -> dict[str, Any] | None:
        """Describe the open request of that id, or return None."""
        return self._described(id) if id in self._open else None

    def _described(self, id: str) -> dict[str, Any]:
        return described(id, self._open[id].prompt, self._open[id].since)

    def decide(
        self,
        id: str,
        said: Mapping[str, Any],
        check: Callable[[RunTool, Any], object] | None = None,
        by: str | None = None,
    ) -> Decided:
        """Decide an open request: `taken`, `gone`, or `again` with the problem if the decision is invalid.

        `check` raises `KeepholdError` for invalid edited arguments. The asker checks them too, and would ask again.
        """
        opened = self._open.get(id)
        if opened is None or opened.decided.done():  # or its asker was cancelled in this iteration
            return GONE
        try:
            decision = read_decision(opened.prompt, said, by)
            if check is not None and isinstance(decision, Edited) and isinstance(opened.prompt, RunTool):
                check(opened.prompt, decision.value)
        except KeepholdError as error:
            return {"status": "again", "problem": error.message}
        opened.decided.set_result(decision)
        self._passing[id] = self._open.pop(id)
        self.on_changed()
        return TAKEN

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


class RequestsView:
    """Lists all open requests: those of this process, and those of others."""

    def __init__(self, runtime: Runtime, here: OpenRequests | None) -> None:
        self.here = here
        self._registry = runtime.registry
        self.elsewhere = PostedRequests(runtime.registry.store, own=here is None)
        if here is not None:
            runtime.people.on_settled.add(here.passed)

    async def page(self, *, handle: str | None = None, limit: int = PAGE) -> list[dict[str, Any]]:
        """List the oldest open requests; with `handle`, those that concern the handle of that uid."""
        size, listed = max(1, min(limit, PAGE)), []
        if self.here is not None:
            listed = self.here.listed(size) if handle is None else self.here.listed(size, self._is_about(handle))
            self._name_handles(listed)
        listed += await self.elsewhere.page(handle=handle, limit=size)
        return sorted(listed, key=lambda request: request["since"])[:size]

    async def get(self, id: str) -> dict[str, Any] | None:
        """Return one request; None if it is not open any more."""
        found = self.here.described(id) if self.here is not None else None
        return found if found is not None else await self.elsewhere.get(id)

    async def count(self) -> int:
        """Count the open requests."""
        here = len(self.here) if self.here is not None else 0
        return here + await self.elsewhere.count()

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
