"""What `keephold top` says of a handle, and in which order, from facts alone."""

from typing import Any

import pytest

from keephold.cli.top_source import HEAD, Fact, cells, ordered, request_fact, rows, widths

NOW = 1000.0


def fact(id: str, state: str = "running", **more: Any) -> Fact:
    stopped = NOW if state == "stopped" else None
    return {
        "id": id, "uid": f"uid-{id}", "tool": "tool", "conversation": "main", "state": state, "parked": False,
        "owner": "alive", "attempt": 1, "next_attempt_at": None, "created": 900.0, "started": 900.0,
        "stopped": stopped, "ok": None if stopped is None else True, "ended_by": None, "question": None, **more,
    }  # fmt: skip


NEED = {"id": "n1", "kind": "permission", "handle_id": "d", "tool": "deploy", "conversation": "main", "since": 990.0,
        "action": "spawn"}  # fmt: skip


@pytest.mark.parametrize("sort", ["urgent", "newest", "oldest", "tool", "id"])
def test_L_what_needs_a_person_is_first_however_it_is_sorted(sort: str) -> None:
    facts = [fact("a"), fact("z", "waiting", created=950.0), fact("b", "stopped"), request_fact(NEED)]
    first = [each["id"] for each in ordered(facts, sort, grouped=False)][:2]
    assert set(first) == {"z", "d"}


def test_L_urgent_is_asking_then_orphaned_then_running_queued_parked_and_over() -> None:
    facts = [
        fact("over", "stopped"), fact("parked", parked=True, owner=None), fact("queued", "pending"), fact("runs"),
        fact("orphan", owner="gone"), fact("asks", "waiting"),
    ]  # fmt: skip
    assert [each["id"] for each in ordered(facts, "urgent", grouped=False)] == [
        "asks", "orphan", "runs", "queued", "parked", "over",
    ]  # fmt: skip


def test_L_of_several_that_ask_the_one_that_has_waited_longest_is_first() -> None:
    facts = [fact("late", "waiting", created=950.0), fact("early", "waiting", created=910.0)]
    assert [each["id"] for each in ordered(facts, "urgent", grouped=False)] == ["early", "late"]


def test_L_groups_are_conversations_and_the_most_urgent_is_first() -> None:
    facts = [fact("a"), fact("b", conversation="other"), fact("c", "waiting", conversation="other")]
    shown = rows(ordered(facts, "urgent", grouped=True), {}, NOW, grouped=True)
    assert [row.key for row in shown] == ["group:other", "uid-c", "uid-b", "group:main", "uid-a"]


@pytest.mark.parametrize(
    ("more", "line", "last"),
    [
        ({}, "compiling", "compiling"),
        ({"progress": {"done": 3, "total": 10, "message": "files"}}, "compiling", "3/10 files"),
        ({"progress": {"done": 3, "total": None, "message": None}}, "", "3"),
        ({"progress": {"done": None, "total": None, "message": "busy"}}, "", "busy"),
        ({"question": {"text": "Really?\nSure?"}, "state": "waiting"}, "compiling", "? Really? Sure?"),
        ({"state": "stopped", "stopped": NOW, "ok": False, "ended_by": "self", "message": "broken"}, "x", "broken"),
        ({"last_line": "from here"}, "", "from here"),
    ],
)
def test_L_the_last_column_is_the_newest_there_is_to_say(more: dict[str, Any], line: str, last: str) -> None:
    assert cells(fact("a", **more), line, NOW)[5] == last


def test_L_time_goes_on_until_it_has_stopped() -> None:
    assert cells(fact("a"), "", NOW)[4] == "1m 40s"
    assert cells(fact("a", "stopped", stopped=905.0), "", NOW)[4] == "5s"


def test_K4_no_control_character_comes_out() -> None:
    hostile = "\x1b[2J\x1b]0;t\x07a\u202eb\nc"
    said = cells(fact(hostile, tool=hostile, conversation=hostile), hostile, NOW)
    assert "".join(said).isprintable()


@pytest.mark.parametrize("room", [40, 80, 120, 300])
def test_L_columns_fit(room: int) -> None:
    long = rows(
        [fact("i" * 60, tool="t" * 60, conversation="c" * 60)], {"uid-" + "i" * 60: "l" * 500}, NOW, grouped=False
    )
    found = widths(long, room)
    assert len(found) == len(HEAD)
    assert sum(found) + 2 * len(HEAD) <= max(room, 70)
    short = widths(rows([fact("a")], {}, NOW, grouped=False), 120)
    assert short[:5] == [7, 2, 4, 12, 6]


def test_L_a_handle_that_has_not_started_says_why() -> None:
    lane = {"by": "lane", "name": None, "behind": [{"id": "build", "uid": "1"}], "count": 1}
    state, *_, last = cells(fact("a", "pending", held_up=[lane]), "", 100.0)
    assert (state, last) == ("pending", "behind build in the serial lane")
