"""The end of a turn (T): no live handle outlives it that its policy did not keep.

`abort` ends at once, `await` waits up to its timeout and then ends the rest, `keep` keeps. `inquire` would ask the
assistant; with nobody to ask it counts as `abort`, which is also what a cancelled turn makes of `inquire` and `await`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.handles.handle import Handle
from holdfast.handles.registry import Registry
from holdfast.handles.state import EndedBy, Error
from holdfast.handles.waits import Wait, all_of
from holdfast.turn.admission import Admission
from holdfast.turn.replies import Replies


class Ending(msgspec.Struct, frozen=True):
    """How a turn ended. `results` holds what its handles came to, each as in A3; `kept` those that live on."""

    results: tuple[dict[str, Any], ...] = ()
    kept: tuple[dict[str, Any], ...] = ()
    model: tuple[dict[str, Any], ...] = ()
    """Both of them as a model gets them (O2)."""
    again: bool = False
    """Whether the assistant is owed another word. Never, as long as nobody can be asked."""


async def end_turn(
    conversation: str, registry: Registry, admission: Admission, replies: Replies, *, cancelled: bool, turn: str
) -> Ending:
    """Apply each live handle's policy and wait until what must end has ended, one-shot calls included (T4).

    Parked calls are not live and stay, unless the turn is cancelled: then those of this turn are, too (T5, D2).
    """
    if cancelled:
        await _cancel_parked(conversation, turn, registry, admission)
    every = [handle for handle in registry.live(conversation) if handle.active and not _is_parking(handle, cancelled)]
    live = [handle for handle in every if handle.stateful]
    # Ordered sets: thousands may be live, and each is looked for in both.
    kept = dict.fromkeys(handle for handle in live if _kept(handle))
    waited = dict.fromkeys(h for h in live if h.tool.spawn.on_turn_end == "await" and not cancelled and h not in kept)
    ended = [handle for handle in live if handle not in kept and handle not in waited]
    calls = [handle for handle in every if not handle.stateful]
    reason: EndedBy = "cancel" if cancelled else "turn_end"
    _end(admission, [*ended, *calls], reason)
    try:
        await asyncio.gather(*(_wait(admission, handle) for handle in waited))
    except asyncio.CancelledError:  # T5: from now on nobody is waited for
        _end(admission, list(waited), "cancel")
        raise
    await all_stopped([*ended, *calls])
    over = [handle for handle in live if handle not in kept]
    return Ending(
        results=tuple(replies.entries(over, "dispatch")),
        kept=tuple(replies.entries(list(kept), "dispatch")),
        model=tuple(replies.entries([*over, *kept], "model")),
    )


def _is_parking(handle: Handle, cancelled: bool) -> bool:
    """Whether it is as good as parked, and parked calls stay (T4)."""
    return not cancelled and handle.run is not None and handle.run.is_parking


def _kept(handle: Handle) -> bool:
    """T1: its tool says so, or says nothing and the call waits in durable effects."""
    chosen = handle.tool.spawn.on_turn_end
    return chosen == "keep" or (chosen is None and handle.run is not None and handle.run.waits_in_effects)


async def _cancel_parked(conversation: str, turn: str, registry: Registry, admission: Admission) -> None:
    after: str | None = None
    while records := await registry.store.handles(
        conversation=conversation, turn=turn, parked=True, stateful=None, after=after
    ):
        handles = [registry.adopt(record) for record in records]
        _end(admission, handles, "cancel")  # also one whose parking is in the file and not yet told
        await all_stopped(handles)
        after = records[-1].uid


def wait_no_longer(conversation: str, registry: Registry, admission: Admission) -> None:
    """T5: the turn is cancelled while it ends. What `end_turn` waits for is ended, and it goes on."""
    live = registry.live(conversation)
    waited = [handle for handle in live if handle.stateful and handle.tool.spawn.on_turn_end == "await"]
    _end(admission, waited, "cancel")


async def _wait(admission: Admission, handle: Handle) -> None:
    """T3: wait for one, but not for one that waits for an assistant who has stopped talking (A6)."""
    over = asyncio.Event()
    wait = Wait([all_of([handle])], lambda _: over.set())
    wait.begin()
    try:
        async with asyncio.timeout(handle.tool.spawn.turn_end_timeout_secs):
            await over.wait()
    except TimeoutError:
        pass
    finally:
        wait.cancel()
    if handle.active:
        _end(admission, [handle], "turn_end")
        await all_stopped([handle])


def _end(admission: Admission, handles: Sequence[Handle], ended_by: EndedBy) -> None:
    why = "Aborted: the turn was cancelled." if ended_by == "cancel" else "Aborted at the end of the turn."
    admission.end_all(handles, Error(why, "aborted"), ended_by)


async def all_stopped(handles: Sequence[Handle]) -> None:
    """Until all of them have stopped. They have been told to, so nothing can block them."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    everyone = {handle.uid for handle in handles}
    wait = Wait([all_of(handles)], lambda _: None if over.done() else over.set_result(None), spare=everyone)
    wait.begin()
    try:
        await over
    finally:
        wait.cancel()
