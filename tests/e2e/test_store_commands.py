"""`complete`, `ps`, `show` and `wait` from processes of their own, beside one that runs the tools (L1, L3, D5, R1)."""

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.driver import until
from tests.e2e.place import Place, spawn
from tests.patience import PATIENCE


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


# complete


@pytest.mark.parametrize(
    ("arguments", "terminal", "shown"),
    [
        (["--ok", '{"by":"Ada"}'], {"status": "ok", "payload": {"by": "Ada"}}, "stopped, ok"),
        (["--ok", "null"], {"status": "ok", "payload": None}, "stopped, ok"),
        (
            ["--error", "no_budget", "Too much"],
            {"status": "err", "payload": {"code": "no_budget", "message": "Too much"}},
            "stopped, error",
        ),
        (["--timeout"], {"status": "timeout"}, "stopped, timeout"),
        (["--cancelled"], {"status": "cancelled"}, "stopped, cancel"),
    ],
)
def test_D5_complete_is_accepted_once_and_tells_who_comes_later_how_it_ended(
    place: Place, arguments: list[str], terminal: dict[str, Any], shown: str
) -> None:
    (key,) = place.worker().run(spawn("approve", "a", what="a desk"))
    assert place.keephold("complete", key, *arguments) == (0, "accepted\n", "")
    code, out, _ = place.keephold("complete", key, "--ok", '"late"')
    assert code == 3
    assert out.startswith("already_resolved: ")
    assert json.loads(out.removeprefix("already_resolved: ")) == terminal
    late = place.keephold("complete", key, "--cancelled", "--json")
    assert (late.code, late.json) == (3, {"outcome": "already_resolved", "terminal": terminal})
    assert place.keephold("ps", "--all").rows[0][:3] == ["a", "approve", shown]


def test_D5_every_key_that_opens_nothing_is_told_alike(place: Place) -> None:
    (key,) = place.worker().run(spawn("approve", "a", what="a desk"))
    form, secret, payload, signature = key.split(".")
    flipped = "A" if signature[9] != "A" else "B"
    keys = {
        "forged": f"{form}.{secret}.{payload}.{'A' * len(signature)}",
        "tampered": f"{form}.{secret}.{payload}.{signature[:9]}{flipped}{signature[10:]}",
        "another wait": f"{form}.{secret}.{payload[:-4]}AAAA.{signature}",
        "another secret": f"{form}.00000000.{payload}.{signature}",
        "cut": key[:40],
        "no key": "hello",
        "nothing": "",
        "no text": "\udcff",
    }
    told = {name: place.keephold("complete", each, "--ok", "1") for name, each in keys.items()}
    (alike,) = set(told.values())
    assert alike[:2] == (4, "unknown_or_revoked\n") and "work.db" in alike[2]  # and where that was
    told = {name: place.keephold("complete", each, "--ok", "1", "--json") for name, each in keys.items()}
    assert set(told.values()) == {(4, '{"outcome":"unknown_or_revoked","terminal":null}\n', "")}
    assert place.keephold("complete", key, "--timeout").code == 0  # and none of them did anything


def test_K5_complete_takes_key_and_value_from_stdin(place: Place) -> None:
    worker = place.worker()
    first, second = worker.run(spawn("approve", "a", what="x"), spawn("approve", "b", what="y"))
    assert place.keephold("complete", "-", "--ok", "-", stdin=f'{first}\n{{"by":\n"Ada"}}\n').out == "accepted\n"
    assert place.keephold("complete", second, "--ok", "-", stdin='"yes"').out == "accepted\n"
    assert [place.keephold("show", id, "--json").json["outcome"]["value"] for id in "ab"] == [{"by": "Ada"}, "yes"]
    third = place.keephold("complete", "-", "--timeout", stdin=first)
    assert third.code == 3


