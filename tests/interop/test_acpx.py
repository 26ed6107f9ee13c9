"""acpx, a headless client that somebody else made, drives `keephold acp` (X1, X2).

What it prints is every message in both directions, one a line. Nothing on its standard error means that it has taken
all of ours. `--no-terminal` where the end is looked at: a terminal is given back when the turn may be over.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from tests.acp.editor import config, script
from tests.interop.acp_turns import Message, answer, ended, prompts, statuses, text, updates
from tests.interop.foreign import ACPX, NODE, NPM_ROOT, ROOT, need
from tests.soak import SOAK

soak = pytest.mark.skipif(not SOAK, reason="runs with KEEPHOLD_SOAK=1")
DENIED = 5
"""The exit code for a run in which nothing was permitted."""


class Run(NamedTuple):
    """What acpx has printed."""

    code: int
    messages: list[Message]
    stderr: str

    @property
    def prompt(self) -> Message:
        (prompt,) = prompts(self.messages)
        return prompt


def acpx(
    directory: Path,
    steps: str,
    *options: str,
    more: str = "",
    interrupt_at: str | None = None,
    interrupt: Callable[[subprocess.Popen[bytes]], None] = lambda process: process.send_signal(signal.SIGINT),
) -> Run:
    """One prompt, in a session of its own; with `interrupt_at`, interrupted when that is said."""
    need(NPM_ROOT)
    file = config(directory, more)
    agent = f"{sys.executable} -m keephold acp --config {file} --store sqlite:///{directory}/store.db"
    command = [str(NODE), str(NPM_ROOT / "node_modules" / ACPX), "--agent", agent, "--cwd", str(directory)]
    command += [*options, "--format", "json", "exec", steps]
    ours = {"HOME": str(directory), "PYTHONPATH": str(ROOT), "NODE_COMPILE_CACHE": str(NPM_ROOT / "compiled")}
    env = {**os.environ, **ours, "FS_SAFE_NATIVE_MODE": "off"}  # its compiled code is not installed
    messages = []
    with (
        (directory / "stderr").open("w") as stderr,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=env) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                messages.append(json.loads(line))
                if interrupt_at is not None and interrupt_at in line.decode():
                    interrupt(process)
                    interrupt_at = None
        except BaseException:
            process.kill()  # or it would be waited for
            raise
    return Run(process.returncode, messages, (directory / "stderr").read_text())


def test_X2_a_turn_with_tool_calls_and_permission(tmp_path: Path) -> None:
    calls = [["1", "asked", {"word": "x"}], ["2", "look", {"path": "a.txt"}], ["3", "fails", {}]]
    steps = script({"think": "hm", "text": ["a ", "b "], "calls": calls})
    run = acpx(tmp_path, steps, "--approve-all", "--no-terminal")
    assert (run.code, run.stderr) == (0, "")
    assert ended(run.messages, run.prompt) == "end_turn"
    assert run.messages[-1] == answer(run.messages, run.prompt)
    told = updates(run.messages, run.prompt)
    assert text(told) == "a b done"
    assert statuses(told, "1") == statuses(told, "2") == ["pending", "in_progress", "completed"]
    assert statuses(told, "3") == ["pending", "in_progress", "failed"]
    chosen = [each["result"]["outcome"] for each in run.messages if "outcome" in each.get("result", {})]
    assert chosen == [{"outcome": "selected", "optionId": "allow_once"}]


def test_X2_a_turn_whose_signal_is_off_and_in_which_nothing_is_permitted(tmp_path: Path) -> None:
    steps = script({"calls": [["1", "asked", {"word": "x"}]]})
    run = acpx(tmp_path, steps, "--deny-all", more='[acp]\nturn_complete = "off"\n')
    assert (run.code, run.stderr) == (DENIED, "")
    told = updates(run.messages, run.prompt)
    assert statuses(told, "1") == ["pending", "failed"]
    assert text(told) == "done"
    assert run.messages[-1] == {"jsonrpc": "2.0", "id": run.prompt["id"], "result": {"stopReason": "end_turn"}}
    offers = next(each["result"]["agentCapabilities"] for each in run.messages if "result" in each)
    assert "turn_complete" not in str(run.messages) and "turnComplete" not in str(offers)


def test_X2_a_turn_spawns_a_build_and_awaits_it(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    spawn = ["1", "build", {"action": "spawn", "id": "b", "file": str(tmp_path / "gate")}]
    run = acpx(tmp_path, script({"calls": [spawn]}, {"calls": [["2", "await", {"all": ["b"]}]]}), "--approve-all")
    assert (run.code, run.stderr) == (0, "")
    assert ended(run.messages, run.prompt) == "end_turn"
    told = updates(run.messages, run.prompt)
    assert statuses(told, "1")[-1] == statuses(told, "2")[-1] == "completed"
    assert "begun" in str(told) and "ended" in str(told)


def _agent(client: psutil.Process) -> psutil.Process:
    (agent,) = (each for each in client.children(recursive=True) if "acp" in each.cmdline())
    return agent


@soak
def test_X1_a_killed_client_leaves_no_process(tmp_path: Path) -> None:
    left = list[psutil.Process]()

    def kill(process: "subprocess.Popen[bytes]") -> None:
        agent = _agent(psutil.Process(process.pid))
        left.extend([agent, *agent.children(recursive=True)])
        process.kill()

    steps = script({"calls": [["1", "build", {"action": "spawn", "id": "b", "file": "never"}], ["2", "hangs", {}]]})
    run = acpx(tmp_path, steps, "--approve-all", interrupt_at="hanging", interrupt=kill)
    assert run.code == -signal.SIGKILL and left
    assert psutil.wait_procs(left, timeout=60)[1] == []
    assert acpx(tmp_path, script({"text": ["a"]}), "--approve-all").code == 0


@soak
def test_X1_a_killed_agent_ends_the_client_and_the_next_one_works(tmp_path: Path) -> None:
    steps = script({"calls": [["1", "hangs", {}]]})

    def kill(process: subprocess.Popen[bytes]) -> None:
        return _agent(psutil.Process(process.pid)).kill()

    assert acpx(tmp_path, steps, "--approve-all", interrupt_at="hanging", interrupt=kill).code != 0
    run = acpx(tmp_path, script({"text": ["a"]}), "--approve-all")
    assert (run.code, ended(run.messages, run.prompt)) == (0, "end_turn")


def test_X4_a_turn_that_is_interrupted(tmp_path: Path) -> None:
    steps = script({"text": ["a"], "calls": [["1", "hangs", {}]]})
    run = acpx(tmp_path, steps, "--approve-all", interrupt_at="hanging")
    assert run.stderr == ""
    assert ended(run.messages, run.prompt) == "cancelled"
    assert run.messages[-1] == answer(run.messages, run.prompt)
    assert statuses(updates(run.messages, run.prompt), "1") == ["pending", "in_progress", "failed"]


def test_X2_the_form_that_is_an_update_is_noise_to_a_client_that_did_not_ask_for_it(tmp_path: Path) -> None:
    """Why it is not the default: acpx complains about it, and goes on."""
    run = acpx(tmp_path, script({"text": ["a"]}), "--approve-all", more='[acp]\nturn_complete = "update"\n')
    assert run.code == 0
    assert "Invalid params" in run.stderr and "turn_complete" in run.stderr
    told = {"sessionUpdate": "turn_complete", "promptRequestId": str(run.prompt["id"]), "stopReason": "end_turn"}
    assert updates(run.messages, run.prompt)[-1] == told
    assert run.messages[-1] == {"jsonrpc": "2.0", "id": run.prompt["id"], "result": {"stopReason": "end_turn"}}
    assert str(run.messages).count("'turn_complete'") == 1
