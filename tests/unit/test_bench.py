"""The bench itself: which way a ratio goes, what is kept, and a few of the soak's kills. Times are not asserted."""

from pathlib import Path

import pytest
from bench import kills
from bench.results import keep, table
from bench.rounds import Bar, Plan, measure, seconds


def test_a_ratio_is_the_median_of_the_rounds_with_its_spread() -> None:
    rounds = iter([9.0, 9.0, 1.0, 2.0, 4.0, 1.0, 1.0, 9.0])  # two to warm up, then the first of each pair in turn
    given = iter(["bare", "ours", "bare", "ours", "ours", "bare", "bare", "ours"])

    def play(who: str, length: float) -> float:
        assert next(given) == who
        return next(rounds)

    row = measure("x", Plan(rounds=3), Bar(4), lambda s: play("bare", s), lambda s: play("ours", s))
    assert (row.result, row.bar, row.met) == ("4.00 × (2.00–9.00)", "≤ 4 ×", True)
    assert (row.bare, row.ours) == ("1.00 s", "4.00 s")


@pytest.mark.parametrize(("bar", "met"), [(Bar(3.9), False), (Bar(0.25, "speed"), True), (Bar(0.26, "speed"), False)])
def test_a_bar_of_time_is_a_ceiling_and_one_of_speed_a_floor(bar: Bar, met: bool) -> None:
    assert measure("x", Plan(rounds=3), bar, lambda _: 1.0, lambda _: 4.0).met is met


def test_a_row_without_a_bar_is_neither_met_nor_missed() -> None:
    async def ours(_: float) -> float:
        return 2.0

    row = measure("x", Plan(rounds=3), None, lambda _: 1.0, ours)
    assert (row.result, row.bar, row.met) == ("2.00 × (2.00–2.00)", "", None)


def test_times_are_shown_in_the_unit_that_suits_them() -> None:
    assert [seconds(value) for value in (1.5, 0.0123, 2.5e-6)] == ["1.50 s", "12.30 ms", "2.5 µs"]


def test_a_run_replaces_its_own_section_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "RESULTS.md"
    keep("Bench", "first", file)
    keep("Soak", "slow", file)
    keep("Bench", "second", file)
    title, bench, soak = file.read_text().split("\n## ")
    assert title.startswith("# Results")
    assert (bench, soak) == ("Bench\n\nsecond\n", "Soak\n\nslow\n")


def test_tables_line_up() -> None:
    assert table(("a", "b"), [("long", "×")]) == "| a    | b |\n| ---- | - |\n| long | × |"


def test_R2_a_killed_runtime_leaves_nothing_whatever_its_tools_forked() -> None:
    report = kills.run(3, seed=1)
    assert report.left == []
    assert len(report.seconds) == 3
    assert min(report.processes) >= 1
