"""The oldest version of the package `mcp` that keephold accepts, in place of the locked one (M1, M6)."""

import os
import subprocess
import sys

import pytest
from tests.interop.foreign import ROOT, need
from tests.soak import SOAK

OLDEST = ROOT / "build" / "mcp-oldest"
SAMPLE = (
    "tests/mcp/test_asking.py::test_P1_a_tool_of_a_file_is_run_when_its_user_says_so[legacy]",
    "tests/e2e/test_mcp_servers.py::test_M6_tools_are_listed_called_and_answered[stdio-modern]",
)
ALL = ("tests/mcp", "tests/e2e/test_mcp_servers.py", "tests/e2e/test_mcp_tasks.py", "tests/e2e/test_mcp_loss.py")


@pytest.mark.timeout(1800 if SOAK else 240)
def test_M1_M6_the_oldest_accepted_version_serves_and_calls() -> None:
    need(OLDEST)
    wanted = (ROOT / "tests" / "interop" / "mcp-oldest.in").read_text().splitlines()[0].removeprefix("mcp==")
    assert (OLDEST / f"mcp-{wanted}.dist-info").exists()
    assert f'"mcp>={wanted.rpartition(".")[0]},' in (ROOT / "pyproject.toml").read_text()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(OLDEST), str(ROOT)))}
    command = [sys.executable, "-m", "pytest", "-q", *(ALL if SOAK else SAMPLE)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
