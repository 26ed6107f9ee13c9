"""Several processes on one store: each call is taken by one of them, and nobody disturbs what another one runs (E6)."""

import os
import signal
import time
from pathlib import Path

import pytest
from tests.crash import races
from tests.crash.check import orphans
from tests.crash.driver import PATIENCE, Life, NewLife, Nursery
from tests.crash.points import sides
from tests.crash.roles import release
from tests.crash.scenes import CROWD
from tests.crash.snapshot import Snapshot
from tests.crash.stage import store_file
from tests.crash.world import effects
from tests.patience import stop_between_commits

SOON = 0.05
"""Seconds from now at which two children begin at once."""


@pytest.mark.parametrize("number", [3, 4, 6, 9, 14, 20])
def test_E6_two_processes_that_recover_at_once_share_the_work(new_life: NewLife, tmp_path: Path, number: int) -> None:
    life = new_life(tmp_path, ("crowd",))
    life.run(kill=f"after:{number}")
    left = life.snapshots[-1]
    at = time.monotonic() + SOON
    two = [life.start(role="recover", at=at, wanted={"crowd": list(CROWD)}) for _ in range(2)]
    for child in two:
        assert child.hear("recovered"), str(life)
    release(tmp_path)
    for child in two:
        assert child.ended().code == 0, str(life)
    after = Snapshot.of(tmp_path)
    begun = [effect for effect in effects(tmp_path) if effect.what == "begin" and effect.run > 0]
    lives_on = {uid for uid, row in left.handles.items() if row.tool in ("pipeline", "again") and not row.stopped}
    assert {effect.uid for effect in begun} == lives_on, str(life)
    for uid in lives_on:
        assert len({effect.pid for effect in begun if effect.uid == uid}) == 1, f"{uid} was run by both\n{life}"
        assert after.handles[uid].state["outcome"]["type"] == "ok", str(life)
    once = [effect for effect in effects(tmp_path) if effect.what not in ("begin", "hook") and effect.run > 0]
    assert len({effect[:2] for effect in once}) == len(once), f"a step was done by both\n{life}"
    assert not [effect for effect in once if (effect.uid, "step", effect.what) in left.journal], str(life)
    for uid, row in left.handles.items():
        if row.tool == "plain" and not row.stopped:
            assert after.handles[uid].state["ended_by"] == "crash", str(life)
    assert not orphans(life.told)


@pytest.mark.parametrize("number", [3, 6, 9, 12])
def test_B9_of_two_that_resume_a_turn_one_gets_it(new_life: NewLife, tmp_path: Path, number: int) -> None:
    life = new_life(tmp_path, ("batch",))
    life.run(kill=f"after:{number}")
    at = time.monotonic() + SOON
    two = [life.start(role="compete", at=at, conversation="batch") for _ in range(2)]
    assert all(child.hear("competed") for child in two), str(life)
    release(tmp_path)
    for child in two:
        assert child.ended().code == 0, str(life)
    answered = [report for report in life.told if report["kind"] == "answered"]
    assert [report["resumed"] for report in answered] == [True], str(life)
    life.compare(two[1])
    life.end()


def test_E6_a_visitor_disturbs_nothing(new_life: NewLife, tmp_path: Path) -> None:
    life = new_life(tmp_path, ("crowd", "event", "talking", "parked", "hook", "retry", "fail", "command", "batch"))
    visitor = life.start(role="visit")
    assert visitor.hear("mark")
    worker = life.start()
    assert worker.ended().verdict == "done", str(life)
    release(tmp_path)
    visited = visitor.hear("visited")
    assert visited is not None and visited["visits"] > 0, str(life)
    assert visitor.ended().code == 0, str(life)
    life.compare(worker)
    life.end()
    retried = ("safely", "again")
    for report in worker.reports:
        if report["kind"] == "begun":
            tool = life.snapshots[-1].handles[report["uid"]].tool
            assert report["attempt"] == 1 or tool in retried, str(life)
    assert not [report for report in visitor.reports if report["kind"] in ("begun", "step")], str(life)


def test_E6_a_living_peer_takes_up_what_a_killed_one_left(nursery: Nursery, tmp_path: Path) -> None:
    life = Life(nursery, tmp_path, ("crowd",))
    peer = life.start(role="recover", at=0.0, wanted={})
    assert peer.hear("opened")
    worker = life.start(kill="after:6")
    assert worker.ended().code != 0, str(life)
    left = Snapshot.of(tmp_path)
    until = time.monotonic() + PATIENCE
    while not all(row.stopped for row in Snapshot.of(tmp_path).handles.values() if row.stateful):
        assert time.monotonic() < until, f"the peer does not take it up\n{life}"
        time.sleep(0.02)
    release(tmp_path)
    assert peer.ended().code == 0, str(life)
    after = Snapshot.of(tmp_path)
    for uid, row in left.handles.items():
        if row.stateful and row.tool in ("pipeline", "again"):
            assert after.handles[uid].state["outcome"]["type"] == "ok", str(life)


def test_E10_what_is_sent_to_a_process_that_dies_is_taken_once(new_life: NewLife, tmp_path: Path) -> None:
    rehearsal = new_life(tmp_path / "rehearsal", ())
    for number in range(1, _talk_to_host(rehearsal, None) + 1):
        for side in sides(number):
            life = new_life(tmp_path / f"{side}-{number}", ())
            _talk_to_host(life, f"{side}:{number}")
            (row,) = (row for row in Snapshot.of(life.directory).handles.values() if row.tool == "keeper")
            assert row.state["outcome"] == {"type": "ok", "value": ["one", "two"]}, f"{side}:{number}\n{life}"
            assert not [report for report in life.told if report["kind"] == "applied" and report["is_error"]], str(life)


def _talk_to_host(life: Life, kill: str | None) -> int:
    """How many commits the host made when it was ready; 0 if it did not come to its end."""
    host = life.start(role="host", kill=kill)
    assert host.hear("ready") is not None, str(life)
    guest = life.start(role="guest")
    assert guest.ended().code == 0, str(life)
    release(life.directory)
    served = host.hear("served")
    host.ended()
    return 0 if served is None else int(served["commits"])


def test_E6_a_stopped_process_keeps_its_calls(new_life: NewLife, tmp_path: Path) -> None:
    life = new_life(tmp_path, ("deployment",))
    owner = life.start()
    asked = owner.hear("key")
    assert asked is not None
    if life.url is None:
        stop_between_commits(owner.pid, store_file(tmp_path))
    else:
        os.kill(owner.pid, signal.SIGSTOP)
    peer = life.start(role="recover", at=0.0, wanted={})
    assert peer.hear("recovered")
    time.sleep(5 * SOON)  # several of its sweeps
    resolver = life.start(role="resolve", keys=[asked["key"]], place=None)
    assert resolver.ended().code == 0, str(life)
    os.kill(owner.pid, signal.SIGCONT)
    assert owner.hear("answered"), str(life)
    release(tmp_path)
    assert owner.ended().code == peer.ended().code == 0, str(life)
    assert [effect.what for effect in effects(tmp_path)] == ["begin", "create", "release"], str(life)
    life.compare(owner)
    life.end()


def test_D5_of_two_processes_that_resolve_a_key_at_once_one_is_first(new_life: NewLife, tmp_path: Path) -> None:
    report = races.run(new_life(tmp_path, ()), 100)
    assert not report.wrong
    assert sum(report.won) == 100
