"""Checks of what is said about handles: progress, priority, metadata (W8, W11)."""

# ruff: noqa: N802 - checks are named after the rules they prove

from keephold.handles.state import Progress
from keephold.store.base import Annotated, Parking, Registered, Store
from keephold.testing.conformance.suite import Suite, copy, record, shared, uid


class Annotations(Suite):
    """Handles that something is said about."""

    async def check_W8_progress_is_kept(self, store: Store) -> None:
        of = await self.begin(store, 1)
        assert (await self.found(store, of)).progress is None
        for progress in (Progress(1), Progress(2.5, 10, "ü"), Progress(0, None, "")):
            (result,) = await self.commit(store, Annotated(of, progress))
            assert copy(result) == await self.found(store, of), result
            assert (await self.found(store, of)).progress == progress
        await self.end(store, of)
        assert (await self.found(store, of)).progress == Progress(0, None, "")

    async def check_W8_a_handle_may_come_with_progress(self, store: Store) -> None:
        await self.commit(store, Registered(record(1, progress=Progress(1, 2, "x"), priority=4)))
        found = await self.found(store, uid(1))
        assert (found.progress, found.priority) == (Progress(1, 2, "x"), 4)

    async def check_W8_metadata_is_changed_key_by_key(self, store: Store) -> None:
        of = await self.begin(store, 1, metadata={"a": 1, "b": {"x": 1, "y": 2}, "kept": None})
        changes = {"b": {"x": 3}, "c": [None], "a": None, "never": None}
        (result,) = await self.commit(store, Annotated(of, metadata=changes))
        assert result.metadata == {"b": {"x": 3}, "c": [None], "kept": None}, result.metadata
        assert (await self.found(store, of)).metadata == result.metadata
        await self.commit(store, Annotated(of, metadata={"b": None, "c": None, "kept": None}))
        assert (await self.found(store, of)).metadata == {}
        bare = await self.begin(store, 2)
        (result,) = await self.commit(store, Annotated(bare, metadata={"ü": 1}))
        assert result.metadata == {"ü": 1}

    async def check_W11_what_is_not_given_stays(self, store: Store) -> None:
        of = await self.begin(store, 1, metadata={"a": 1}, priority=3)
        before = await self.found(store, of)
        await self.commit(store, Annotated(of))
        assert await self.found(store, of) == before
        await self.commit(store, Annotated(of, Progress(1), 0, {"b": 2}))
        await self.commit(store, Annotated(of, priority=-5))
        found = await self.found(store, of)
        assert (found.progress, found.priority, found.metadata) == (Progress(1), -5, {"a": 1, "b": 2}), found
        assert (found.state, found.owner, found.fence) == (before.state, before.owner, before.fence)

    async def check_W8_parked_and_pending_handles_too(self, store: Store) -> None:
        parked, _ = await self.park(store, 1, Parking())
        pending = await self.begin(store, 2, start=False)
        for of in (parked, pending):
            before = await self.found(store, of)
            await self.commit(store, Annotated(of, Progress(1)))
            before.progress = Progress(1)
            assert await self.found(store, of) == before

    async def check_W8_not_of_one_that_has_stopped(self, store: Store) -> None:
        of = await self.begin(store, 1)
        await self.end(store, of)
        await self.refused(store, "already_stopped", Annotated(of, Progress(1)))
        await self.refused(store, "lease_lost", Annotated(uid(9), Progress(1)))

    async def check_W8_a_refused_commit_says_nothing(self, store: Store) -> None:
        of = await self.begin(store, 1, metadata={"a": 1})
        await self.refused(
            store, "lease_lost", Annotated(of, Progress(1), 5, {"a": None}), Annotated(uid(9), priority=1)
        )

    @shared
    async def check_W8_others_hear_of_it(self, store: Store) -> None:
        """Whoever may name a handle may, whichever process runs it."""
        other = await self.second(store)
        of = await self.begin(store, 1)
        await self.word(other, of)
        await self.commit(other, Annotated(of, Progress(1), 2, {"a": 1}))
        await self.word(store, of)
        found = await self.found(store, of)
        assert (found.progress, found.priority, found.metadata, found.owner) == (
            Progress(1), 2, {"a": 1}, store.owner,
        )  # fmt: skip
        last = await self.reopened(other)
        assert (await self.found(last, of)).progress == Progress(1)
