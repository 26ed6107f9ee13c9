"""How commits become transactions: in groups, each for itself, told in order."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.unit.sqlite_stores import NOON, commit, end, give, line, opened, record, registered, uid

from keephold.errors import KeepholdError
from keephold.store.base import Attempted, Collected, Emitted, HandleQuery, Journaled, KeptOutput, Registered

pytestmark = pytest.mark.usefixtures("by")


async def test_what_one_pass_of_the_loop_gives_is_one_transaction(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        await asyncio.gather(*(give(store, registered(number)) for number in range(64)))
        assert store.commits == 1
        await asyncio.gather(*(give(store, line(number, "a")) for number in range(64)))
        assert store.commits == 2
        await commit(store)
        assert store.commits == 2, "a barrier writes nothing"


async def test_only_the_guilty_commit_of_a_group_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        await commit(store, registered(1), registered(2))
        given = [
            give(store, line(1, "a")),
            give(store, line(1, "b"), line(1, "a")),  # twice
            give(store, line(2, "a", fence=7)),  # another's
            give(store, registered(3), Emitted("p", "t", 1, NOON)),
            give(store, registered(4, id="h1")),  # its id is active
            give(store),
            give(store, end(1)),
            give(store, end(1)),  # again
            give(store, Emitted("p", "t", 2, NOON)),
        ]
        told = await asyncio.gather(*given, return_exceptions=True)
        codes = [error.code if isinstance(error, KeepholdError) else "" for error in told]
        duplicate = "durable_effect_duplicate_step_id"
        assert codes == ["", duplicate, "lease_lost", "", "batch_rejected", "", "", "already_stopped", ""]
        assert told[3] == [None, 1] and told[8] == [2]
        assert store.commits == 2, "the registration, and all of this"
        assert [entry.name for entry in await store.journal(uid(1))] == ["a"]
        assert await store.journal(uid(2)) == []
        assert [each.uid for each in await store.handles()] == [uid(1), uid(2), uid(3)]


async def test_a_refusal_names_the_line_that_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        await commit(store, registered(1), line(1, "taken"))
        with pytest.raises(KeepholdError, match="step `taken`"):
            await commit(store, line(1, "free"), line(1, "taken"), line(1, "also free"))


async def test_lines_are_written_in_order_with_what_is_between_them(tmp_path: Path) -> None:
    """A line is not written before an operation that was given before it, though lines are written together."""
    async with opened(tmp_path / "store.db") as store:
        await commit(store, registered(1))
        failed = Journaled(uid(1), 1, "step", "a", b"d", b"{}", ok=False)
        await asyncio.gather(
            give(store, failed), give(store, Attempted(uid(1), 1, 2, NOON)), give(store, line(1, "a", b"2"))
        )
        assert [(entry.name, entry.value, entry.ok) for entry in await store.journal(uid(1))] == [("a", b"2", True)]


async def test_a_callback_that_fails_does_not_keep_the_others_from_being_told(tmp_path: Path) -> None:
    def fail(_: Any) -> None:
        raise ZeroDivisionError

    said: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["exception"]))
    async with opened(tmp_path / "store.db") as store:
        store.commit([registered(1)], fail, said.append)
        await commit(store, registered(2))
        assert [type(error) for error in said] == [ZeroDivisionError]


async def test_what_cannot_be_stored_is_refused_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        given = [give(store, registered(1)), give(store, Registered(record(2, arguments={"a": object()})), keep=True)]
        told = await asyncio.gather(*given, return_exceptions=True)
        assert told[0] == [None]
        assert isinstance(told[1], KeepholdError) and told[1].code == "not_storable", told[1]
        assert store.trouble is None


async def test_half_a_surrogate_pair_is_kept_as_a_question_mark(tmp_path: Path) -> None:
    """Output of programs may hold such text; its end must be recorded all the same."""
    async with opened(tmp_path / "store.db") as store:
        await commit(store, Registered(record(1, arguments={"a": "x\ud800y"})))
        found = await store.handle(uid(1))
        assert found is not None and found.arguments == {"a": "x?y"}


async def test_an_output_file_is_gone_after_its_handle_even_if_that_was_cut_short(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        assert store.directory is not None
        file = store.directory / "o1"
        file.write_bytes(b"x" * 10)
        done = end(1)
        await commit(store, registered(1), registered(2))
        await commit(store, type(done)(done.uid, 1, done.event, done.state, KeptOutput(10, 10, 0, 0, 10, b"", "o1")))
        found = await store.handle(uid(1))
        assert found is not None and found.output == KeptOutput(10, 10, 0, 0, 10, b"", "o1")
        assert await commit(store, Collected(NOON + 60, NOON + 60)) == [1]
        assert not file.exists()
        file.write_bytes(b"back")  # as if we had died before it was removed
        assert await commit(store, Collected(NOON + 60, NOON + 60)) == [0]
        assert not file.exists()


async def test_a_call_stops_although_somebody_has_removed_the_directory_of_outputs(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        assert store.directory is not None
        done = end(1)
        await commit(store, registered(1))
        store.directory.rmdir()
        ended = type(done)(done.uid, 1, done.event, done.state, KeptOutput(10, 10, 0, 0, 10, b"", "o1"))
        async with asyncio.timeout(PATIENCE):
            await commit(store, ended)
        found = await store.handle(uid(1))
        assert found is not None and found.output is not None


async def test_a_refused_commit_removes_no_output_file(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        assert store.directory is not None
        (store.directory / "o1").write_bytes(b"x" * 10)
        done = end(1)
        await commit(store, registered(1), registered(2))
        await commit(store, type(done)(done.uid, 1, done.event, done.state, KeptOutput(10, 10, 0, 0, 10, b"", "o1")))
        with pytest.raises(KeepholdError):
            await commit(store, Collected(NOON + 60, NOON + 60), registered(2))
        assert (store.directory / "o1").exists()


async def test_a_loop_that_never_sleeps_does_not_keep_the_writer_from_writing(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        await commit(store, registered(1))
        answers = 0

        async def work() -> None:
            nonlocal answers
            for number in range(20):
                await commit(store, line(1, str(number)))
                answers += 1

        working = asyncio.create_task(work())
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE
        while not working.done() and loop.time() < until:
            sum(range(20_000))  # about 0.3 ms
            await asyncio.sleep(0)
        assert answers == 20
        await working


async def test_what_comes_while_the_thread_writes_comes_after_it(tmp_path: Path) -> None:
    told: list[int] = []
    async with opened(tmp_path / "store.db") as store:
        given = [give(store, Collected(NOON, NOON))]  # which may take long: never on the loop's thread
        await asyncio.sleep(0)
        for op in (registered(1), end(1)):
            given.append(give(store, op))
            await asyncio.sleep(0)
        for number, each in enumerate(given):
            each.add_done_callback(lambda _, number=number: told.append(number))  # type: ignore[misc]
        await asyncio.gather(*given)
        assert told == [0, 1, 2] and [each.uid for each in await store.handles(HandleQuery(state="stopped"))] == [
            uid(1)
        ]
        given = [give(store, Collected(NOON, NOON))]
        await asyncio.sleep(0)
        given.append(give(store, registered(2)))
        await asyncio.sleep(0)
    assert all(each.done() and each.exception() is None for each in given), "closing writes it, too"


async def test_a_listener_that_fails_keeps_nothing_from_being_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async with opened(tmp_path / "store.db") as store:
        store.on_commit.add(fail)
        given = [give(store, registered(1), Collected(NOON, NOON))]  # in the thread
        await asyncio.sleep(0)
        given.append(give(store, registered(2)))  # held back until that is done, or in the thread as well
        await asyncio.gather(*given)
        await commit(store, registered(3))
    assert {each.exc_info[0] for each in caplog.records if each.exc_info} == {ZeroDivisionError}
