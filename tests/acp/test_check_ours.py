"""Our own agent passes the conformance kit, with nothing left out (X5)."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acp.editor import ROOT, config, script

from keephold.acp.check import CHECKS, Report, Settings, run

LONG = 60.0
PROMPT = script({"text": ["a "], "calls": [["1", "look", {"path": "a.txt"}], ["2", "floods", {"lines": 200}]]})
ASKING = script({"calls": [["1", "asked", {"word": "x"}]]})
SLOW = script({"text": ["a "], "calls": [["1", "hangs", {}], ["2", "job", {"action": "spawn", "id": "j"}]]})


@pytest.fixture(scope="module")
def keephold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """The command `keephold`; the kit starts it some twenty times."""
    place = tmp_path_factory.mktemp("warm")
    door = str(place / "door")
    serving = [sys.executable, "-m", "tests.acp.agents.warm", door]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(serving, stdout=subprocess.PIPE, env=env, cwd=place) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield (sys.executable, "-I", "-S", str(ROOT / "tests" / "acp" / "agents" / "warm.py"), door)
        process.terminate()


async def examine(
    directory: Path, keephold: tuple[str, ...], more: str = "", only: tuple[str, ...] = ()
) -> tuple[Report, list[tuple[str, str]]]:
    """The report, and what was not passed with the reason."""
    command = (*keephold, "acp", "--config", str(config(directory, more)), "--store", f"sqlite:///{directory}/store.db")
    report = await run(Settings(command, LONG, prompt=PROMPT, permission_prompt=ASKING, slow_prompt=SLOW), only)
    return report, [(each.name, each.why) for each in report.checks if each.outcome != "passed"]


async def test_X5_our_agent_passes_every_check(tmp_path: Path, keephold: tuple[str, ...]) -> None:
    report, left = await examine(tmp_path, keephold)
    assert left == []
    assert [each.name for each in report.checks] == [check.name for check in CHECKS]
    assert report.agent["name"] == "keephold"


async def test_X5_our_agent_passes_with_the_other_form_of_the_signal(tmp_path: Path, keephold: tuple[str, ...]) -> None:
    only = ("turn_complete", "updates", "cancel-order")
    report, left = await examine(tmp_path, keephold, '[acp]\nturn_complete = "update"\n', only)
    assert left == [] and report.count("passed") == 12
