"""What a handle went through, for people, and the calls of a turn over time."""

from typing import Any

import pytest

from keephold.serve.dashboard.timeline import CHART, MOST, NAMES, Stretch, lanes, moments, stretches

AT = 1000.0


def fact(uid: str = "u", **more: Any) -> dict[str, Any]:
    return {
        "uid": uid, "id": uid, "tool": "build", "state": "stopped", "created": AT, "started": AT, "stopped": AT + 10,
        "waits_on": [], "ok": True, "ended_by": "self", **more,
    }  # fmt: skip


def event(at: float, type: str, **data: Any) -> dict[str, Any]:
    return {"seq": int(at), "at": AT + at, "type": type, "data": data}


ASKED = [
    event(0, "handle.created", state="pending"),
    event(1, "handle.running"),
    event(3, "handle.waiting", question="sure"),
    event(6, "handle.running"),
    event(7, "handle.stepped", kind="step", name="a", ok=True),
    event(7, "handle.stepped", kind="step", name="b", ok=False),
    event(8, "handle.parked", deadline=None),
    event(10, "handle.stopped", ok=False, ended_by="self", code="broken"),
]


def test_stretches_follow_one_another_from_creation_to_the_end() -> None:
    found = stretches(ASKED, fact(started=AT + 1), AT + 99)
    assert [(each.state, each.start - AT, each.end - AT) for each in found] == [
        ("pending", 0, 1), ("running", 1, 3), ("waiting", 3, 6), ("running", 6, 8), ("parked", 8, 10)
    ]  # fmt: skip


def test_what_runs_goes_on_to_now_and_without_events_the_facts_tell() -> None:
    running = fact(state="running", started=AT + 2, stopped=None)
    assert stretches((), running, AT + 5) == [Stretch("pending", AT, AT + 2), Stretch("running", AT + 2, AT + 5)]
    never = fact(started=None, stopped=AT)  # refused at once
    assert [each.end for each in stretches((), never, AT + 5)] == [AT]


def test_moments_tell_each_thing_once_and_steps_together() -> None:
    told = [(each.what, each.more) for each in moments(ASKED, fact())]
    assert told == [
        ("Created", ""),
        ("Started", ""),
        ("Asked", "sure"),
        ("Answered, resumed", ""),
        ("2 steps were recorded", "a, b"),
        ("Parked", "waits for an outside result"),
        ("Stopped", "broken"),
    ]
    assert [each.what for each in moments((), fact())] == ["Created", "Started", "Stopped"]


def test_R5_a_failed_attempt_is_told_with_the_number_of_the_next() -> None:
    told = moments(
        [event(1, "handle.attempt", attempt=2, next_at=AT + 9), event(9, "handle.attempt", attempt=2)], fact()
    )
    assert [(each.what, each.more) for each in told][1:-1] == [
        ("Started", ""),
        ("Attempt 1 failed", "attempt 2 after a pause"),
        ("Attempt 2", ""),
    ]


def test_calls_are_drawn_in_proportion_and_waits_lead_to_what_they_wait_for() -> None:
    calls = [
        fact("left", stopped=AT + 10),
        fact("right", stopped=AT + 5),
        fact("call:1", tool="await", waits_on=["left", "right", "elsewhere"], stopped=AT + 10),
    ]
    drawn = lanes(calls, {}, AT + 99)
    assert drawn is not None
    left, right, waiter = drawn.rows
    assert (left.bars[0].x, left.bars[0].width) == (NAMES, CHART) and right.bars[0].width == CHART / 2
    assert waiter.waits and not left.waits
    assert [(each.id, each.x, each.y, each.to) for each in drawn.blocked] == [
        ("left", NAMES + CHART, waiter.y, left.y),
        ("right", NAMES + CHART / 2, waiter.y, right.y),
    ]
    assert not any(each.open for each in drawn.blocked)
    open = lanes([*calls[:2], fact("w", tool="await", waits_on=["left"], stopped=None)], {}, AT + 20)
    assert open is not None and [each.open for each in open.blocked] == [False]  # what it waited for has stopped
    assert drawn.ticks[0] == (NAMES, "0") and drawn.ticks[-1] == (NAMES + CHART, "10 s")


def test_serial_calls_stand_together_and_only_so_many_are_drawn() -> None:
    assert lanes([], {}, AT) is None
    drawn = lanes([fact("s", serial=True), *(fact(str(n)) for n in range(MOST))], {}, AT)
    assert drawn is not None and drawn.left_out == 1 and drawn.serial is None
    drawn = lanes([fact("s", serial=True), fact("p")], {}, AT)
    assert drawn is not None and [row.fact["id"] for row in drawn.rows] == ["p", "s"]
    assert drawn.serial == drawn.rows[1].y


def test_calls_that_wait_for_permission_are_marked() -> None:
    waits = fact("p", state="pending", started=None, stopped=None, held_up=[{"by": "permission"}])
    queues = fact("q", state="pending", started=None, stopped=None, held_up=[{"by": "lane"}])
    drawn = lanes([waits, queues], {}, AT + 5)
    assert drawn is not None and [row.asked for row in drawn.rows] == [True, False]


def test_live_calls_are_drawn_first_and_a_zoom_draws_a_longer_axis() -> None:
    calls = [fact("old", stopped=AT + 8), fact("runs", stopped=None), fact("s", serial=True)]
    drawn = lanes(calls, {}, AT + 10, 4)
    assert drawn is not None and [row.fact["id"] for row in drawn.rows] == ["runs", "old", "s"]
    assert drawn.rows[0].bars[0].width == 4 * CHART and len(drawn.ticks) > 7


@pytest.mark.parametrize(
    ("length", "last"), [(0.004, "0"), (0.5, "500 ms"), (59, "50 s"), (4000, "1 h"), (1e6, "10 d")]
)
def test_times_are_round(length: float, last: str) -> None:
    drawn = lanes([fact(stopped=AT + length)], {}, AT)
    assert drawn is not None and 1 <= len(drawn.ticks) <= 7
    assert drawn.ticks[-1][1] == last
