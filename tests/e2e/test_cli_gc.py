"""`keephold gc`, `keephold conversations` and `keephold forget`, beside a process that works on the store (S5, L1)."""

import asyncio
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.e2e.place import Place, spawn
from tests.trusting import trusted

from keephold.store.base import Described, Op, TranscriptAppended
from keephold.store.sqlite import SqliteStore

OLD = 10 * 86_400


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


def over(place: Place) -> None:
    """A store that nobody works on, with one handle that has stopped, and one that is parked."""
    worker = place.worker()
    worker.run(spawn("gate", "g", name="g"), spawn("approve", "a", what="x"))
    worker.end("g")
    place.keephold("wait", "g")
    assert worker.process.stdin is not None
    worker.process.stdin.close()  # which ends the worker
    worker.process.wait()
    end_turns(place)


def end_turns(place: Place) -> None:
    """The worker leaves its turns open, and what has an open turn is kept."""
    with closing(sqlite3.connect(place.directory / "work.db")) as connection:
        connection.execute("UPDATE turns SET ended_at = began_at WHERE ended_at IS NULL")
        connection.commit()


def test_S5_gc_lets_go_of_what_is_old_and_says_what_went(place: Place) -> None:
    over(place)
    untouched = place.keephold("gc", "--dry-run", "--json").json
    assert (untouched["handles"], untouched["events"], untouched["dry_run"]) == (0, 0, True)  # a week is kept
    would = place.keephold("gc", "--before", "0s", "--dry-run", "--json").json
    assert (would["handles"], would["calls"]) == (1, 0)
    assert would["events"] > 0
    assert len(place.keephold("ps", "--all").rows) == 2  # and nothing went
    said = place.keephold("gc", "--before", "0s")
    assert said.code == 0
    assert said.out.splitlines()[1] == "  1 handle, 0 one-shot calls"
    assert [row[0] for row in place.keephold("ps", "--all").rows] == ["a"]  # what is parked stays
    again = place.keephold("gc", "--before", "0s", "--json").json
    assert (again["handles"], again["calls"]) == (0, 0)
    expired = place.keephold("show", "g", "--conversation", "main")
    assert expired.code == 2 and "expired" in expired.err  # S5: a tombstone
    alone = place.keephold("show", "g")
    assert alone.code == 2 and "expired" in alone.err
    elsewhere = place.keephold("show", "g", "--conversation", "other")
    assert elsewhere.code == 2 and "not found" in elsewhere.err


def test_gc_keeps_as_long_as_the_configuration_of_the_store_says(place: Place) -> None:
    over(place)
    file = place.directory / "keephold.toml"
    file.write_text('[store]\nurl = "sqlite:///work.db"\nretention_secs = 0.001\n')
    refused = place.keephold("gc", "--dry-run")  # K7
    assert refused.code == 2 and "is not trusted" in refused.err
    trusted(file)
    assert place.keephold("gc", "--dry-run", "--json").json["handles"] == 1
    (place.directory / "keephold.toml").write_text('[store]\nurl = "sqlite:///other.db"\nretention_secs = 0.001\n')
    assert place.keephold("gc", "--dry-run", "--json").json["handles"] == 0


def test_gc_removes_output_files_that_belong_to_nothing(place: Place) -> None:
    over(place)
    output = place.directory / "work.db-output"
    orphan, young = output / ("0" * 32), output / ("1" * 32)
    for file in (orphan, young):
        file.write_bytes(b"x" * 1000)
    os.utime(orphan, (time.time() - OLD, time.time() - OLD))
    would = place.keephold("gc", "--dry-run", "--json").json
    assert (would["files"], would["file_bytes"]) == (1, 1000) and orphan.exists()
    assert place.keephold("gc", "--json").json["files"] == 1
    assert not orphan.exists()
    assert young.exists()  # it may be of a call that is not written yet


