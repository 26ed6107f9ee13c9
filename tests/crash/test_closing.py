"""R6: a runtime that is closed in good order, at any commit, loses no more than one that is killed there.

At some commits, and in the soak at every one."""

import shutil
from pathlib import Path

import pytest
from tests.crash.driver import NewLife
from tests.crash.here import finish_here, play_here, run_here
from tests.crash.points import chosen
from tests.crash.scenes import SCENES
from tests.crash.stage import Commits, play_until_closed


@pytest.mark.parametrize("scene", SCENES)
async def test_R6_closed_at_every_commit(new_life: NewLife, tmp_path: Path, scene: str) -> None:
    rehearsal = new_life(tmp_path / "rehearsal", (scene,))
    await finish_here(rehearsal)
    for earlier, number in chosen(rehearsal, "after"):
        life = new_life(tmp_path / f"{earlier}-{number}", (scene,))
        for _ in range(earlier):
            await play_here(life)
        commits = Commits(f"after:{number}")
        await run_here(life, lambda world, commits: play_until_closed((scene,), world, commits), commits)
        await finish_here(life)
        shutil.rmtree(life.directory)
