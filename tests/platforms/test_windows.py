"""keephold on Windows, as far as an interpreter on Linux can look like one there (`like_windows.py`)."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from tests.patience import PATIENCE

PROGRAM = str(Path(__file__).with_name("on_windows.py"))
NO_PROGRAMS = "keephold does not run programs on Windows; use a function, an MCP server with a `url`, or WSL"
FUNCTIONS = """
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
"""
CONFIG = """
[conversation.tools.add]
source = "python"
function = "sums:add"
run = "unattended"
"""
PROGRAMS = """
[conversation.tools.log]
source = "local"
command = ["git", "log"]
[conversation.tools.repl]
source = "terminal"
command = ["python"]
[mcp.servers.files]
command = ["mcp-files"]
[agents.coder]
description = "Writes code."
command = ["coder"]
"""
pytestmark = [pytest.mark.slow, pytest.mark.cold]


def run(*words: str, cwd: Path | None = None, code: int = 0, given: str = "") -> str:
    """Run a part of the program, and return what it printed."""
    env = os.environ | {"COLUMNS": "200"}
    argv = [sys.executable, PROGRAM, *words]
    ran = subprocess.run(argv, input=given, capture_output=True, text=True, cwd=cwd, env=env)
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "sums.py").write_text(FUNCTIONS)
    (tmp_path / "k.toml").write_text(CONFIG)
    return tmp_path


def test_every_module_is_imported_on_windows() -> None:
    run("imports")


@pytest.mark.parametrize("store", ["memory:", "sqlite:///work.db"])
def test_functions_and_deferred_results_on_windows_and_no_process(store: str, tmp_path: Path) -> None:
    (tmp_path / "work.db").touch()  # an empty file is replaced
    assert run("runs", store, cwd=tmp_path) == f"{NO_PROGRAMS}.\n"


def test_a_store_in_postgresql_on_windows(postgres: str) -> None:
    assert run("runs", postgres) == f"{NO_PROGRAMS}.\n"


def test_a_durable_step_is_not_repeated_after_a_crash_on_windows(tmp_path: Path) -> None:
    assert run("order", "sqlite:///work.db", cwd=tmp_path, code=7) == "did charge\n"
    assert run("order", "sqlite:///work.db", cwd=tmp_path) == "did ship\nsaid charge ship\n"


def test_programs_are_refused_by_name_on_windows(tmp_path: Path) -> None:
    names = ("tool `git`", "tool `python`", "MCP server `files`")
    assert run("refuses") == "".join(f"{name}: {NO_PROGRAMS}\n" for name in names)
    (tmp_path / "k.toml").write_text(PROGRAMS)
    report = json.loads(run("keephold", "check", "--config", "k.toml", "--json", cwd=tmp_path, code=1))
    refused = ("conversation.tools.log", "conversation.tools.repl", "mcp.servers.files", "agents.coder")
    assert [problem.partition(": ")[2] for problem in report["problems"]] == [
        f"{name}.command: {NO_PROGRAMS}" for name in refused
    ]
    assert report["platform"] == "windows"
    assert "`keephold chat` does not run here" in run("keephold", "chat", code=2)
    run("keephold", "init", "first", cwd=tmp_path)
    run("keephold", "check", "--config", "first/keephold.toml", cwd=tmp_path)


async def test_a_server_on_windows_serves_http_and_mcp_and_is_the_only_one_to_write(place: Path) -> None:
    words = ["serve", "--config", "k.toml", "--port", "0", "--store", "sqlite:///work.db"]
    server = subprocess.Popen(
        [sys.executable, PROGRAM, "keephold", *words], cwd=place, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    with server, server.stderr:
        try:
            said = server.stderr.readline()
            assert said.startswith("keephold at "), said + server.stderr.read()
            url, token = said.split()[2], (place / "work.db-token").read_text().strip()
            async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE) as http:
                assert (await http.get(f"{url}healthz")).status_code == 200
                assert "keephold" in (await http.get(url)).text
                async with Client(streamable_http_client(f"{url}mcp", http_client=http)) as client:
                    assert "5" in str(await client.call_tool("add", {"a": 2, "b": 3}))
            store = ("--store", "sqlite:///work.db")
            assert "no live call" in run("keephold", "ps", *store, cwd=place)  # others may read beside it
            refused = run("keephold", "abort", "1", *store, cwd=place, code=2)
            assert "another process has `work.db` open, and on this system one process at a time writes" in refused
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 128 + signal.SIGTERM


def test_a_turn_over_pipes_on_windows(place: Path) -> None:
    batch = json.dumps({"calls": [{"id": "1", "name": "add", "arguments": {"a": 2, "b": 3}}]})
    assert '"result":"5"' in run("keephold", "turn", "--config", "k.toml", cwd=place, given=batch)


async def test_mcp_over_stdio_on_windows(place: Path) -> None:
    words = [PROGRAM, "keephold", "mcp", "--config", "k.toml", "--store", "sqlite:///work.db"]
    program = StdioServerParameters(command=sys.executable, args=words, cwd=place, env=dict(os.environ))
    async with Client(stdio_client(program)) as client:
        assert "5" in str(await client.call_tool("add", {"a": 2, "b": 3}))
