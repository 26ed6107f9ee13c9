"""What must hold after every run, and at the end, whatever was killed when (S2, S3, D5, E2, E4, R1, R2, R4).

Three things are compared: what the children were told, what the store holds after each of them (`snapshot.py`), and
what was done to the world (`world.effects`).
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tests.crash.snapshot import Row, Snapshot
from tests.crash.tools import said
from tests.crash.world import Effect, Report, effects, matches

from keephold.tools import marks

if TYPE_CHECKING:
    from tests.crash.driver import Life

NO_STEPS = ("begin", "hook")
CRASHED = {"type": "error", "code": "crashed", "transient": True}
ENDS_BY_CRASH = ("hello", "in_turn", "plain", "approve", "rent", "borrow", "safely", "family", "outside")
"""Tools that a crash ends while they run; `outside` until it has its key."""
_TIMEOUT = ("timeout", "tool_completion_timeout")
ENDS: dict[str, set[tuple[str, str | None]]] = {
    "approve": {("self", None), _TIMEOUT, ("self", "await_event_unknown_or_revoked")},
    "outside": {("self", None), _TIMEOUT},
    "rent": {("abort", "cancelled"), ("cancel", "cancelled")},
    "family": {("abort", "aborted")},
}
"""How the others end, by whom and with which code, if not by themselves and well."""
GONE_SECS = 60.0

__all__ = ["after_run", "at_the_end", "left_open", "matches", "unwritten"]


def after_run(life: "Life") -> None:
    """A child has ended, by itself or by a kill: nothing is lost, nothing has changed that may not, nothing is done
    twice."""
    after = life.snapshots[-1]
    before = life.snapshots[-2] if len(life.snapshots) > 1 else Snapshot()
    done = effects(life.directory)
    problems = [
        *_lost(before, after),
        *(problem for report in life.told for problem in unwritten(report, after)),
        *_done_twice(life, done),
        *_unmatched(after, done),
        *_silent(after),
        *(f"E10: {said} was taken {count} times" for said, count in Counter(_taken(after)).items() if count > 1),
    ]
    assert not problems, "\n".join([*problems, str(life)])


def _lost(before: Snapshot, after: Snapshot) -> Iterator[str]:
    for uid, row in before.handles.items():
        now = after.handles.get(uid)
        if now is None:
            yield f"handle {row.id} is gone"
        elif row.stopped and now.state != row.state:
            yield f"S2: handle {row.id} had stopped as {row.state}, and is {now.state}"
        elif now.fence < row.fence:
            yield f"E6: handle {row.id} had fence {row.fence}, and has {now.fence}"
    for line, value in before.journal.items():
        if after.journal.get(line) != value:
            yield f"E2: {line} was recorded as {value}, and is {after.journal.get(line)}"
    for key_id, (uid, kind, resolution) in before.waits.items():
        if key_id not in after.waits or (resolution is not None and after.waits[key_id] != (uid, kind, resolution)):
            yield f"D5: key {key_id} was resolved as {resolution}, and is {after.waits.get(key_id)}"
    for event, payload in before.events.items():
        if after.events.get(event) != payload:
            yield f"E8: event {event} was {payload}, and is {after.events.get(event)}"
    for batch, responses in before.responses.items():
        if responses is not None and after.responses.get(batch) != responses:
            yield f"R4: batch {batch} was answered {responses}, and is {after.responses.get(batch)}"


def unwritten(report: Report, store: Snapshot) -> Iterator[str]:
    """Durable before visible: what a child was told is in the store."""
    uid, kind = report.get("uid", ""), report["kind"]
    if kind == "step" and store.journal.get((uid, "step", report["step"])) != (True, report["value"]):
        yield f"R4: {report} is not what was recorded"
    elif kind == "failed":
        ok, error = store.journal.get((uid, "step", report["step"]), (True, {}))
        if ok or error["message"] != report["message"]:
            yield f"R4: {report} is not what was recorded: {error}"
    elif kind == "stopped":
        state = store.handles[uid].state
        if any(state.get(fact) != report[fact] for fact in ("outcome", "ended_by")):
            yield f"R4: {report} is not what the store has: {state}"
    elif kind == "key" and report["key_id"] not in store.waits:
        yield f"R4: {report} is not in the store"
    elif kind == "resolved":
        yield from _unresolved(report, store.waits[report["key_id"]][2])
    elif kind in ("answered", "recalled"):
        written = [batch for where, batch in _batches(store) if where == (report["conversation"], report["turn"])]
        if written.count(report["responses"]) != 1:
            yield f"R4: {report} is not what was recorded: {written}"
        if kind == "answered" and report["calls"] != [id for id, *_ in report["responses"]]:
            yield f"B1: {report} has not one response for each call"
    elif kind == "applied" and not report["is_error"] and report["said"] not in _taken(store):
        yield f"E10: {report} is not in the journal: {_taken(store)}"


def _batches(store: Snapshot) -> Iterator[tuple[tuple[str, str], Any]]:
    """Conversation and turn of each batch that was answered, and what."""
    for (conversation, turn, _), responses in store.responses.items():
        if responses is not None:
            yield (conversation, turn), [[id, result, is_error] for id, result, _, is_error, _ in responses]


def _taken(store: Snapshot) -> list[Any]:
    """The answers and lines that tools were given, each of which was sent once."""
    return [value for (_, kind, _), (_, value) in store.journal.items() if kind in ("ask", "input")]


def _unresolved(report: Report, resolution: Any) -> Iterator[str]:
    if report["status"] not in ("accepted", "already_resolved"):
        yield f"D5: {report}"
    elif report["status"] == "accepted" and resolution != report["sent"]:
        yield f"R4: {report} is not what was recorded: {resolution}"
    elif report["status"] == "already_resolved" and resolution != report["terminal"]:
        yield f"D5: {report} is not what was recorded: {resolution}"


def _done_twice(life: "Life", done: list[Effect]) -> Iterator[str]:
    steps = [effect for effect in done if effect.what not in NO_STEPS]
    for effect, count in Counter(steps).items():
        if count > 1:
            yield f"E2: {effect} was done {count} times in one run"
    for run, snapshot in zip(life.ended, life.snapshots, strict=True):
        for effect in steps:
            if effect.run > run.number and (effect.uid, "step", effect.what) in snapshot.journal:
                yield f"E2: {effect} was done, and had been recorded by run {run.number}"


def _unmatched(store: Snapshot, done: list[Effect]) -> Iterator[str]:
    did = {(effect.uid, effect.what, effect.run) for effect in done}
    for (uid, kind, name), (ok, value) in store.journal.items():
        if kind == "step" and ok and (uid, name, value["run"]) not in did:
            yield f"E2: step {name} of {uid} is recorded as {value}, and was never done"


def _silent(store: Snapshot) -> Iterator[str]:
    """D9: the end of a parked call is queued as a notification, until a response carries it or shows the end.

    A call may end after the state that a response shows was read, and before the response is written: then it is
    carried by that response.
    """
    told = {*store.news.values(), *store.carried}
    for row in store.handles.values():
        if row.parked and row.stopped and row.uid not in told:
            shown = json.dumps([each for (where, *_), each in store.responses.items() if where == row.conversation])
            if row.stateful and f'\\"id\\":\\"{row.id}\\",\\"state\\":\\"stopped\\"' not in shown.replace("\\\\", "\\"):
                yield f"R4: the end of {row.id}, which was parked, is neither queued, carried nor shown: {shown}"


def at_the_end(life: "Life") -> None:
    """All scenes are done: nothing is left open, everything came to the end it had to."""
    store, told = life.snapshots[-1], life.told
    problems = [
        *left_open(store),
        *(problem for row in store.handles.values() for problem in _wrong_end(row, store, life)),
        *_answers(life, store),
        *_hooks(life, store),
        *_keys(told),
        *_side_by_side(life, store),
        *_unaware(told),
    ]
    for report in told:
        if report["kind"] == "events" and [type for _, type, _ in report["events"]].count("half") != 1:
            problems.append(f"E8: {report}")
        if report["kind"] == "output":
            problems += _unprinted(report, store)
    problems += [f"R2: process {pid} is left" for pid in orphans(told)]
    assert not problems, "\n".join([*problems, str(life)])


def _unprinted(report: Report, store: Snapshot) -> Iterator[str]:
    """E10: what a recorded step has printed is there, once."""
    for (uid, kind, name), (ok, value) in store.journal.items():
        if uid == report["uid"] and kind == "step" and ok and report["text"].count(said(name, value["run"])) != 1:
            yield f"E10: of step {name}, recorded as {value}, the output has {report['text']!r}"


def left_open(store: Snapshot) -> Iterator[str]:
    for row in store.handles.values():
        if not row.stopped or row.owner is not None or row.hook_due:
            yield f"R1: {row} is stuck"
    for turn in store.open_turns:
        yield f"turn {turn} is open"


def _wrong_end(row: Row, store: Snapshot, life: "Life") -> Iterator[str]:
    if not row.stopped:
        return
    end, outcome, tool = row.state["ended_by"], row.state["outcome"], row.tool
    deaths = sum(_died_running(snapshot, row.uid) for snapshot in _left_by_others(life))
    if end == "crash" and outcome.get("code") == "crash_loop":  # it was alone at the third of three deaths in a row
        if deaths < 3:
            yield f"R8: {row} has not died three times"
        return
    died = deaths > 0
    crashed = end == "crash" and {**outcome, **CRASHED} == outcome
    closed = end == "shutdown" and outcome["code"] == "aborted" and any(run.verdict == "closed" for run in life.runs)
    resolution = next((how for uid, kind, how in store.waits.values() if uid == row.uid and kind == "completion"), None)
    if (end == "crash" or outcome.get("code") == "crashed") and not (crashed and died):
        yield f"R1: {row} did not die"
    elif (crashed or closed) and tool not in ENDS_BY_CRASH:
        yield f"R1: {row} can live through that"
    elif resolution is not None and resolution["status"] == "ok":
        if outcome != {"type": "ok", "value": resolution["payload"]}:
            yield f"R4: {row} was completed with {resolution}"
    elif died and tool in ENDS_BY_CRASH and not crashed:
        yield f"R1: {row} died while it ran"
    elif not (crashed or closed) and (end, outcome.get("code")) not in ENDS.get(tool, {("self", None)}):
        yield f"S3: {row} ended otherwise"


def _left_by_others(life: "Life") -> list[Snapshot]:
    """What killed processes left, and closed ones."""
    runs = zip(life.ended, life.snapshots, strict=True)
    return [snapshot for run, snapshot in runs if run.code != 0 or run.verdict == "closed"]


def _died_running(store: Snapshot, uid: str) -> bool:
    row = store.handles.get(uid)
    if row is None or row.stopped or row.owner is None or row.planned or row.parked:
        return False
    return bool(row.state["type"] != "pending")


def _answers(life: "Life", store: Snapshot) -> Iterator[str]:
    """B9: every call is answered once, a one-shot call with the end it came to."""
    calls = {row.call_id: row for row in store.handles.values() if not row.stateful}
    answered = Counter(id for report in life.told if report["kind"] == "answered" for id in report["calls"])
    for id, count in answered.items():
        if count > 1:
            yield f"B1: call {id} was answered {count} times"
    given = [report["responses"] for report in life.told if report["kind"] in ("answered", "recalled")]
    for _, batch in _batches(store):
        if batch not in given:
            yield f"R4: {batch} was recorded, and nobody was ever told"
    for report in life.told:
        for id, result, is_error in report["responses"] if report["kind"] == "answered" else ():
            if report["conversation"] == "failing" and "timed out" in result and not report["failed"]:
                yield f"D11: {report} did not take its turn with it"
            row = calls.get(id)
            if row is not None and not _says(row.state["outcome"], result, is_error):
                yield f"B9: call {id} was answered {result}, and came to {row.state}"


def _says(outcome: Any, result: str, is_error: bool) -> bool:
    match outcome["type"]:
        case "ok":
            value = outcome["value"]
            return not is_error and (result == value if isinstance(value, str) else json.loads(result) == value)
        case "error":
            return is_error == (outcome["code"] != "aborted") and outcome["message"] in result
    return bool(outcome["result"] == result)


def _hooks(life: "Life", store: Snapshot) -> Iterator[str]:
    called = {effect.uid for effect in effects(life.directory) if effect.what == "hook"}
    for key_id, (uid, _, _) in store.waits.items():
        row = store.handles[uid]
        if row.tool == "rent" and row.state["ended_by"] in ("abort", "cancel") and key_id not in called:
            yield f"D2: the hook of {row} was never called"


def _side_by_side(life: "Life", store: Snapshot) -> Iterator[str]:
    """B4: of calls that run one at a time, each is through before the next begins."""
    order = [(effect.run, effect.uid) for effect in effects(life.directory) if effect.uid in store.handles]
    served = [uid for uid, _ in groupby(each for each in order if store.handles[each[1]].tool == "queued")]
    if len(set(served)) != len(served):
        yield f"B4: they ran side by side: {served}"


def _unaware(told: list[Report]) -> Iterator[str]:
    """E4: a tool can see that it may have run before."""
    attempts: dict[str, int] = {}
    for report in told:
        if report["kind"] == "begun":
            if report["attempt"] <= attempts.get(report["uid"], 0):
                yield f"E4: {report} is not its first attempt"
            attempts[report["uid"]] = report["attempt"]


def _keys(told: list[Report]) -> Iterator[str]:
    accepted = Counter(report["key_id"] for report in told if matches(report, "resolved", {"status": "accepted"}))
    for key_id, count in accepted.items():
        if count > 1:
            yield f"D5: key {key_id} was accepted {count} times"
    keys = {(report["uid"], report["name"], report["key"]) for report in told if report["kind"] == "key"}
    if len(keys) != len({key[:2] for key in keys}):
        yield f"E5: the same name gave another key: {keys}"


def orphans(told: list[Report]) -> list[int]:
    """Processes that bear the mark of a runtime of ours, after they have had time to go."""
    until = time.monotonic() + GONE_SECS
    wanted = [report["mark"] for report in told if report["kind"] == "mark"]
    while (left := [pid for mark in wanted for pid in marks.find(mark)]) and time.monotonic() < until:
        time.sleep(0.01)
    return left