def test_gc_vacuum_makes_the_file_smaller(place: Place) -> None:
    over(place)
    with closing(sqlite3.connect(place.directory / "work.db")) as connection:
        connection.execute("CREATE TABLE ballast (x BLOB)")
        connection.execute("INSERT INTO ballast VALUES (zeroblob(4000000))")
        connection.execute("DROP TABLE ballast")
        connection.commit()
    said = re.search(r"^the store is (\d+) bytes smaller$", place.keephold("gc", "--vacuum").out, re.MULTILINE)
    assert said is not None and int(said[1]) > 3_000_000
    assert (place.directory / "work.db").stat().st_size < 1_000_000
    assert len(place.keephold("ps", "--all").rows) == 2  # nothing is lost


def test_gc_refuses_an_age_before_all_time(place: Place) -> None:
    place.worker().run(spawn("gate", "g", name="g"))
    refused = place.keephold("gc", "--before", "1000000d")
    assert refused.code == 2 and "100 years at most" in refused.err
    assert "older than 19" in place.keephold("gc", "--dry-run", "--before", "36500d").out


@pytest.mark.parametrize("age", ["soon", "-1s", "1y", ""])
def test_gc_refuses_an_age_that_is_none(place: Place, age: str) -> None:
    refused = place.keephold("gc", "--before", age)
    assert refused.code == 2 and "an age such as" in refused.err


def test_gc_does_not_vacuum_in_a_dry_run(place: Place) -> None:
    assert "leave --vacuum out" in place.keephold("gc", "--dry-run", "--vacuum").err


# Conversations


def test_L1_conversations_are_listed_with_what_goes_on_in_them(place: Place) -> None:
    worker = place.worker()
    worker.run(spawn("gate", "g", name="g"), spawn("approve", "a", what="x"), conversation="one")
    worker.run(spawn("gate", "h", name="h"), conversation="two")
    worker.end("g")
    place.keephold("wait", "g")
    head, *_ = place.keephold("conversations").out.splitlines()
    assert head.split() == ["CONVERSATION", "TITLE", "HANDLES", "LIVE", "TURN", "CHANGED"]
    assert [row[:5] for row in place.keephold("conversations").rows] == [
        ["one", "-", "2", "1", "open"],
        ["two", "-", "1", "1", "open"],
    ]
    worker.process.kill()
    worker.process.wait()
    assert [row[4] for row in place.keephold("conversations").rows] == ["open, owner gone"] * 2
    first = place.keephold("conversations", "--limit", "1", "--json")
    assert first.json["id"] == "one" and "there are more" in first.err
    assert place.keephold("conversations", "--after", "one", "--json").json["id"] == "two"


async def say(path: Path, *ops: Op) -> None:
    """What an agent writes of a conversation."""
    store = SqliteStore(path)
    await store.open(lambda _: None)
    written = asyncio.get_running_loop().create_future()
    store.commit(ops, written.set_result, written.set_exception)
    await written
    await store.close()


def test_forget_lets_go_of_what_was_said_and_of_nothing_else(place: Place) -> None:
    worker = place.worker()
    worker.run(spawn("gate", "g", name="g"), conversation="one")
    lines = (("request", b"{}"), ("response", b"[]"))
    asyncio.run(
        say(
            place.directory / "work.db",
            TranscriptAppended("one", "t", time.time(), lines),
            Described("one", time.time(), {"title": "A plan"}),
            TranscriptAppended("talk", "t", time.time(), lines),
        )
    )
    assert [row[:4] for row in place.keephold("conversations").rows] == [
        ["one", "A plan", "1", "1"],
        ["talk", "-", "0", "0"],  # also one that has nothing but words
    ]
    asked = place.keephold("forget", "one", stdin="\n")
    assert asked.code == 1 and "cannot be undone" in asked.err
    assert place.keephold("forget", "one", stdin="y\n").out == "2 lines of one forgotten\n"
    assert place.keephold("forget", "talk", "--yes", "--json").json == {"lines": 2}
    assert [row[:3] for row in place.keephold("conversations").rows] == [["one", "-", "1"]]
    assert place.keephold("ps", "--json").json["id"] == "g"
