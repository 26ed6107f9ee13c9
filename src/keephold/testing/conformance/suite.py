"""Helpers for the checks: stores that are opened and closed for them, commits to await, handles to begin with.

Times are made up and never compared with a clock: a store has none of its own.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args

import msgspec

from keephold.errors import KeepholdError
from keephold.handles.state import Ended, EndedBy, Ok, Outcome, PendingState, Started, State, Stopped, transition
from keephold.store.base import (
    Browse,
    Changed,
    Expired,
    HandleQuery,
    KeptOutput,
    Notice,
    Op,
    Parked,
    Parking,
    PostKind,
    Record,
    Registered,
    Resolution,
    Resolved,
    Resolving,
    WaitOpened,
)

NOON = 1_767_225_600.0
DAY = 86_400.0
CONVERSATIONS = ("main", "other")
PATIENCE = 10.0
"""Seconds that the bell of another process may take on a busy machine."""

Check = TypeVar("Check", bound=Callable[..., Any])


def shared(check: Check) -> Check:
    """Mark a check that opens the same store twice, so it is only for durable stores."""
    check.__dict__["shared"] = True
    return check


def uid(number: int) -> str:
    """Return a uid. Uids begin with the time they were made, so they sort by age."""
    return f"{number:012x}{0:020x}"


def record(number: int, **changes: Any) -> Record:
    """Return a spawned handle that is not registered yet."""
    fields: dict[str, Any] = {
        "uid": uid(number),
        "id": f"h{number}",
        "tool": "deploy",
        "conversation": "main",
        "turn": "turn-1",
        "batch": 1,
        "position": 0,
        "call_id": f"label{number}",
        "stateful": True,
        "state": PendingState(NOON),
        "arguments": {"env": "production"},
    }
    return Record(**{**fields, **changes})


def copy(found: Record | None) -> Record:
    """Return the record as it is now: a store may change the one it returned."""
    assert found is not None
    return msgspec.structs.replace(found)


class Suite:
    """Subclass this, say how stores are made, and run its checks."""

    durable = True
    """Whether the store's data outlives its process. If not, `again` is never called."""

    def make(self) -> Browse:
        """Return a new, empty store, not open yet."""
        raise NotImplementedError

    def again(self, store: Browse) -> Browse:
        """Return the same store, not open yet, as a second or the next process would open it."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._open: list[Browse] = []
        self._changed = asyncio.Event()
        self.heard: dict[int, list[frozenset[str] | None]] = {}
        """The changes of other processes that each store has heard of."""

    @classmethod
    def checks(cls) -> list[str]:
        """Return the names of the checks that such a store has to pass."""
        return [
            name
            for name in sorted(dir(cls))
            if name.startswith("check_") and (cls.durable or not getattr(getattr(cls, name), "shared", False))
        ]

    async def run(self, check: str) -> None:
        """Run one check on a store of its own."""
        try:
            await getattr(self, check)(await self.opened(self.make()))
        finally:
            for store in reversed(self._open):
                await store.close()
                await store.close()  # twice is harmless

    # Stores

    async def opened(self, store: Browse) -> Browse:
        heard: list[frozenset[str] | None] = []
        self.heard[id(store)] = heard

        def hear(changed: frozenset[str] | None) -> None:
            heard.append(changed)
            self._changed.set()

        await store.open(hear)
        self._open.append(store)
        return store

    async def second(self, store: Browse) -> Browse:
        """Return the store as another process sees it at the same time."""
        return await self.opened(self.again(store))

    async def reopened(self, store: Browse) -> Browse:
        """Return the store as the next process finds it when this one has ended."""
        await store.close()
        return await self.opened(self.again(store))

    async def word(self, store: Browse, of: str) -> None:
        """Wait until the store has heard that this uid or key changed."""
        async with asyncio.timeout(PATIENCE):
            while not any(changed is None or of in changed for changed in self.heard[id(store)]):
                self._changed.clear()
                await self._changed.wait()

    # Commits

    async def commit(self, store: Browse, *ops: Op) -> list[Any]:
        """Return the results when the commit is written; raise the error if it is refused."""
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        store.commit(ops, lambda results: answer.set_result(list(results)), answer.set_exception)
        return await answer

    async def refused(self, store: Browse, code: str | None, *ops: Op) -> KeepholdError:
        """Commit operations that must be refused with that code and must leave nothing behind."""
        before = await self.dump(store)
        try:
            results = await self.commit(store, *ops)
        except KeepholdError as error:
            assert code is None or error.code == code, f"refused with {error.code}, not {code}: {error}"
            refusal = error
        else:
            raise AssertionError(f"should be refused with {code}, but gave {results}")
        after = await self.dump(store)
        assert after == before, _difference(before, after)
        return refusal

    async def dump(self, store: Browse) -> dict[str, str]:
        """Return all that can be read, in a form that does not change any more."""
        found: dict[str, Any] = {}
        for conversation in CONVERSATIONS:
            found[f"turn of {conversation}"] = await store.turn(conversation)
            found[f"notifications of {conversation}"] = await store.notifications(conversation, 10_000)
            found[f"inquiries of {conversation}"] = await store.inquiries(conversation)
            found[f"transcript of {conversation}"] = await store.transcript(conversation)
            found[f"description of {conversation}"] = await store.conversation(conversation)
            for each in await store.handles(HandleQuery(conversation=conversation, stateful=None, limit=100_000)):
                found[each.uid] = each
                found[f"journal of {each.uid}"] = await store.journal(each.uid)
                found[f"waits of {each.uid}"] = await store.waits(each.uid)
                found[f"events of {each.uid}"] = await store.process_events(each.uid)
                found[f"name {each.id} in {conversation}"] = await store.named(conversation, each.id)
                found[f"label {each.call_id} in {conversation}"] = await store.called(conversation, each.call_id)
            found[f"turns of {conversation}"] = await store.turns(conversation)
        found["conversations"] = await store.conversations()
        found["summaries"] = await store.summaries()
        found["secret"] = await store.secret()
        found["owners"] = sorted(await store.owners())
        found["ours"] = await store.owned(store.owner)
        found["nobody's"] = await store.owned(None)
        found["holding"] = await store.holding()
        found["due"] = await store.due(NOON + 1000 * DAY)
        found["next"] = (await store.due(NOON - DAY))[1]
        found["requests"] = await store.requests()
        found["posts"] = [post for kind in get_args(PostKind) for post in await store.posts(kind)]
        return {name: msgspec.json.encode(value).decode() for name, value in found.items()}

    # Handles

    async def begin(self, store: Browse, number: int, *, start: bool = True, **changes: Any) -> str:
        """Register a handle and, unless `start` is False, start it; return its uid."""
        new = record(number, **changes)
        ops: list[Op] = [Registered(new)]
        if start:
            ops.append(Changed(new.uid, new.fence, Started(NOON + 1), transition(new.state, Started(NOON + 1))))
        await self.commit(store, *ops)
        return new.uid

    async def found(self, store: Browse, of: str) -> Record:
        """Return the handle, which must exist."""
        return copy(await store.handle(of))

    async def ending(
        self,
        store: Browse,
        of: str,
        outcome: Outcome | None = None,
        ended_by: EndedBy = "self",
        at: float = NOON + 60,
        output: KeptOutput | None = None,
        notice: Notice | None = None,
    ) -> Changed:
        """Return the operation that ends a handle."""
        now = await self.found(store, of)
        event = Ended(at, Ok("done") if outcome is None else outcome, ended_by)
        return Changed(of, now.fence, event, transition(now.state, event), output, notice)

    async def end(self, store: Browse, of: str, *how: Any, **more: Any) -> None:
        """End a handle as `ending` says."""
        await self.commit(store, await self.ending(store, of, *how, **more))

    # Reading

    async def listed(self, store: Browse, **wanted: Any) -> list[str]:
        """Return the uids of the handles in one list."""
        return uids(await store.handles(HandleQuery(**wanted)))

    async def paged(self, store: Browse, limit: int, **wanted: Any) -> list[str]:
        """Return the uids of the handles in a list that is read a page at a time."""
        found: list[str] = []
        while page := await self.listed(store, **wanted, after=found[-1] if found else None, limit=limit):
            assert len(page) <= limit
            found += page
        return found

    async def named(self, store: Browse, id: str) -> str:
        """Return the uid of the handle of that id."""
        found = await store.named("main", id)
        assert isinstance(found, Record), found
        return found.uid

    async def tombstone(self, store: Browse, id: str, conversation: str = "main") -> str:
        """Return the uid of the deleted handle of that id."""
        found = await store.named(conversation, id)
        assert isinstance(found, Expired), found
        return found.uid

    async def resolution(self, store: Browse, key_id: str) -> Resolution | None:
        """Return how the key was resolved."""
        row = await store.wait(key_id)
        assert row is not None
        return row.resolution

    async def stopped(self, store: Browse, of: str) -> Stopped:
        """Return the state of a handle that must have stopped."""
        state = (await self.found(store, of)).state
        assert isinstance(state, Stopped), state
        return state

    # Waits

    async def take_key(self, store: Browse, of: str, parking: Parking | None = None) -> str:
        key_id = f"key-{of}"
        fence = (await self.found(store, of)).fence
        await self.commit(store, WaitOpened(of, fence, key_id, "completion", "completion", "secret-1", parking))
        return key_id

    async def park(self, store: Browse, number: int, parking: Parking | None = None, **changes: Any) -> tuple[str, str]:
        """Make a parked call; return its uid and the id of its key."""
        of = await self.begin(store, number, **changes)
        key_id = await self.take_key(store, of)
        fence = (await self.found(store, of)).fence
        await self.commit(store, Parked(of, fence, Parking() if parking is None else parking, NOON + 2))
        return of, key_id

    async def resolve(self, store: Browse, key_id: str, resolution: Resolution | None = None) -> Resolving:
        given = Resolution("ok", 42) if resolution is None else resolution
        (result,) = await self.commit(store, Resolved(key_id, given, NOON + 30))
        assert isinstance(result, Resolving), result
        return result


def state_tag(state: State) -> Any:
    return state.__struct_config__.tag


def uids(records: Sequence[Record]) -> list[str]:
    return [each.uid for each in records]


def _difference(before: dict[str, str], after: dict[str, str]) -> str:
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    lines = (f"{name}: {before.get(name)} became {after.get(name)}" for name in names)
    return "a refused commit left something behind: " + "; ".join(lines)
