"""`keephold store`, beside a process that works on the store."""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.e2e.place import Place, spawn

from keephold import Runtime
from keephold.cli import main


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


def test_a_store_in_use_is_inspected_checked_copied_and_given_a_secret(place: Place) -> None:
    worker = place.worker()
    (key,) = worker.run(spawn("gate", "g", name="g"), spawn("approve", "a", what="x"))
    facts = place.keephold("store", "info", "--json").json
    assert facts["rows"]["handles"] == 2
    (owner,) = facts["owners"]
    assert owner["process"].startswith(f"{worker.process.pid} (")
    said = place.keephold("store", "info").out
    assert "rows of handles" in said and ", 1 open key" in said
    assert place.keephold("store", "check").out == "no problems\n"
    assert place.keephold("store", "check", "--json").json == {"problems": []}
    assert "checked" in place.keephold("store", "backup", "copy.tar").out
    again = place.keephold("store", "backup", "copy.tar")
    assert again.code == 2 and "--force" in again.err
    rotated = place.keephold("store", "rotate", "--json").json
    assert rotated["older_keys"] == 1
    (later,) = worker.run(spawn("approve", "b", what="y"), conversation="other")
    assert f".{rotated['secret']}." in later and f".{rotated['secret']}." not in key
    assert place.keephold("complete", key, "--ok", "1").code == 0, "a key of the older secret works"
    refused = place.keephold("store", "restore", "copy.tar", "--force")
    assert refused.code == 2 and f"is in use by process {worker.process.pid} (" in refused.err
    assert "nothing was changed" in place.keephold("store", "migrate").out


def test_a_copy_is_restored_and_recovered_elsewhere(place: Place) -> None:
    worker = place.worker()
    (key,) = worker.run(spawn("approve", "a", what="x"))
    place.keephold("store", "backup", "copy.tar")
    worker.kill()
    done = place.keephold("store", "restore", "copy.tar", "--store", "sqlite:///other.db", "--json").json
    assert done["store"].endswith("/other.db")
    assert place.keephold("complete", key, "--ok", "1", "--store", "sqlite:///other.db").code == 0
    assert place.keephold("ps", "--all").rows[0][2] != "stopped", "the original does not know"
    assert place.keephold("store", "check", "--store", "sqlite:///other.db").code == 0


def test_problems_are_exit_code_1_a_sentence_each(place: Place) -> None:
    place.worker().run(spawn("gate", "g", name="g"))
    with closing(sqlite3.connect(place.directory / "work.db")) as connection:
        connection.execute("UPDATE handles SET owner = NULL")
        connection.commit()
    said = place.keephold("store", "check")
    assert said.code == 1 and said.err == "1 problem\n"
    assert "has no owner and is not parked, so no process will run it; end it with `keephold abort " in said.out
    assert place.keephold("store", "check", "--json").json["problems"][0]["rule"] == "unowned_call"


def test_what_is_missing_is_refused(place: Place) -> None:
    assert "there is no store" in place.keephold("store", "check").err
    assert place.keephold("store", "backup", "copy.tar").code == 2
    assert not (place.directory / "copy.tar").exists()
    refused = place.keephold("store", "info", "--store", "memory:")
    assert refused.code == 2 and "`memory:` store is seen by no process but its own" in refused.err


def test_the_commands_look_after_a_postgresql_store(postgres: str, tmp_path: Path) -> None:
    asyncio.run(_made(postgres))

    def said(*words: str) -> str:
        done = CliRunner().invoke(main, ["store", *words, "--store", postgres])
        assert done.exit_code == 0, done.output
        return done.output

    info = said("info")
    assert "rows of handles" in info and "of it free" not in info
    assert said("check") == "no problems\n"
    assert "checked" in said("backup", str(tmp_path / "copy.tar"))
    assert "nothing was changed" in said("migrate")
    assert json.loads(said("rotate", "--json"))["older_keys"] == 0
    assert "as it was at" in said("restore", str(tmp_path / "copy.tar")), "a store without handles can be replaced"
    assert len(json.loads(said("info", "--json"))["secrets"]) == 1


async def _made(store: str) -> None:
    async with Runtime([], store=store):
        pass
