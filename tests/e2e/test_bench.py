"""`keephold bench` (L1): figures beside their raw limits, on a store of its own, which is gone afterwards."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.e2e.driver import until
from tests.patience import PATIENCE

from keephold.cli import bench as figures_module
from keephold.cli import main
from keephold.cli.bench import measured

NAMES = ["fsync", "step", "steps", "wake", "command"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures_module, "SECONDS", 0.1)


def bench(store: str, *words: str) -> Result:
    return CliRunner().invoke(main, ["bench", "--store", store, *words])


async def test_L1_each_figure_has_its_raw_limit(tmp_path: Path) -> None:
    figures = await measured(tmp_path, 0.1)
    assert [figure.name for figure in figures] == NAMES
    assert all(figure.raw > 0 for figure in figures)
    fsync, *others = figures
    assert fsync.ours is None and fsync.ratio is None
    for figure in others:
        assert figure.ours is not None and figure.ratio == figure.ours / figure.raw


@pytest.mark.usefixtures("quick")
def test_L1_the_store_is_not_touched_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    path.write_bytes(b"not a store")
    said = bench(f"sqlite:///{path}")
    assert said.exit_code == 0, said.output
    head, *rows = said.stdout.splitlines()
    assert head.split() == ["KEEPHOLD", "RAW", "RATIO", "RAW", "IS"] and len(rows) == len(NAMES)
    assert str(tmp_path) in said.stderr
    assert path.read_bytes() == b"not a store" and list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("quick")
def test_L3_scripts_get_one_object(tmp_path: Path) -> None:
    said = bench(f"sqlite:///{tmp_path / 'work.db'}", "--json")
    found = json.loads(said.stdout)
    assert said.stderr == "" and found["directory"] == str(tmp_path)
    assert [figure["name"] for figure in found["figures"]] == NAMES
    assert {figure["unit"] for figure in found["figures"]} == {"seconds", "per_second"}
    assert list(tmp_path.iterdir()) == []


def test_L1_a_store_without_a_disk_or_a_directory_is_refused(tmp_path: Path) -> None:
    for store, why in (("memory:", "no disk"), (f"sqlite:///{tmp_path / 'none' / 'work.db'}", "no directory")):
        said = bench(store)
        assert said.exit_code == 2 and why in said.output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_L1_nothing_is_left_when_it_is_stopped(tmp_path: Path, number: int, code: int) -> None:
    command = [sys.executable, "-m", "keephold", "bench", "--store", f"sqlite:///{tmp_path / 'work.db'}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        until(lambda: list(tmp_path.glob("*/ours.db")))
        os.kill(running.pid, number)
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == code and b"Traceback" not in said, said
    assert list(tmp_path.iterdir()) == []