def test_D8_a_completion_reaches_the_process_that_runs_the_call_at_once(place: Place) -> None:
    worker = place.worker()
    (key,) = worker.run(spawn("steps", "s"))
    assert place.keephold("complete", key, "--ok", '"gone"').code == 0
    assert place.keephold("wait", "s", "--json").json == {
        "completed": [{"id": "s", "state": "stopped", "result": "gone", "is_error": False}],
        "pending": [],
    }


# wait


def test_L3_wait_ends_when_another_process_ends_the_handle(place: Place) -> None:
    worker = place.worker()
    worker.run(spawn("gate", "g", name="g"))
    waiting = place.waiting("g")
    assert waiting.poll() is None
    worker.end("g")
    assert waiting.communicate(timeout=PATIENCE) == ("g: ok: g is open\n", "")
    assert waiting.returncode == 0


def test_L3_the_exit_code_of_wait_tells_how_it_ended(place: Place) -> None:
    worker = place.worker()
    worker.run(*(spawn("gate", id, name=id) for id in ("good", "bad", "ended", "slow")))
    worker.end("good")
    worker.end("bad", "fail")
    worker.run(("gate", {"action": "abort", "id": "ended"}))
    assert place.keephold("wait", "good") == (0, "good: ok: good is open\n", "")
    assert place.keephold("wait", "good", "bad") == (1, "good: ok: good is open\nbad: error: the gate is broken\n", "")
    assert place.keephold("wait", "ended") == (1, "ended: abort: Aborted by the assistant.\n", "")
    assert place.keephold("wait", "slow", "good", "--timeout", "0") == (
        124,
        "good: ok: good is open\nslow: running\n",
        "",
    )
    code, out, _ = place.keephold("wait", "slow", "bad", "--timeout", "0.2", "--json")
    assert code == 124
    assert json.loads(out) == {
        "completed": [{"id": "bad", "state": "stopped", "result": "the gate is broken", "is_error": True}],
        "pending": [{"id": "slow", "state": "running"}],
        "timed_out": True,
    }
    any_of = place.keephold("wait", "--any", "slow", "good", "--json")
    assert (any_of.code, any_of.json["pending"]) == (0, [{"id": "slow", "state": "running"}])


def test_wait_takes_uids_and_handles_of_several_conversations(place: Place) -> None:
    worker = place.worker()
    worker.run(spawn("gate", "g", name="one"), conversation="one")
    worker.run(spawn("gate", "g", name="two"), spawn("gate", "h", name="three"), conversation="two")
    refused = place.keephold("wait", "g")
    assert refused.code == 2
    assert "Handle `g` is in 2 conversations: `one`, `two`; name one by --conversation" in refused.err
    (uid,) = [
        json.loads(line)["uid"] for line in place.keephold("ps", "--json", "--conversation", "one").out.splitlines()
    ]
    waiting = place.waiting(uid, "h")
    for name in ("one", "two", "three"):
        worker.end(name)
    assert waiting.communicate(timeout=PATIENCE)[0] == "g: ok: one is open\nh: ok: three is open\n"
    assert place.keephold("wait", "g", "--conversation", "two").out == "g: ok: two is open\n"


def test_wait_says_which_handles_are_not_there(place: Place) -> None:
    place.worker().run(spawn("gate", "g", name="g"))
    missing = place.keephold("wait", "x", "g", "y")
    assert missing.code == 2
    assert "Handle `x` not found" in missing.err and "Handle `y` not found" in missing.err and "work.db" in missing.err


def test_wait_is_interrupted_without_a_word(place: Place) -> None:
    place.worker().run(spawn("gate", "g", name="g"))
    waiting = place.waiting("g")
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=PATIENCE) == ("", "")
    assert waiting.returncode == 130


# ps


