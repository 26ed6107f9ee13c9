"""The cruel failure: a transaction was written and whoever wrote it is told that it was not (Temporal calls that
ExecuteAndTimeout); the kind one, where it was not written; and the mean one, where for a moment nobody can even look.

In all cases the process lives. After the cruel and the mean one everything goes on as if nothing had happened. After
the kind one nothing is half-written, callers that cannot wait are told, and when they try again it works.
"""

import errno
import os
import shutil
from pathlib import Path

import apsw
import pytest
from tests.crash.driver import Life, Nursery
from tests.crash.here import finish_here, play_here
from tests.crash.points import chosen, points
from tests.crash.scenes import SCENES
from tests.crash.stage import Commits
from tests.crash.world import effects

from keephold.store.sqlite import opening, writer


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that cannot write tries again soon."""
    monkeypatch.setattr(writer, "FIRST_PAUSE", 0.003)


def fail() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("scene", SCENES)
async def test_R4_the_store_fails_at_every_commit(nursery: Nursery, tmp_path: Path, scene: str, side: str) -> None:
    rehearsal = Life(nursery, tmp_path / "rehearsal", (scene,))
    await finish_here(rehearsal)
    for earlier, number in chosen(rehearsal, side):
        life = Life(nursery, tmp_path / f"{earlier}-{number}", (scene,))
        for _ in range(earlier):
            await play_here(life)
        await play_here(life, Commits(f"{side}:{number}", fail))
        await finish_here(life)
        assert _done(life) == _done(rehearsal), f"{side}:{number}\n{life}"
        shutil.rmtree(life.directory)


@pytest.mark.parametrize("scene", ["event", "parked", "fail", "batch"])
async def test_R4_the_store_fails_and_cannot_be_read(
    nursery: Nursery, tmp_path: Path, scene: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsal = Life(nursery, tmp_path / "rehearsal", (scene,))
    await finish_here(rehearsal)
    refused = 0
    for _, number in points(rehearsal):
        life = Life(nursery, tmp_path / str(number), (scene,))
        disk = Disk()
        with monkeypatch.context() as patch:
            patch.setattr(opening, "connect", disk.connect)
            await play_here(life, Commits(f"after:{number}", disk.go))
        await finish_here(life)
        assert _done(life) == _done(rehearsal), f"{number}\n{life}"
        refused += disk.refused
        shutil.rmtree(life.directory)
    assert refused > len(points(rehearsal))  # every time thrice, if each commit had a transaction of its own


class Disk:
    """Goes away for a moment, with what was just written on it."""

    _connect = staticmethod(opening.connect)

    def __init__(self) -> None:
        self.refused = 0
        self._away = 0

    def go(self) -> None:
        self._away = 3
        fail()

    def connect(self, path: Path) -> apsw.Connection:
        if self._away:
            self._away -= 1
            self.refused += 1
            fail()
        return self._connect(path)


def _done(life: Life) -> list[str]:
    """What was done to the world, once each."""
    return sorted(effect.what for effect in effects(life.directory))
