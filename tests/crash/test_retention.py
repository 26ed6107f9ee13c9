"""S5, D5: killed while it lets go of what is old: the handle has expired, its key is still answered."""

from pathlib import Path

from tests.crash.driver import NewLife
from tests.crash.points import sides

EIGHT_DAYS = 8 * 86_400.0


def test_S5_killed_at_every_commit_while_it_lets_go(new_life: NewLife, tmp_path: Path) -> None:
    rehearsal = new_life(tmp_path / "rehearsal", ("old",))
    rehearsal.run()
    last = rehearsal.start(clock=EIGHT_DAYS)
    assert last.ended().code == 0, str(rehearsal)
    for number in range(1, last.commits + 1):
        for side in sides(number):
            life = new_life(tmp_path / f"{side}-{number}", ("old",))
            life.run()
            life.start(clock=EIGHT_DAYS, kill=f"{side}:{number}").ended()
            end = life.start(clock=EIGHT_DAYS).ended()
            assert end.code == 0, str(life)
            resolved, *_, again = (report for report in life.told if report["kind"] == "resolved")
            assert (resolved["status"], again["status"]) == ("accepted", "already_resolved"), str(life)
            assert again["terminal"] == resolved["sent"], str(life)
            remembered = end.hear("remembered")
            assert remembered is not None and remembered["code"] == "handle_expired", str(life)