def test_L1_ps_lists_what_has_not_stopped(place: Place) -> None:
    worker = place.worker()
    worker.run(spawn("gate", "g", name="g"), spawn("approve", "a", what="x"), spawn("asking", "q"))
    worker.run(spawn("gate", "over", name="over"), conversation="other")
    worker.end("over")
    place.keephold("wait", "over")
    head, *_ = place.keephold("ps").out.splitlines()
    assert head.split() == ["ID", "TOOL", "STATE", "CONVERSATION", "AGE", "DEADLINE"]
    asking, approve, gate = place.keephold("ps").rows
    assert gate[:4] == ["g", "gate", "running", "main"]
    assert gate[5:] == ["-"]
    assert approve[:4] == ["a", "approve", "running, parked", "main"]
    assert approve[5].startswith("in 59m ")
    assert asking[:4] == ["q", "asking", "waiting", "main"]

    def ids(*options: str) -> list[str]:
        return [json.loads(line)["id"] for line in place.keephold("ps", "--json", *options).out.splitlines()]

    assert ids() == ["q", "a", "g"]
    assert ids("--all") == ["over", "q", "a", "g"]
    assert ids("--state", "parked") == ["a"]
    assert ids("--state", "waiting") == ["q"]
    assert ids("--state", "running") == ["a", "g"]
    assert ids("--state", "stopped") == ["over"]
    assert ids("--all", "--conversation", "other") == ["over"]
    some = place.keephold("ps", "--limit", "2", "--json")
    assert some.out.count("\n") == 2
    assert "the newest 2; there are more, see --limit" in some.err


def test_L3_ps_json_has_every_fact(place: Place) -> None:
    place.worker().run(spawn("approve", "a", what="x"))
    fact = place.keephold("ps", "--json").json
    times = [fact.pop(key) for key in ("created", "started")]
    assert all(0 <= time.time() - each < PATIENCE for each in times)
    assert 3500 < fact.pop("deadline") - time.time() < 3600
    assert len(fact.pop("uid")) == 32
    assert fact.pop("turn").startswith("t-")
    assert fact == {
        "id": "a", "tool": "approve", "kind": "tool", "conversation": "main", "state": "running", "parked": True,
        "ready": False, "owner": None, "kept": None, "attempt": 1, "next_attempt_at": None, "stopped": None, "ok": None,
        "ended_by": None,
        "stateful": True, "priority": 0, "code": None, "message": None, "progress": None, "question": None,
        "lingering": False, "driver": None, "held_up": [], "suspended": False,
    }  # fmt: skip


def test_R1_ps_says_what_nobody_goes_on_with(place: Place) -> None:
    worker = place.worker()
    worker.run(spawn("gate", "g", name="g"), spawn("steps", "s"), spawn("approve", "a", what="x"))
    worker.begin(("gate", {"name": "once"}), ("await", {"all": ["g"]}))
    until(lambda: len(place.keephold("ps").rows) == 5)
    assert "note: " not in place.keephold("ps").out
    worker.process.kill()
    worker.process.wait()
    said = place.keephold("ps")
    states = {row[0]: row[2] for row in said.rows if len(row) == 6}
    gone = "running, owner gone"
    assert states == {"g": gone, "s": gone, "a": "running, parked", "call:0": gone, "call:1": gone}
    notes = [line for line in said.out.splitlines() if line.startswith("note: ")]
    nobody = (
        "the owner is gone; a `keephold serve`, or another program with this tool, resumes it within seconds; "
        "if none runs, start one"
    )
    assert notes[:2] == [f"note: 2 calls of `gate`: {nobody}", f"note: 1 call of `steps`: {nobody}"]
    assert "1 call of a batch of `main` that was never answered" in notes[2]
    assert "`keephold turn --conversation main --resume`" in notes[2]
    assert "gone, and no other process" in place.keephold("show", "g").out
    waited = place.keephold("wait", "g", "--timeout", "0")
    assert (waited.code, waited.out) == (124, "g: running\n")
    assert waited.err == "g: the process that ran it is gone, and no other has resumed it yet\n"
    assert {row[0]: row[2] for row in place.keephold("ps").rows if len(row) == 6} == states  # looking recovers nothing

    place.worker().run()  # has the tools: by their `on_crash`
    until(lambda: place.keephold("ps", "--state", "running", "--json").out.count('"owner":"alive"') == 1)
    states = {row[0]: row[2] for row in place.keephold("ps", "--all").rows if len(row) in (6, 7)}
    assert states["g"] == "stopped, crash"
    assert states["s"] == "running, attempt 2"


