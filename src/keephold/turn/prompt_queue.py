"""The person who is there, if one is: prompts one at a time, first come first served (Q5).

Everything else keeps running while a prompt is open. A prompt that nobody needs an answer to any more is withdrawn:
one that waits is never shown, the one that is shown is cancelled. One that cannot be asked now holds up no other.

Where a person has all prompts before them and chooses (`at_once` of the prompter), each is shown when it comes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from weakref import WeakSet

from keephold.handles.handle import Handle, OnStop
from keephold.listeners import Listeners
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
"""How long closing waits for a prompt that tidies up."""
_DECISIONS: dict[type[Prompt], tuple[type[Decision], ...]] = {
    RunTool: (Approved, Denied, Edited, Dismissed),
    DeliverResult: (Approved, Denied, Edited, Dismissed),
    AskQuestion: (Answer, Dismissed),
}
"""What may be said to each kind of prompt."""


class LeftOpen(Exception):
    """Raised by a prompter that cannot ask now, or not this: nothing is decided, and others are asked meanwhile."""


class Asking:
    """A prompt that waits for its turn, or is shown, or was left open."""

    __slots__ = ("_people", "asked", "prompt", "settled", "task", "then")

    def __init__(
        self, people: "PromptQueue", prompt: Prompt, then: Callable[[Decision], None], settled: Callable[[], bool]
    ) -> None:
        self._people = people
        self.prompt = prompt
        self.settled = settled
        self.asked = then
        self.then: Callable[[Decision], None] | None = then
        """None: it was answered or withdrawn."""
        self.task: asyncio.Task[Decision | None] | None = None

    def withdraw(self) -> None:
        """Nobody needs the answer any more. After the answer, or twice, it is harmless."""
        if self.then is not None:
            self.then = None
            self._people.withdrawn(self)


class PromptQueue:
    """Asks by a prompter: the runtime's, or that of whoever handed in a call."""

    def __init__(self, prompter: Prompter | None) -> None:
        self._prompter = prompter
        self._at_once: bool = getattr(prompter, "at_once", False)
        self.beside: Callable[[Prompter], Prompter] | None = None
        """Has somebody else asked as well who is asked by that prompter: whoever answers first."""
        self._others: dict[str, PromptQueue] = {}
        self.finders: list[Callable[[Handle], PromptQueue | None]] = []
        """Find who is asked about a call that was not assigned, as after a restart. The first that knows decides."""
        self._waiting: deque[Asking] = deque()
        self._shown: list[Asking] = []
        self._left: list[Asking] = []
        """What could not be asked, in the order it came."""
        self._closed = False
        self._joined: WeakSet[PromptQueue] = WeakSet()
        """Those for whom somebody here is asked as well."""
        self.on_settled: Listeners[[Prompt]] = Listeners()
        """Called when a decision has reached the call that asked, or its prompt was withdrawn."""
        self._settles: Callable[[Prompt], None] = self._settle_shown
        """Called when something was said here."""

    @property
    def here(self) -> bool:
        """Whether there is somebody to ask. While the runtime closes, too: then nothing is asked or decided."""
        return self._prompter is not None

    def of(self, handle: Handle) -> "PromptQueue":
        """Those who are asked about a handle."""
        other = self._others.get(handle.uid)
        if other is None and handle.active:
            other = next((found for find in self.finders if (found := find(handle)) is not None), None)
            if other is not None:
                self.assign(handle, other)
        return self if other is None else other

    def joined(self, prompter: Prompter) -> "PromptQueue":
        """Those who are asked by that prompter, and whoever is there besides."""
        if self.beside is None:
            return PromptQueue(prompter)
        people = PromptQueue(self.beside(prompter))
        people._at_once, people._settles = True, self._settle_shown
        self._joined.add(people)
        return people

    def assign(self, handle: Handle, people: "PromptQueue") -> None:
        """From now on, and until it stops, these are asked about the handle."""
        self._others[handle.uid] = people
        handle.watch(OnStop(self._forget))

    def _forget(self, handle: Handle) -> None:
        self._others.pop(handle.uid, None)

    def ask(
        self, prompt: Prompt, then: Callable[[Decision], None], settled: Callable[[], bool] = lambda: False
    ) -> Asking:
        """Ask when those before are answered; `then` gets what was said, unless the prompt is withdrawn.

        `settled` is called when its turn has come: what was said to those before may settle it, and then it says True.
        """
        asking = Asking(self, prompt, then, settled)
        self._waiting.append(asking)
        self._next()
        return asking

    def ask_again(self, asking: Asking, prompt: Prompt) -> None:
        """Ask the same thing in other words, before anything else: what was said could not be taken."""
        asking.prompt = prompt
        asking.then = asking.asked
        self._waiting.appendleft(asking)

    def withdrawn(self, asking: Asking) -> None:
        if asking in self._shown:
            assert asking.task is not None
            asking.task.cancel()  # `_said` goes on with the next, when the terminal is free again
        elif asking in self._waiting:
            self._waiting.remove(asking)
        elif asking in self._left:
            self._left.remove(asking)

    def again(self) -> None:
        """Ask what was left open, before anything else: somebody is there who may be asked."""
        self._waiting.extendleft(reversed(self._left))
        self._left.clear()
        self._next()

    def _next(self) -> None:
        while self._waiting and (self._at_once or not self._shown) and not self._closed:
            asking = self._waiting.popleft()
            if asking.settled():
                asking.then = None
                continue
            self._shown.append(asking)
            asking.task = asyncio.ensure_future(self._show(asking.prompt))
            asking.task.add_done_callback(partial(self._said, asking))

    async def _show(self, prompt: Prompt) -> Decision | None:
        """What was said; None if it could not be asked."""
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
        why = f"the prompter returned a {type(said).__name__}, which is no decision here; this prompt takes {right}"
        _log.error("%s", why)
        return Dismissed(why)

    def _said(self, asking: Asking, task: "asyncio.Task[Decision | None]") -> None:
        self._shown.remove(asking)
        said = Dismissed() if task.cancelled() else task.result()
        prompt = asking.prompt
        try:
            if asking.then is not None and said is None:
                self._left.append(asking)
            elif asking.then is not None and said is not None:
                then, asking.then = asking.then, None
                then(said)
        finally:
            if self._at_once:
                self._settles(prompt)
            self._next()

    def _settle_shown(self, prompt: Prompt) -> None:
        """What was said just now may settle others that are shown beside it."""
        self.on_settled(prompt)
        shown = [*self._shown, *(asking for people in self._joined for asking in people._shown)]
        for asking in shown:
            if asking.then is not None and asking.settled():
                asking.withdraw()

    async def close(self) -> None:
        """Withdraw everything."""
        tasks = [task for people in (self, *self._joined) for task in people._withdraw_all()]
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECS)

    def _withdraw_all(self) -> "list[asyncio.Task[Decision | None]]":
        self._closed = True
        self._waiting.clear()
        self._left.clear()
        tasks = [asking.task for asking in self._shown if asking.task is not None]
        for asking in tuple(self._shown):
            asking.withdraw()
        return tasks
