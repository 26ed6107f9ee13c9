"""`keephold abort` and `keephold revoke` from processes of their own, beside one that runs the tools (L1, C7, D3)."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.driver import until
from tests.e2e.place import Place, spawn
from tests.patience import PATIENCE


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


def test_C7_abort_ends_what_another_process_runs_and_what_nobody_does(place: Place) -> None:
    worker = place.worker()
    (key,) = worker.run(spawn("gate", "g", name="g"), spawn("approve", "a", what="x"))
    assert place.keephold("abort", "g", "a") == (0, "g: aborted\na: aborted\n", "")
    ended = [json.loads(line) for line in place.keephold("ps", "--all", "--json").out.splitlines()]
    assert [(fact["id"], fact["state"], fact["ended_by"], fact["message"]) for fact in ended] == [
        ("a", "stopped", "abort", "pending tool completion cancelled"),
        ("g", "stopped", "abort", "Aborted by a person."),
    ]
    assert place.keephold("complete", key, "--ok", "1").code == 3  # S2: a late completion changes nothing
    assert place.keephold("abort", "g") == (0, "g: had stopped already\n", "")  # twice is harmless


def test_C7_abort_ends_a_one_shot_call_that_nobody_had_to_see(place: Place) -> None:
    worker = place.worker()
    worker.begin(("gate", {"name": "once"}))
    until(lambda: "call:0" in place.keephold("ps").out)
    assert place.keephold("abort", "call:0") == (0, "call:0: aborted\n", "")
    assert place.keephold("show", "call:0", "--json").json["ended_by"] == "abort"


def test_L3_abort_json_is_the_reply_of_each_handle(place: Place) -> None:
    worker = place.worker()
    worker.run(spawn("gate", "g", name="g"), spawn("gate", "over", name="over"))
    worker.end("over")
    place.keephold("wait", "over")
    said = place.keephold("abort", "g", "over", "--json")
    aborted, over = (json.loads(line) for line in said.out.splitlines())
    assert len(aborted.pop("uid")) == 32
    assert aborted.pop("content") == "g is shut\n"
    assert aborted == {"id": "g", "state": "stopped", "result": "Aborted by a person.", "ended_by": "abort"}
    assert (over["id"], over["result"]) == ("over", "over is open")
    assert said.code == 0


def test_abort_all_in_a_conversation_takes_everything_that_lives_there(place: Place) -> None:
    worker = place.worker()
    worker.run(spawn("gate", "g", name="g"), spawn("approve", "a", what="x"), spawn("asking", "q"))
    worker.run(spawn("gate", "other", name="other"), conversation="other")
    said = place.keephold("abort", "--all-in", "main")
    assert (said.code, sorted(said.out.splitlines())) == (0, ["a: aborted", "g: aborted", "q: aborted"])
    assert [row[0] for row in place.keephold("ps").rows] == ["other"]
    assert place.keephold("abort", "--all-in", "main") == (0, "(nothing runs in main)\n", "")


def test_C7_a_person_ends_what_a_dead_process_left_without_having_its_tool(place: Place) -> None:
    worker = place.worker()
    worker.run(spawn("steps", "s"), spawn("approve", "a", what="x"))
    worker.process.kill()
    worker.process.wait()
    said = place.keephold("abort", "s", "a")
    assert said == (0, "s: aborted\na: aborted\n", "")
    assert place.keephold("show", "s", "--json").json["ended_by"] == "abort"
    place.worker()  # it has the tool, and finds nothing to go on with
    assert place.keephold("abort", "s", "--json").json["ended_by"] == "abort"


def test_abort_refuses_what_is_not_there_and_what_is_not_meant(place: Place) -> None:
    worker = place.worker()
    worker.run(spawn("gate", "g", name="g"))
    missing = place.keephold("abort", "g", "nobody")
    assert missing.code == 2 and "Handle `nobody` not found" in missing.err
    assert place.keephold("ps").rows[0][2] == "running"  # and nothing was ended
    assert "name handles, or a conversation by --all-in" in place.keephold("abort").err
    assert place.keephold("abort", "g", "--all-in", "main").code == 2
    assert "leave --conversation out" in place.keephold("abort", "--all-in", "a", "--conversation", "b").err


def test_D3_revoke_makes_open_keys_worthless_and_stops_what_is_parked_on_them(place: Place) -> None:
    worker = place.worker()
    first, second = worker.run(spawn("approve", "a", what="x"), spawn("approve", "b", what="y"))
    (other,) = worker.run(spawn("approve", "c", what="z"), conversation="other")
    assert place.keephold("revoke", "main") == (0, "2 keys of main revoked\n", "")
    assert [place.keephold("complete", key, "--ok", "1").code for key in (first, second, other)] == [4, 4, 0]
    assert [row[2] for row in place.keephold("ps", "--all", "--conversation", "main").rows] == ["stopped, error"] * 2
    assert place.keephold("revoke", "main", "--json").json == {"revoked": 0}


def test_what_takes_long_says_so_on_a_terminal_and_leaves_no_trace(place: Place) -> None:
    place.worker().run(spawn("gate", "g", name="g"))
    master, slave = os.openpty()
    try:
        command = [sys.executable, "-m", "keephold", "wait", "g", "--timeout", "3", "--store", "sqlite:///work.db"]
        said = subprocess.run(
            command, cwd=place.directory, stdout=subprocess.PIPE, stderr=slave, timeout=PATIENCE, check=False
        )
        shown = os.read(master, 1 << 16).decode()
    finally:
        os.close(master)
        os.close(slave)
    assert (said.returncode, said.stdout) == (124, b"g: running\n")
    assert "\r\x1b[Kwaiting for `g`, 1s" in shown
    assert shown.endswith("\r\x1b[K")
