"""News and SIGKILL (N3, N5, R4): queued with what it tells of, gone with what carries it; a kill loses none of it.

Every scene is killed at every second of its commits, before it is written or after it is and before anyone has been
told, and at random moments; `make soak` tries both at each. An end that nobody saw is told in the end. It
was recorded as told once; a response that may not have arrived is given again with the news that rode on it.
"""

import random
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash import check
from tests.crash.driver import Life, NewLife, Nursery
from tests.crash.notified import SCENES, known, told_of
from tests.crash.points import chosen
from tests.soak import tries

OTHER = {"before": "after", "after": "before"}
SURE = [name for name in SCENES if name != "message"]


@pytest.fixture(autouse=True)
def strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check_heard` takes the place of the check that news of parked calls is queued or shown: here it is delivered."""
    monkeypatch.setattr(check, "_silent", lambda store: ())


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.crash.notified") as nursery:
        yield nursery


def check_heard(life: Life) -> None:
    """Every end is known; everything a program told was heard. What rides on responses does so once: those are given
    again. Of what rode on a message nobody knows whether it arrived: that may be repeated."""
    carriers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for report in life.told:
        for id in told_of(report):
            carrier = report["responses"][0][0] if "responses" in report else "a message"
            carriers[report["conversation"], id].add(carrier)
    ended = {(row.conversation, row.id) for row in life.snapshots[-1].handles.values() if row.stateful}
    heard = {line for report in life.told for line in report.get("notifications", ())}
    said = {report["text"] for report in life.told if report["kind"] == "notified"}
    assert ended or said, str(life)
    problems = [
        *(f"N3: nobody knows of {each}" for each in ended - known(life.told)),
        *(f"N4: {each} was told by {by}" for each, by in carriers.items() if len(by) > 1),
        *(f"R4: {text} was never heard" for text in said - heard),
    ]
    assert not problems, "\n".join([*problems, str(life)])


def killed_at_every_commit(new_life: NewLife, directory: Path, scene: str, side: str) -> None:
    rehearsal = new_life(directory / "rehearsal", (scene,))
    rehearsal.finish()
    check_heard(rehearsal)
    died = 0
    for earlier, number in chosen(rehearsal, side):
        life = new_life(directory / f"{earlier}-{number}", (scene,))
        for _ in range(earlier):
            life.run()
        life.run(kill=f"{side}:{number}")
        if number % 2 == 1:
            life.run(kill=f"{OTHER[side]}:{1 + number % 5}")
        life.finish()
        check_heard(life)
        died += life.deaths
        shutil.rmtree(life.directory)
    assert died >= len(chosen(rehearsal, side))


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("scene", SURE)
def test_N3_killed_at_every_commit(new_life: NewLife, tmp_path: Path, scene: str, side: str) -> None:
    killed_at_every_commit(new_life, tmp_path, scene, side)


@pytest.mark.parametrize("side", ["before", "after"])
def test_N3_killed_at_every_commit_while_a_message_carries_it(new_life: NewLife, tmp_path: Path, side: str) -> None:
    """Killed when the message was recorded as its carrier, and before anyone had it."""
    killed_at_every_commit(new_life, tmp_path, "message", side)


def test_N3_killed_at_random_moments(new_life: NewLife, tmp_path: Path) -> None:
    """Again and again; then it comes to its end."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for number in range(tries(3, soak=8)):
        life = new_life(tmp_path / str(number), tuple(SURE), new=True)
        for _ in range(chance.randint(1, 6)):
            life.kill_randomly(chance, 0.15)
        life.finish()
        check_heard(life)
        shutil.rmtree(life.directory)
