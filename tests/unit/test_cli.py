"""The command line as a whole: fast help, lazy commands, errors in words. Each command has tests of its own."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from tests.trusting import write_trusted

from keephold import Runtime, ToolCall, tool
from keephold.cli import COMMANDS, main

CONFIG = """
[conversation.tools.greet]
source = "local"
command = ["echo", "hello {{ tool.arguments.name }}"]
description = "Say hello.\\nTo anyone."
run = "unattended"
[conversation.tools.greet.parameters.name]
type = "string"
required = true

[conversation.tools.watch]
source = "local"
command = ["tail", "-f", "log"]
description = "Watch \\u001b[31mthe log."
[conversation.tools.watch.spawn]
stateful = true
"""


def keephold(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="keephold")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_trusted(tmp_path / "keephold.toml", CONFIG)


@pytest.mark.cold
def test_help_imports_no_command_and_nothing_heavy() -> None:
    program = (
        "import sys; from keephold.cli import main; main(['--help'], standalone_mode=False);"
        "print(*sys.modules, file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(run.stderr.split())
    assert {name for name in imported if name.startswith("keephold.")} == {"keephold.cli", "keephold.errors"}
    assert not imported & {"asyncio", "difflib", "importlib.metadata", "jinja2", "jsonschema_rs", "msgspec", "pydantic"}
    for name, (_, line) in COMMANDS.items():
        assert name in run.stdout
        assert line in run.stdout


@tool(actions=("spawn",), run="unattended")
async def nap() -> None:
    """Never end."""
    await asyncio.Event().wait()


@pytest.mark.cold
async def test_ps_imports_only_what_reads_and_lists(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    program = (
        f"import sys; from keephold.cli import main; main(['ps', '--store', {store!r}], standalone_mode=False);"
        "print(*sys.modules, file=sys.stderr)"
    )
    async with Runtime(tools=[nap], store=store) as rt, rt.turn("main") as turn:
        await turn.run([ToolCall("1", "nap", {"action": "spawn", "id": "one"})])
        run = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
    assert "one" in run.stdout
    imported = set(run.stderr.split())
    writes = {"keephold.store.sqlite.store", "keephold.store.sqlite.writer", "keephold.store.sql.operations"}
    runs = {"keephold.config", "keephold.engines", "keephold.runtime", "keephold.schema", "keephold.turn"}
    runs |= {"keephold.handles.output", "keephold.tools.base", "keephold.tools.builtin"}
    assert not imported & (writes | runs | {"httpx2", "jinja2", "jsonschema_rs", "pydantic", "rich", "textual"})


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_has_help(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert isinstance(command, click.Command)
    assert command.name == name
    result = keephold(name, "--help")
    assert result.exit_code == 0
    assert command.help


def test_version() -> None:
    result = keephold("--version")
    assert result.exit_code == 0
    assert result.output.startswith("keephold ")
    assert result.output.split()[1][0].isdigit()


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("tool", "Did you mean `tools`?"),
        ("xyzzy", f"There are: {', '.join(COMMANDS)}."),
    ],
)
def test_an_unknown_command_gets_the_nearest(typed: str, told: str) -> None:
    result = keephold(typed)
    assert result.exit_code == 2
    assert f"No such command `{typed}`. {told}" in result.stderr


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["--store", "sqlite:///a.db", "ps"], "`--store` must come after the command: `keephold ps --store URL`"),
        (["--json", "ps", "--all"], "`--json` must come after the command: `keephold ps --json`"),
        (["--keys", "ps"], "No such option '--keys'."),
    ],
)
def test_an_option_before_its_command_is_told_its_place(typed: list[str], told: str) -> None:
    result = keephold(*typed)
    assert result.exit_code == 2
    assert f"Error: {told}\n" in result.stderr


def test_a_wrong_configuration_is_told_in_words_with_exit_code_2(config: Path) -> None:
    config.write_text(CONFIG.replace("command =", "comand =", 1))
    result = keephold("tools", "--config", str(config))
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)  # and no traceback
    assert "comand" in result.stderr
    assert result.stdout == ""


def test_G3_tools_prints_a_table_for_people(config: Path) -> None:
    result = keephold("tools", "--config", str(config))
    assert result.exit_code == 0, result.output
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["NAME", "ACTIONS", "DESCRIPTION"]
    listed = {row.split()[0]: row for row in rows}
    assert listed["greet"].split() == ["greet", "-", "Say", "hello."]
    assert listed["watch"].split()[1:4] == ["spawn", "fetch", "abort"]


def test_K4_tools_strips_control_characters(config: Path) -> None:
    result = keephold("tools", "--config", str(config))
    assert "\x1b" not in result.stdout
    assert "the log." in result.stdout


def test_G3_tools_finds_the_configuration_upwards(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = config.parent / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert "greet" in keephold("tools").stdout


def test_M7_commands_without_a_configuration_say_what_would_be_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = keephold("tools")
    assert (result.exit_code, result.stdout.split()) == (0, ["NAME", "ACTIONS", "DESCRIPTION"])
    assert f"no keephold.toml in {tmp_path} or above it" in result.stderr and "--config" in result.stderr


def test_G3_tools_prints_the_dialect_asked_for(config: Path) -> None:
    generic = json.loads(keephold("tools", "--config", str(config), "--json").stdout)
    assert {"name", "description", "parameters"} == set(generic[0])
    assert generic == json.loads(keephold("tools", "--config", str(config), "--dialect", "generic").stdout)
    canonical = json.loads(keephold("tools", "--config", str(config), "--dialect", "canonical").stdout)
    watch = next(tool for tool in canonical if tool["name"] == "watch")
    assert "oneOf" in watch["parameters"]


def test_G3_an_unknown_dialect_lists_the_known() -> None:
    result = keephold("tools", "--dialect", "klingon")
    assert result.exit_code == 2
    assert "openai-strict" in result.stderr
