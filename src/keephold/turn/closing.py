"""The end of a runtime's calls when it is closed: what would not survive ends, what does is let go of (R6)."""

import asyncio
import contextlib
from collections.abc import Collection

from keephold.errors import KeepholdError
from keephold.handles.handle import Handle
from keephold.handles.registry import Registry
from keephold.handles.state import Error, Pending
from keephold.tools.run import FORCE_SECS
from keephold.turn.admission import Admission
from keephold.turn.batch import Batch
from keephold.turn.ending import all_stopped
from keephold.turn.recovery import Recovery

_CLOSE_SECS = FORCE_SECS + 1
"""How long closing waits for calls beyond the longest of their graces."""


async def end_calls(registry: Registry, admission: Admission, recovery: Recovery, batches: Collection[Batch]) -> None:
    """End or let go of every call. Batches that are not answered by then are left, and the others recorded."""
    live = registry.live()
    kept = dict.fromkeys(
        [each for each in live if _survives(each, registry, batches) or await _completed(each, recovery)]
    )
    ended = [handle for handle in live if handle not in kept]
    grace = max((handle.tool.spawn.abort_grace_ms for handle in ended), default=0) / 1000
    admission.end_all(ended, Error("Ended: the runtime was closed.", "aborted"), "shutdown")
    let_go = [handle.run for handle in kept if handle.run is not None]
    for run in let_go:
        run.let_go()
    try:
        async with asyncio.timeout(grace + _CLOSE_SECS):
            await all_stopped(ended)
            await asyncio.sleep(0)  # answers that the ends have brought leave first
            for run in let_go:
                await run.gone()
    except TimeoutError:
        pass
    finally:
        for batch in tuple(batches):
            batch.leave()
        await _recorded(batches)


async def end_conversation(registry: Registry, admission: Admission, conversation: str, why: Error) -> None:
    """End every call of a conversation that goes on or is parked, whatever its policy: nobody is there any more."""
    live = [handle for handle in registry.live(conversation) if handle.active]
    parked: list[Handle] = []
    after: str | None = None
    while records := await registry.store.handles(conversation=conversation, parked=True, stateful=None, after=after):
        parked += [registry.adopt(record) for record in records]
        after = records[-1].uid
    ended = list(dict.fromkeys([*live, *parked]))
    admission.end_all(ended, why, "abort")
    await all_stopped(ended)


async def _recorded(batches: Collection[Batch]) -> None:
    """Until the responses of batches that are answered are in the store, where they are before anyone has them."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SECS):
            while batches:  # noqa: ASYNC110 (whoever runs a batch may be anything)
                await asyncio.sleep(0.001)


async def _completed(handle: Handle, recovery: Recovery) -> bool:
    try:
        return await recovery.completed(handle)
    except KeepholdError:  # it cannot be read: closing goes on
        return False


def _survives(handle: Handle, registry: Registry, batches: Collection[Batch]) -> bool:
    """Whether the next runtime can go on with it: a `replay` call, an `external` one that has its key, one that may be
    repeated, is between two attempts or being parked, or one of an open batch that can be begun anew (B9)."""
    if not registry.store.durable:
        return False
    run, tool = handle.run, handle.tool
    if tool.on_crash == "replay" or handle.next_attempt_at is not None or (run is not None and run.is_parking):
        return True
    if tool.on_crash == "external" and run is not None and run.has_key:
        return True
    if tool.retry.policy == "idempotent" and handle.attempt < tool.retry.max_attempts:
        return True
    anew = isinstance(handle.decided, Pending) or tool.source == "builtin"
    return anew and any(batch.resumable and batch.waits_for(handle) for batch in batches)