def test_K4_ps_fits_the_terminal_and_has_colours_there_alone(place: Place) -> None:
    place.worker().run(spawn("gate", "a-long-id-" * 8, name="g"), conversation="a-long-conversation-" * 4)
    piped = place.keephold("ps").out
    assert "\x1b" not in piped
    assert "a-long-id-" * 8 in piped
    lines = _on_a_terminal(place, ("ps",), columns=60)
    assert "\x1b[32mrunning" in lines[1]
    plain = [line.replace("\x1b[32m", "").replace("\x1b[0m", "") for line in lines]
    assert max(map(len, plain)) <= 60
    assert "\x1b" not in "".join(plain)


def test_L1_tables_fit_a_terminal_of_40_columns(place: Place) -> None:
    place.worker().run(spawn("approve", "an-approval", what="x"), conversation="a-conversation")
    for command in ("ps", "conversations"):
        lines = _on_a_terminal(place, (command,), columns=40, NO_COLOR="1")
        assert max(map(len, lines)) <= 40, lines


@pytest.mark.parametrize("command", ["ps", "conversations", "show"])
def test_L1_NO_COLOR_is_honoured(place: Place, command: str) -> None:
    place.worker().run(spawn("gate", "g", name="g"))
    arguments = (command, "g") if command == "show" else (command,)
    assert "\x1b[" in "".join(_on_a_terminal(place, arguments, columns=80))
    assert "\x1b" not in "".join(_on_a_terminal(place, arguments, columns=80, NO_COLOR="1"))


def test_L1_ps_that_finds_nothing_says_what_it_looked_for(place: Place) -> None:
    place.worker().run(spawn("gate", "g", name="g"))
    for arguments, said in (
        (("--conversation", "other"), "(no live call of `other` in the store"),
        (("--conversation", "other", "--all"), "(no call of `other` in the store"),
        (("--state", "waiting"), "(no waiting call in the store"),
    ):
        assert said in place.keephold("ps", *arguments).out
    assert "work.db after `zzz`)" in place.keephold("conversations", "--after", "zzz").out


def _on_a_terminal(place: Place, arguments: tuple[str, ...], columns: int, **environment: str) -> list[str]:
    """The lines that a command prints on a terminal of that width."""
    master, slave = pty.openpty()
    try:
        termios.tcsetwinsize(slave, (24, columns))
        command = [sys.executable, "-m", "keephold", *arguments, "--store", "sqlite:///work.db"]
        env = {**os.environ, **environment}
        subprocess.run(command, cwd=place.directory, env=env, stdout=slave, stderr=slave, timeout=PATIENCE, check=True)
        return os.read(master, 1 << 16).decode().splitlines()
    finally:
        os.close(master)
        os.close(slave)


