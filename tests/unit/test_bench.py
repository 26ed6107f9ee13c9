"""The bench itself: which way a ratio goes, what is kept, and a few of the soak's kills. Times are not asserted."""

from pathlib import Path
from types import ModuleType

import apsw
import pytest
from bench import durable_commits, durable_parked, durable_replay, durable_steps, durable_wake, kills
from bench.__main__ import BENCHMARKS, TABLES
from bench.dbos_peer import Peer
from bench.gaps import figure, gap
from bench.results import keep, table
from bench.rounds import Bar, Plan, measure, seconds

import keephold

pytestmark = pytest.mark.slow


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


def test_a_difference_is_the_median_of_the_rounds_with_its_spread() -> None:
    row = gap("x", 150e-6, [(100e-6, 200e-6), (100e-6, 90e-6), (200e-6, 500e-6)])
    assert (row.result, row.bar, row.met) == ("+100.0 µs (−10.0 µs to +300.0 µs)", "≤ +150.0 µs", True)
    assert gap("x", 150e-6, [(100e-6, 251e-6)]).met is False
    assert gap("x", None, [(100e-6, 251e-6)]).met is None


def test_a_figure_is_the_median_of_the_rounds() -> None:
    row = figure("x", 2.0, [1.0, 3.0, 1.5])
    assert (row.result, row.bar, row.met) == ("1.50 s (1.00 s–3.00 s)", "≤ 2.00 s", True)


def test_every_benchmark_says_what_it_measures() -> None:
    assert len(BENCHMARKS) == sum(map(len, TABLES.values()))
    assert all(module.__doc__ and callable(module.run) for module in BENCHMARKS.values())


@pytest.mark.parametrize("module", [durable_steps, durable_wake, durable_replay, durable_commits])
def test_the_durable_benchmarks_run(module: ModuleType) -> None:
    assert module.run(Plan(rounds=1, seconds=0.05))


async def test_copies_of_parked_calls_can_be_resolved(tmp_path: Path) -> None:
    path = tmp_path / "ours.db"
    async with keephold.Runtime([durable_parked.approve], store=f"sqlite:///{path}") as rt, rt.turn("c") as turn:
        calls = [keephold.ToolCall(id, "approve", {"action": "spawn", "id": id}) for id in ("a", "b")]
        await turn.run(calls)
        await durable_parked.all_parked(rt)
    durable_parked.copy_parked(path, 6)
    keys = durable_parked.some_keys(path, 6)
    assert len(set(keys)) == 6
    async with keephold.Runtime([durable_parked.approve], store=f"sqlite:///{path}") as rt:
        assert {(await rt.resolve(key, {"status": "timeout"})).status for key in keys} == {"accepted"}
        assert len(await rt.handles(conversation="c", state="stopped")) == 6
    connection = apsw.Connection(str(path))
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


def test_the_peer_runs(tmp_path: Path) -> None:
    peer = Peer(tmp_path / "dbos.sqlite")
    try:
        assert peer.ask("steps", 0.05) > 0
    finally:
        peer.close()


def test_R2_a_killed_runtime_leaves_nothing_whatever_its_tools_forked() -> None:
    report = kills.run(3, seed=1)
    assert report.left == []
    assert len(report.seconds) == 3
    assert min(report.processes) >= 1
