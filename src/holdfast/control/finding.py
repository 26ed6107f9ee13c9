"""The handle that somebody means: the one of a uid, or the newest of an id, wherever it is.

Of several conversations that have a handle of one id the one whose handle is live is meant, if there is one such; else
it is an error that lists them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from holdfast.errors import HoldfastError
from holdfast.handles.state import Stopped
from holdfast.store.base import Expired, Record, Store

T = TypeVar("T")

_PAGE = 1000


def place_of(store: Store) -> str:
    """Where a store is, for people: the first mistake is to look in another one."""
    return f"the store {getattr(store, 'path', '')}".strip()


async def find(store: Store, ids: Iterable[str], conversation: str | None) -> list[Record]:
    """The newest handle of each id or uid, in a conversation or in whichever has it."""
    wanted = list(dict.fromkeys(ids))
    found: dict[str, list[Record]] = {}
    for id in wanted:
        record = await store.handle(id)
        if record is not None and conversation in (None, record.conversation):
            found[id] = [record]
    unknown = [id for id in wanted if id not in found]
    if unknown:
        found |= await (_everywhere(store, unknown) if conversation is None else _in(store, conversation, unknown))
    return choose(wanted, found, place_of(store), lambda each: (each.conversation, not isinstance(each.state, Stopped)))


def choose(
    wanted: Sequence[str], found: Mapping[str, list[T]], place: str, known: Callable[[T], tuple[str, bool]]
) -> list[T]:
    """Of what was found for each id, the one that is meant. Raises `HoldfastError` if that is none, or not certain.

    `known` tells the conversation of one that was found, and whether it is live.
    """
    meant: dict[str, T] = {}
    for id in wanted:
        candidates = found.get(id, [])
        live = [each for each in candidates if known(each)[1]]
        if len(live) == 1:  # whoever names it means the one that runs
            candidates = live
        if len(candidates) > 1:
            where = ", ".join(f"`{known(each)[0]}`" for each in candidates)
            raise HoldfastError(
                f"Handle `{id}` is in {len(candidates)} conversations: {where}; name one by --conversation",
                code="handle_not_found",
            )
        if candidates:
            meant[id] = candidates[0]
    missing = [f"Handle `{id}` not found in {place}" for id in wanted if id not in meant]
    if missing:
        raise HoldfastError(f"{'. '.join(missing)}; `holdfast ps --all` lists those there are", code="handle_not_found")
    return [meant[id] for id in wanted]


async def _in(store: Store, conversation: str, ids: list[str]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for id in ids:
        record: Record | Expired | None = await store.named(conversation, id)
        if record is None and id.startswith("call:"):
            record = await store.called(conversation, id.removeprefix("call:"))
        if isinstance(record, Expired):
            raise HoldfastError(
                f"Handle `{id}` expired: it stopped long ago and its result is gone", code="handle_expired"
            )
        if record is not None:
            found[id] = [record]
    return found


async def _everywhere(store: Store, ids: list[str]) -> dict[str, list[Record]]:
    """By id: the newest handle that bears it of each conversation that has one."""
    found: dict[str, list[Record]] = {}
    for id in ids:
        newest: dict[str, Record] = {}
        after = None
        while page := await store.handles(search=id, stateful=None, after=after, limit=_PAGE):
            newest |= {record.conversation: record for record in page if record.id == id}  # the oldest come first
            after = page[-1].uid
        if newest:
            found[id] = list(newest.values())
    return found
