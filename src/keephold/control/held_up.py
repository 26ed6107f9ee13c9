"""Why a pending handle has not started, and which handles wait behind one: for `ps`, `show`, `/api` and the dashboard.

The process of a handle knows its position in each queue. Other processes know what it has posted: its open prompt, and
the names that it queues for. The lane's holder is a post, too, and the holders of a resource are in the store; who has
the slots of another process is not known.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from keephold.control.handle_json import HandleRef, HeldUp
from keephold.durable.keys import masked
from keephold.handles.facts import NOTHING, Fact
from keephold.handles.gate import LANE_POST, RESOURCE
from keephold.handles.handle import Handle
from keephold.handles.state import Pending, Stopped
from keephold.store.base import HandleQuery, Record, Store

_SHOWN = 20
"""The most handles in front of another, or behind it, that are named."""
_LANES = ("serial:", "call:")


def obstacle(name: str, behind: Iterable[Handle | Record], count: int) -> HeldUp:
    """Describe what a handle queues for, by the name that its queue has."""
    handles = [HandleRef(each.id, each.uid) for _, each in zip(range(_SHOWN), behind, strict=False)]
    if name.startswith(_LANES):
        return HeldUp("lane", None, handles, count)
    if name.startswith(RESOURCE):
        return HeldUp("resource", masked(name.removeprefix(RESOURCE)), handles, count)
    return HeldUp("slot", name, handles, count)


def here(handle: Handle) -> list[HeldUp]:
    """Return what holds up a handle of this process."""
    return [obstacle(name, behind, len(behind)) for name, behind in handle.waits_for()]


def waiting_behind(handle: Handle) -> list[HandleRef]:
    """Return the handles of this process that wait behind one of it, the next first."""
    return [HandleRef(each.id, each.uid) for each in handle.in_front_of()[:_SHOWN]]


class _Prompt(msgspec.Struct):
    """The part of a posted prompt (`turn/prompts.py`) that says what it is about."""

    type: str
    uid: str | None = None


async def prompts_of(store: Store) -> dict[str, str]:
    """Return the posted prompts for permission to start a call: their ids by the uid of its handle."""
    posts = [(post, msgspec.json.decode(post.body, type=_Prompt)) for post in await store.posts("prompt")]
    return {
        prompt.uid: post.id
        for post, prompt in posts
        if prompt.type == "run_tool" and prompt.uid is not None and store.alive(post.owner)
    }


async def elsewhere(store: Store, records: Sequence[Record], facts: Mapping[str, Fact]) -> dict[str, list[HeldUp]]:
    """Return what holds up these pending handles, by uid, as their processes have posted it."""
    queues = {each.uid: facts[each.uid].queue for each in records if facts.get(each.uid, NOTHING).queue}
    if not queues:
        return {}
    holders = await _holders(store, {name for queue in queues.values() for name in queue})
    return {
        uid: [obstacle(name, holders.get(name, ()), len(holders.get(name, ()))) for name in queue]
        for uid, queue in queues.items()
    }


async def _holders(store: Store, names: set[str]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    if any(name.startswith(_LANES) for name in names):
        for post in await store.posts("lane"):
            lane = post.id.removeprefix(LANE_POST)
            holder = await store.handle(post.body.decode()) if lane in names and store.alive(post.owner) else None
            if holder is not None and not isinstance(holder.state, Stopped):
                found[lane] = [holder]
    if any(name.startswith(RESOURCE) for name in names):
        for record in await store.handles(HandleQuery(live=True, stateful=None)):
            if not isinstance(record.state, Pending):
                for name in names.intersection(record.resources):
                    found.setdefault(name, []).append(record)
    return found
