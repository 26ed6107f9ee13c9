"""keephold on macOS, on Linux without /proc, and with process groups alone, each in a process of its own."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.patience import until

from keephold.platforms import Portable

PROGRAM = str(Path(__file__).with_name("elsewhere.py"))
NO_PROC = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
pytestmark = [pytest.mark.slow, pytest.mark.cold]


def ran(*argv: str) -> str:
    run = subprocess.run(argv, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_every_module_is_imported_on_macos_and_functions_commands_and_terminals_run(tmp_path: Path) -> None:
    assert "platform portable" in ran(sys.executable, PROGRAM, "darwin", str(tmp_path / "store.db"))


def test_functions_commands_and_terminals_run_on_linux_without_proc(tmp_path: Path) -> None:
    if not shutil.which("unshare") or subprocess.run([*NO_PROC, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let a test hide /proc")
    printed = ran(*NO_PROC, sys.executable, PROGRAM, "here", str(tmp_path / "store.db"))
    assert "platform portable does not list" in printed


async def test_R2_process_groups_end_with_a_runtime_that_is_killed_where_processes_cannot_be_listed() -> None:
    env = os.environ | {"KEEPHOLD_PLATFORM": "portable"}
    runtime = subprocess.Popen([sys.executable, PROGRAM, "stays"], stdout=subprocess.PIPE, text=True, env=env)
    assert runtime.stdout is not None
    with runtime, runtime.stdout:
        group = int(runtime.stdout.readline())
        assert os.getpgid(group) == group
        runtime.send_signal(signal.SIGKILL)
    await until(lambda: not runs(group))


def runs(group: int) -> bool:
    """Whether a process of the group runs. In a container, nobody may reap those that have ended."""
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                return True
    return False


def test_a_fault_of_psutil_is_not_taken_for_a_process_that_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Portable()
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert (machine.command_of(ended.pid), machine.started(ended.pid)) == ([], 0)
    monkeypatch.setattr(psutil, "Process", lambda _: 1 // 0)
    for ask in (machine.command_of, machine.started):
        with pytest.raises(ZeroDivisionError):
            ask(os.getpid())
