"""`keephold run`, and what `ps` and `send` say of handles that failed or wait (L1, P6)."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE

FILE = """
[store]
url = "sqlite:///k.db"

[conversation]
detached = "deny"

[conversation.tools.count]
source = "local"
command = ["sh", "-c", "echo one; echo two"]
run = "unattended"
spawn = { stateful = true }

[conversation.tools.bad]
source = "local"
command = ["sh", "-c", "exit 3"]
run = "unattended"
spawn = { stateful = true }

[conversation.tools.endless]
source = "local"
command = ["sh", "-c", "echo begun; sleep 1000"]
run = "unattended"
spawn = { stateful = true }

[conversation.tools.add]
source = "python"
function = "sums:add"
run = "unattended"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "keephold.toml").write_text(FILE)
    (tmp_path / "sums.py").write_text("def add(a: int, b: int) -> int:\n    return a + b\n")
    return tmp_path


def _keephold(place: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "keephold", *arguments]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=PATIENCE)


def test_L1_run_prints_what_a_tool_prints_and_its_result(place: Path) -> None:
    config, store = ("--config", "keephold.toml"), ("--store", "sqlite:///k.db")
    counted = _keephold(place, "run", "count", *config)
    assert (counted.returncode, counted.stdout) == (0, "one\ntwo\n"), counted.stderr
    summed = _keephold(place, "run", "add", "a=2", "b=3", *config)
    assert (summed.returncode, summed.stdout) == (0, "5\n"), summed.stderr
    failed = _keephold(place, "run", "bad", *config)
    assert failed.returncode == 1 and "exit code 3" in failed.stderr
    unknown = _keephold(place, "run", "nothing", *config)
    assert unknown.returncode == 2 and "there is no tool `nothing`" in unknown.stderr
    with subprocess.Popen(
        [sys.executable, "-m", "keephold", "run", "endless", *config], cwd=place, stdout=subprocess.PIPE, text=True
    ) as endless:
        assert endless.stdout is not None and endless.stdout.readline() == "begun\n"
        endless.send_signal(signal.SIGINT)
        assert endless.wait(PATIENCE) == 130
    listed = _keephold(place, "ps", "--all", "--json", *store).stdout.splitlines()
    facts = [json.loads(line) for line in listed]
    assert [fact["tool"] for fact in facts] == ["endless", "bad", "count"], "newest first"
    assert facts[0]["ended_by"] == "abort"
    (why,) = _keephold(place, "ps", "--failed", "--tool", "bad", *store).stdout.splitlines()[1:]
    assert why.endswith("The command ended with exit code 3.")
    assert _keephold(place, "ps", "-aq", "--tool", "count", "--since", "1h", *store).stdout.split() == [facts[2]["uid"]]
    assert _keephold(place, "ps", "-a", "--failed", *store).returncode == 2


def test_L1_run_says_what_starts_calls_where_it_cannot(place: Path) -> None:
    for store, instead in (("memory:", "--store"), ("postgresql://nobody@127.0.0.1:1/work", "`keephold turn`")):
        refused = _keephold(place, "run", "count", "--config", "keephold.toml", "--store", store)
        assert refused.returncode == 2 and "no server can start it" in refused.stderr, refused.stderr
        assert instead in refused.stderr
