"""The prompts for one user, shown one at a time in the order they come (Q5).

Everything else keeps running while a prompt is open. A prompt whose answer is no longer needed is withdrawn: a queued
one is never shown, a shown one is cancelled. A prompt that cannot be shown now does not delay the others.

Every open prompt is also in the list of open requests (`turn/approvals.py`), where it can be decided.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

from msgspec.structs import replace

from keephold.handles.handle import Handle, OnStop
from keephold.turn.approvals import Approvals
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

_log = logging.getLogger("keephold.turn")

_CLOSE_SECS = 1.0
"""How long closing waits for a prompt that cleans up."""
_DECISIONS: dict[type[Prompt], tuple[type[Decision], ...]] = {
    RunTool: (Approved, Denied, Edited, Dismissed),
    DeliverResult: (Approved, Denied, Edited, Dismissed),
    AskQuestion: (Answer, Dismissed),
}
"""The decisions that each kind of prompt takes."""


class LeftOpen(Exception):
    """Raised by a prompter that cannot show a prompt now: the prompt stays open, and others are shown meanwhile."""


class FromList:
    """The prompter of a user who decides from the list of open requests, in any order. It shows nothing itself."""

    who = "the dashboard"

    async def __call__(self, prompt: Prompt) -> Decision:
        raise LeftOpen


class Asking:
    """A prompt that is queued, shown, or left open."""

    __slots__ = ("_prompt_queue", "asked", "check", "prompt", "settled", "since", "task", "then")

    def __init__(
        self,
        prompt_queue: "PromptQueue",
        prompt: Prompt,
        then: Callable[[Decision], None],
        settled: Callable[[], bool],
        check: Callable[[Any], object] | None,
    ) -> None:
        self._prompt_queue = prompt_queue
        self.prompt = prompt
        self.since = 0.0
        self.settled = settled
        self.check = check
        """Raises `KeepholdError` for edited arguments that the tool does not take."""
        self.asked = then
        self.then: Callable[[Decision], None] | None = then
        """None: it was answered or withdrawn."""
        self.task: asyncio.Task[Decision | None] | None = None

    def withdraw(self) -> None:
        """Withdraw the prompt. This does nothing once it is answered or withdrawn."""
        if self.then is not None:
            self.then = None
            self._prompt_queue.withdrawn(self)

    def decide(self, decision: Decision) -> None:
        """Take a decision that was made elsewhere, and withdraw the prompt where it is shown (P6)."""
        if self.then is not None:
            then, self.then = self.then, None
            self._prompt_queue.decided_elsewhere(self, then, decision)


class PromptQueue:
    """Asks through one prompter: the runtime's, or that of the client that sent a call."""

    def __init__(self, prompter: Prompter | None, approvals: Approvals | None = None) -> None:
        """`approvals`: where open prompts are listed, so that other processes can decide them."""
        self._prompter = prompter
        self._approvals = approvals
        self.who: str = getattr(prompter, "who", "the user")
        """Who decides here, for the record."""
        self._from_list = isinstance(prompter, FromList)
        """Whether the runtime's user decides from the list: a prompt that a client cannot show stays open there."""
        self._others: dict[str, PromptQueue] = {}
        self.finders: list[Callable[[Handle], PromptQueue | None]] = []
        """Find who is asked about a call that was not assigned, as after a restart. The first that knows decides."""
        self._waiting: deque[Asking] = deque()
        self._shown: list[Asking] = []
        self._left: list[Asking] = []
        """Prompts that could not be shown, in the order they came."""
        self._closed = False
        self.decides = True
        """Whether its user may approve calls and results and answer exclusive questions, as the owner may (K9)."""
        self._joined: WeakSet[PromptQueue] = WeakSet()
        """The queues of clients."""

    @property
    def here(self) -> bool:
        """Whether there is a user to ask. Stays true while the runtime closes, when nothing is decided."""
        return self._prompter is not None

    def of(self, handle: Handle) -> "PromptQueue":
        """Return the queue that prompts about a handle go to."""
        other = self._others.get(handle.uid)
        if other is None and handle.active:
            other = next((found for find in self.finders if (found := find(handle)) is not None), None)
            if other is not None:
                self.assign(handle, other)
        return self if other is None else other

    def deciding(self, handle: Handle) -> "PromptQueue":
        """Return the queue for prompts about a handle that only the owner may decide (K9)."""
        prompt_queue = self.of(handle)
        return prompt_queue if prompt_queue.decides else self

    def joined(self, prompter: Prompter, *, decides: bool = True) -> "PromptQueue":
        """Return a queue that asks a client through that prompter. A user who decides from the list (`FromList`) may
        decide, too: the first decision counts.

        `decides`: see the attribute. Without it, the prompter gets only questions that anybody may answer."""
        prompt_queue = PromptQueue(prompter, self._approvals)
        prompt_queue.decides, prompt_queue._from_list = decides, self._from_list
        self._joined.add(prompt_queue)
        return prompt_queue

    def assign(self, handle: Handle, prompt_queue: "PromptQueue") -> None:
        """Send prompts about a handle to that queue, until the handle stops."""
        self._others[handle.uid] = prompt_queue
        handle.watch(OnStop(self._forget))

    def _forget(self, handle: Handle) -> None:
        self._others.pop(handle.uid, None)

    def ask(
        self,
        prompt: Prompt,
        then: Callable[[Decision], None],
        settled: Callable[[], bool] = lambda: False,
        check: Callable[[Any], object] | None = None,
    ) -> Asking:
        """Show the prompt after those before it; `then` gets the decision, unless the prompt is withdrawn.

        `settled` is called before it is shown, and returns True if an earlier decision covers this prompt, too. `check`
        raises `KeepholdError` for edited arguments that do not fit.
        """
        asking = Asking(self, prompt, then, settled, check)
        self._list(asking)
        self._waiting.append(asking)
        self._next()
        return asking

    def _list(self, asking: Asking) -> None:
        if self._approvals is not None:
            asking.prompt = replace(asking.prompt, request=self._approvals.opened(asking))

    def _unlist(self, asking: Asking) -> None:
        if self._approvals is not None:
            self._approvals.closed(asking.prompt.request)

    def ask_again(self, asking: Asking, prompt: Prompt) -> None:
        """Show the prompt again, changed and before all others, because the decision was invalid."""
        asking.prompt = prompt
        asking.then = asking.asked
        self._list(asking)
        self._waiting.appendleft(asking)

    def decided_elsewhere(self, asking: Asking, then: Callable[[Decision], None], decision: Decision) -> None:
        self.withdrawn(asking)
        asking.task = None  # `_said` ignores the end of the task: the call may be asked about again by then
        try:
            then(decision)
        finally:
            self._next()

    def withdrawn(self, asking: Asking) -> None:
        self._unlist(asking)
        if asking in self._waiting:  # if it is asked again, its old prompt may still be shown
            self._waiting.remove(asking)
        elif asking in self._left:
            self._left.remove(asking)
        elif asking in self._shown and asking.task is not None:
            asking.task.cancel()  # `_said` shows the next one, when the terminal is free again

    def again(self) -> None:
        """Show the prompts that were left open, before all others."""
        self._waiting.extendleft(reversed(self._left))
        self._left.clear()
        self._next()

    def _next(self) -> None:
        while self._waiting and not self._shown and not self._closed:
            asking = self._waiting.popleft()
            if asking.settled():
                asking.then = None
                self._unlist(asking)
                continue
            self._shown.append(asking)
            asking.task = asyncio.ensure_future(self._show(asking.prompt))
            asking.task.add_done_callback(partial(self._said, asking))

    async def _show(self, prompt: Prompt) -> Decision | None:
        """Return the decision; None if the prompt could not be shown and stays open."""
        if self._from_list and isinstance(prompt, AskQuestion) and prompt.question.secret:
            return None  # clients are not asked for secrets
        said = await self._asked(prompt)
        failed = isinstance(said, Dismissed) and said.reason is not None
        return None if failed and self._from_list else said

    async def _asked(self, prompt: Prompt) -> Decision | None:
        assert self._prompter is not None
        try:
            said: object = await self._prompter(prompt)
        except LeftOpen:
            return None
        except Exception as error:
            _log.error("the prompter failed", exc_info=error)
            return Dismissed(f"{type(error).__name__}: {error}")
        for kind in _DECISIONS[type(prompt)]:
            if isinstance(said, kind):
                return said
        right = ", ".join(kind.__name__ for kind in _DECISIONS[type(prompt)])
        why = f"the prompter returned a {type(said).__name__}, which is not a decision here; this prompt takes {right}"
        _log.error("%s", why)
        return Dismissed(why)

    def _said(self, asking: Asking, task: "asyncio.Task[Decision | None]") -> None:
        self._shown.remove(asking)
        if asking.task is not task:  # it was decided elsewhere
            self._next()
            return
        said = Dismissed() if task.cancelled() else task.result()
        try:
            if asking.then is not None and said is None:
                self._left.append(asking)
            elif asking.then is not None and said is not None:
                then, asking.then = asking.then, None
                self._unlist(asking)
                then(said)
        finally:
            self._next()

    async def close(self) -> None:
        """Withdraw every prompt."""
        tasks = [task for prompt_queue in (self, *self._joined) for task in prompt_queue._withdraw_all()]
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECS)

    def _withdraw_all(self) -> "list[asyncio.Task[Decision | None]]":
        self._closed = True
        tasks = [asking.task for asking in self._shown if asking.task is not None]
        for asking in (*self._shown, *self._waiting, *self._left):
            asking.withdraw()
        return tasks
