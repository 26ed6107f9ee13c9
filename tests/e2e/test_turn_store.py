"""`keephold turn` on a store that survives it: what is parked, resumed, or fails the turn (Y1, B9, D10, D11)."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.driver import until
from tests.patience import PATIENCE
from tests.trusting import write_trusted

from keephold.cli.turn import PARK_AFTER_SECS

OFFICE = '''
from pathlib import Path
import keephold

@keephold.tool(actions=("spawn", "fetch", "abort"))
async def approve(call: keephold.Call) -> keephold.Pending:
    """Waits for somebody outside."""
    Path("key").write_text(await call.completion_key())
    return keephold.Pending()

@keephold.tool
async def urgent(call: keephold.Call) -> keephold.Pending:
    """Waits, but not for long."""
    await call.completion_key()
    return keephold.Pending(deadline=1, on_timeout="fail_turn")

@keephold.tool
async def echo(text: str) -> str:
    """Gives it back."""
    return text
'''
CONFIG = "".join(
    f'[conversation.tools.{name}]\nsource = "python"\nfunction = "office:{name}"\nrun = "unattended"\n'
    for name in ("approve", "urgent", "echo")
)
IMPATIENT = "import keephold.cli.turn as turn; turn.PARK_AFTER_SECS = 0.2; from keephold.cli import main; main()"


class Office:
    """A directory with tools, and commands in it. Its user has a state directory of their own."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self._stack = stack
        (directory / "office.py").write_text(OFFICE)
        write_trusted(directory / "keephold.toml", CONFIG, directory / "state")

    def start(self, *arguments: str, program: tuple[str, ...] = ("-m", "keephold")) -> "subprocess.Popen[str]":
        environment = {key: value for key, value in os.environ.items() if not key.startswith("KEEPHOLD_")}
        process = subprocess.Popen(
            [sys.executable, "-W", "error", *program, *arguments],
            cwd=self.directory,
            env={**environment, "XDG_STATE_HOME": str(self.directory / "state"), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._stack.callback(_end, process)
        return process

    def run(self, *arguments: str, batches: list[list[tuple[str, Any]]] | None = None) -> tuple[int, list[Any], str]:
        """A whole command: its exit code, the lines it printed, and stderr. Lines are JSON unless they are none."""
        process = self.start(*arguments)
        out, err = process.communicate("".join(map(batch, batches or [])), PATIENCE)
        assert "Traceback" not in err
        return process.returncode, [_read(line) for line in out.splitlines()], err

    def key(self) -> str:
        """The key that `approve` took."""
        until((self.directory / "key").exists)
        until(lambda: (self.directory / "key").read_text())
        return (self.directory / "key").read_text()


def batch(calls: list[tuple[str, Any]]) -> str:
    labelled = [{"id": str(at), "name": name, "arguments": given} for at, (name, given) in enumerate(calls)]
    return json.dumps({"calls": labelled}) + "\n"


def _read(line: str) -> Any:
    return json.loads(line) if line.startswith("{") else line


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        stream.close()


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    with ExitStack() as stack:
        yield Office(tmp_path, stack)


def test_Y1_a_turn_leaves_what_is_parked_in_the_users_store(office: Office) -> None:
    spawned = [("approve", {"action": "spawn", "id": "a"}), ("await", {"all": ["a"], "timeout_secs": 1})]
    code, (answer, ended), err = office.run("turn", "--conversation", "main", batches=[spawned])
    assert (code, err) == (0, "")
    (pending,) = json.loads(answer["responses"][1]["result"])["pending"]
    assert pending == {"id": "a", "state": "running", "parked": True}
    assert ended == {"turn": "ended", "handles": []}
    directory = office.directory / "state" / "keephold"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "keephold.db").stat().st_mode) == 0o600
    _, (listed,), _ = office.run("ps", "--json")
    assert (listed["id"], listed["parked"], listed["conversation"]) == ("a", True, "main")
    assert office.run("complete", office.key(), "--ok", '"yes"')[:2] == (0, ["accepted"])
    waited = [("await", {"all": ["a"]})]
    _, (answer, _), _ = office.run("turn", "--conversation", "main", batches=[waited])
    assert json.loads(answer["responses"][0]["result"]) == {
        "completed": [{"id": "a", "state": "stopped", "result": "yes"}],
        "pending": [],
    }


def test_Y1_memory_stays_possible_and_makes_no_file(office: Office) -> None:
    code, lines, _ = office.run("turn", "--store", "memory:", batches=[[("echo", {"text": "hello"})]])
    assert code == 0
    assert lines[0]["responses"] == [{"id": "0", "result": "hello"}]
    assert [file.name for file in (office.directory / "state" / "keephold").iterdir()] == ["trusted.json"]


def test_D10_a_one_shot_call_that_is_parked_keeps_its_batch_waiting_for_30_seconds(office: Office) -> None:
    assert PARK_AFTER_SECS == 30
    process = office.start("turn", program=("-c", IMPATIENT))
    out, err = process.communicate(batch([("approve", {}), ("echo", {"text": "hello"})]), PATIENCE)
    assert err == ""
    parked, echoed = json.loads(out.splitlines()[0])["responses"]
    assert json.loads(parked["result"]) == {"id": "call:0", "state": "running", "parked": True}
    assert echoed["result"] == "hello"
    _, (shown,), _ = office.run("show", "call:0", "--json")
    assert (shown["tool"], shown["parked"], shown["call_id"]) == ("approve", True, "0")


def test_B9_a_turn_whose_process_was_killed_is_resumed(office: Office) -> None:
    process = office.start("turn", "--conversation", "main")
    assert process.stdin is not None
    process.stdin.write(batch([("approve", {}), ("echo", {"text": "hello"})]))
    process.stdin.flush()
    office.key()
    until(lambda: office.run("ps", "--json", "--state", "parked")[1])
    taken = office.run("turn", "--conversation", "main", "--resume")
    assert (taken[0], taken[1]) == (2, [])
    assert "conversation `main` has an open turn" in taken[2]
    process.kill()
    process.wait()
    assert office.run("complete", office.key(), "--ok", '"yes"')[0] == 0
    code, lines, err = office.run("turn", "--conversation", "main", "--resume", batches=[[("echo", {"text": "next"})]])
    assert (code, err) == (0, "")
    answers = [{"id": "0", "result": "yes"}, {"id": "1", "result": "hello"}]
    assert lines == [
        {"responses": answers, "notifications": []},
        {"responses": [{"id": "0", "result": "next"}], "notifications": []},
        {"turn": "ended", "handles": []},
    ]
    code, lines, _ = office.run("turn", "--conversation", "main", "--resume")  # nothing is left to go on with
    assert (code, lines) == (0, [{"turn": "ended", "handles": []}])


def test_D11_a_failed_turn_says_so_and_reads_no_further(office: Office) -> None:
    process = office.start("turn")
    out, err = process.communicate(
        batch([("urgent", {}), ("approve", {})]) + batch([("echo", {"text": "x"})]), PATIENCE
    )
    answer, failed, ended = map(json.loads, out.splitlines())
    assert answer["responses"] == [
        {"id": "0", "error": "pending tool completion timed out"},
        {"id": "1", "result": "pending tool completion cancelled"},
    ]
    assert failed == {"turn": "failed", "error": "pending tool completion timed out"}
    assert ended == {"turn": "ended", "handles": []}
    assert (process.returncode, err) == (1, "")
