"""Find the handle that an id or uid names, in any conversation.

An id names the live handle of that id; if none is live, the newest. If several are live, or none is and several
conversations have had one, an error lists them: keephold never guesses.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from keephold.errors import KeepholdError
from keephold.handles.state import Stopped
from keephold.store.base import Browse, Expired, HandleQuery, Record, Store, browsable, file_of
from keephold.text import without_isolates

T = TypeVar("T", Record, dict[str, Any])

_PAGE = 1000


def place_of(store: Store) -> str:
    """Return the store's place for messages: the most common mistake is to look in another store."""
    return f"the store {file_of(store) or ''}".strip()


async def find(store: Store, ids: Iterable[str], conversation: str | None) -> list[Record]:
    """Return the handle of each id or uid, in that conversation or in any."""
    wanted = list(dict.fromkeys(map(without_isolates, ids)))
    found: dict[str, list[Record]] = {}
    for id in wanted:
        record = await store.handle(id)
        if record is not None and conversation in (None, record.conversation):
            found[id] = [record]
        else:
            found[id] = await bearing(store, id, conversation)
        if not found[id]:
            await check_expired(browsable(store), id, conversation)
    return choose(wanted, found, place_of(store), lambda each: (each.conversation, not isinstance(each.state, Stopped)))


async def check_expired(store: Browse, ref: str, conversation: str | None) -> None:
    """Raise `KeepholdError` if the handle of a uid has expired or, if no conversation is named, a handle of an id."""
    tombstone = await store.expired(ref)
    if tombstone is not None and (conversation is None or tombstone.uid == ref):
        raise expired(ref)


def choose(
    wanted: Sequence[str], found: Mapping[str, list[T]], place: str, known: Callable[[T], tuple[str, bool]]
) -> list[T]:
    """Return the handle that each id names, of those `found`. Raises `KeepholdError` if there is none, or several.

    `known` returns a handle's conversation, and whether it is live.
    """
    meant: dict[str, T] = {}
    for id in wanted:
        candidates = found.get(id, [])
        candidates = [each for each in candidates if known(each)[1]] or candidates
        if len(candidates) > 1:
            raise _uncertain(id, candidates, [known(each)[0] for each in candidates])
        if candidates:
            meant[id] = candidates[0]
    missing = [f"Handle `{id}` not found in {place}" for id in wanted if id not in meant]
    if missing:
        raise KeepholdError(f"{'. '.join(missing)}; `keephold ps --all` lists those there are", code="handle_not_found")
    return [meant[id] for id in wanted]


def _uncertain(id: str, candidates: Sequence[Record | dict[str, Any]], conversations: Sequence[str]) -> KeepholdError:
    if len(set(conversations)) == len(conversations):
        where = ", ".join(f"`{conversation}`" for conversation in conversations)
        text = f"Handle `{id}` is in {len(candidates)} conversations: {where}; name one by --conversation"
    else:  # clients number their calls, so two clients use the same ids
        uids = ", ".join(
            f"{each['uid']} ({each['tool']})" if isinstance(each, dict) else f"{each.uid} ({each.tool})"
            for each in candidates
        )
        text = f"{len(candidates)} live handles are called `{id}`: {uids}; name one by its uid"
    return KeepholdError(text, code="handle_not_found")


async def bearing(store: Store, id: str, conversation: str | None) -> list[Record]:
    """Return the live handles of that id; if there is none, each conversation's newest."""
    live = [record async for record in _pages(store, id, conversation, live=True)]
    if live:
        return live
    if conversation is not None:
        return await _newest(store, id, conversation)
    newest = {record.conversation: record async for record in _pages(store, id, None, live=False)}
    return list(newest.values())


async def _pages(store: Store, id: str, conversation: str | None, *, live: bool) -> AsyncIterator[Record]:
    """Yield the handles of that id, oldest first."""
    after = None
    while page := await store.handles(
        HandleQuery(conversation=conversation, live=live, search=id, stateful=None, after=after, limit=_PAGE)
    ):
        for record in page:
            if record.id == id:
                yield record
        after = page[-1].uid


async def _newest(store: Store, id: str, conversation: str) -> list[Record]:
    record: Record | Expired | None = await store.named(conversation, id)
    if record is None and id.startswith("call:"):
        record = await store.called(conversation, id.removeprefix("call:"))
    if isinstance(record, Expired):
        raise expired(id)
    return [] if record is None else [record]


def expired(id: str) -> KeepholdError:
    """Return the error for a handle whose retention is over."""
    return KeepholdError(f"Handle `{id}` expired: it stopped long ago and its result is gone", code="handle_expired")