def test_a_reader_that_goes_away_is_no_matter(place: Place) -> None:
    place.worker().run(*(spawn("gate", f"g{number}", name=f"g{number}") for number in range(200)))
    process = place.start("ps", "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(PATIENCE) == 141  # as of any program that SIGPIPE ends


# show


def test_L1_show_prints_open_keys_to_whoever_asks_for_them(place: Place) -> None:
    worker = place.worker()
    key, parked = worker.run(spawn("steps", "s"), spawn("approve", "a", what="a desk"))
    assert place.keephold("show", "s", "--keys", "--json").json["keys"] == {"go:7": key}
    assert f"keys\n  completion  {parked}\n" in place.keephold("show", "a", "--keys").out
    place.keephold("complete", key, "--ok", "1")
    place.keephold("wait", "s")
    assert place.keephold("show", "s", "--keys", "--json").json["keys"] == {}


def test_L1_show_has_everything_and_never_the_key(place: Place) -> None:
    worker = place.worker()
    (key,) = worker.run(spawn("steps", "s"))
    said = place.keephold("show", "s")
    lines = {line.split()[0]: line.split(None, 1)[-1] for line in said.out.splitlines() if line}
    assert lines["state"] == "running"
    assert lines["owner"] == "a process that lives"
    assert lines["arguments"] == "{}"
    assert 'step  make   ok     {"made":7}' in said.out
    assert "step  burst  error  a pipe has burst" in said.out
    found = place.keephold("show", "s", "--json")
    assert [{**line, "at": None} for line in found.json["journal"]] == [
        {"kind": "step", "name": "make", "ok": True, "input": 7, "value": {"made": 7}, "at": None},
        {
            "kind": "step",
            "name": "burst",
            "ok": False,
            "input": 7,
            "value": {"type": "error", "message": "a pipe has burst"},
            "at": None,
        },
    ]
    (wait,) = found.json["waits"]
    assert wait == {"kind": "event", "name": "go:7", "key_id": wait["key_id"], "resolution": None, "revoked": False}
    assert f"event  go:7  key_id {wait['key_id']}  open" in said.out
    place.keephold("complete", key, "--ok", '{"at":"noon"}')
    place.keephold("wait", "s")
    over = place.keephold("show", "s")
    assert '{"status":"ok","payload":{"at":"noon"}}' in over.out
    assert 'ok            {"at":"noon"}' in over.out
    for printed in (said.out, found.out, over.out, place.keephold("ps", "--json").out):
        assert key not in printed
        assert key.rpartition(".")[2] not in printed


def test_L1_show_of_a_parked_a_waiting_and_a_failed_handle(place: Place) -> None:
    worker = place.worker()
    worker.run(spawn("approve", "a", what="a desk"), spawn("asking", "q"), spawn("gate", "g", name="g"))
    worker.end("g", "fail")
    place.keephold("wait", "g")
    parked = place.keephold("show", "a")
    assert "running, parked" in parked.out
    assert "nobody: it waits for its completion from outside" in parked.out
    assert 'arguments     {"what":"a desk"}' in parked.out
    assert parked.out.endswith("output, the end of 23 bytes\n  asking for a desk\n")  # K4
    assert place.keephold("show", "a", "--json").json["output"] == {"bytes": 23, "tail": "asking for a desk\x1b[31m\n"}
    waiting = place.keephold("show", "q", "--json").json
    assert waiting["question"] == {
        "id": "sure", "key": "sure.1", "text": "Really?", "pre_amble": None, "answer_type": "Boolean", "default": None,
        "secret": False,
    }  # fmt: skip
    assert "question      Really? (sure)" in place.keephold("show", "q").out
    failed = place.keephold("show", "g", "--json").json
    assert (failed["ok"], failed["ended_by"]) == (False, "self")
    assert failed["outcome"]["message"] == "the gate is broken"
    assert "error         tool_error: the gate is broken" in place.keephold("show", "g").out


def test_show_finds_by_uid_and_says_which_conversations_have_an_id(place: Place) -> None:
    worker = place.worker()
    for name in ("one", "two"):
        worker.run(spawn("gate", "g", name=name), conversation=name)
    several = place.keephold("show", "g")
    assert several.code == 2
    assert several.out == ""
    assert "is in 2 conversations: `one`, `two`" in several.err
    found = place.keephold("show", "g", "--conversation", "two", "--json").json
    assert found["arguments"] == {"name": "two"}
    assert place.keephold("show", found["uid"], "--json").json == found
    for arguments in (("nobody",), ("g", "--conversation", "three")):
        missing = place.keephold("show", *arguments)
        assert (missing.code, missing.out) == (2, "")
        assert "not found" in missing.err
