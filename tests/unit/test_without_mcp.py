"""The library without the package `mcp`: everything else works, and commands that need it say what to install."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.trusting import write_trusted

from keephold.errors import KeepholdError
from keephold.tools.remote import server

BLOCKED = "import sys\nsys.modules |= dict.fromkeys(('mcp', 'mcp_types'))\n"
PROGRAM = """
import asyncio
import keephold


@keephold.tool
async def add(a: int, b: int) -> int:
    return a + b


async def main() -> None:
    tools = [add, keephold.command(["echo", "hi"], name="hi")]
    async with keephold.Runtime(tools=tools, store="sqlite:///store.db") as rt, rt.turn() as turn:
        calls = [keephold.ToolCall("1", "add", {"a": 1, "b": 2}), keephold.ToolCall("2", "hi", {})]
        print([response.result for response in await turn.run(calls)])
    try:
        keephold.Runtime(servers=[keephold.mcp_server("x", command=["x"])])
    except keephold.KeepholdError as error:
        print(error.code, error.message)


asyncio.run(main())
"""
COMMANDS = """
from click.testing import CliRunner
from keephold import cli

for words in (["tools"], ["check"], ["mcp", "--store", "memory:"], ["serve", "--store", "memory:"]):
    result = CliRunner().invoke(cli.main, words)
    print(words[0], result.exit_code, [line for line in result.output.splitlines() if "pip install" in line])
"""
CONFIG = """
[conversation.tools.greet]
source = "local"
command = ["echo", "hello"]

[serve]
host = "127.0.0.1"
"""


def run(program: str, directory: Path) -> str:
    command = [sys.executable, "-c", BLOCKED + program]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_Y1_functions_and_commands_work_without_mcp(tmp_path: Path) -> None:
    values, refused = run(PROGRAM, tmp_path).splitlines()
    assert values == r"['3', 'hi\n']"
    assert refused == "missing_extra MCP needs the package mcp, which is not installed: pip install 'keephold[mcp]'"


def test_L1_a_command_that_needs_mcp_says_in_one_line_how_to_install_it(tmp_path: Path) -> None:
    write_trusted(tmp_path / "keephold.toml", CONFIG)
    tools, check, mcp, serve = run(COMMANDS, tmp_path).splitlines()
    assert tools == "tools 0 []"
    assert check.startswith("check 0 ") and "keephold[serve]" in check
    assert mcp.startswith('mcp 2 ["') and mcp.endswith("pip install 'keephold[mcp]'\"]")
    assert serve.startswith('serve 2 ["') and serve.endswith("pip install 'keephold[serve]'\"]")


def test_L1_an_older_mcp_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "version", lambda _: "1.30.0")
    with pytest.raises(KeepholdError, match=r"needs mcp 2, but mcp 1\.30\.0 is installed"):
        server.need_mcp()
