"""`--help` of every command: what it says is complete, its examples are right, and `keephold help` says the same."""

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from keephold.cli import COMMANDS, GROUPS, main
from keephold.cli.pages import PAGES

EXAMPLES = [(name, line) for name in COMMANDS for _, line in PAGES[name].examples]
FILES = ("batches.jsonl", "more.jsonl", "key", "project/keephold.toml", "monday.tar")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments, prog_name="keephold")
    assert result.exit_code == 0, result.output
    return result.output


def test_every_command_has_a_page_and_no_page_is_of_none() -> None:
    assert set(PAGES) == set(COMMANDS)
    for page in PAGES.values():
        assert set(page.see) <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_it_does_and_ends_with_examples(name: str) -> None:
    said = run(name, "--help")
    titles = re.findall(r"^([A-Z][\w ]+):$", said, re.MULTILINE)
    exits = ["Exit codes"] if PAGES[name].exits else []
    command = main.get_command(click.Context(main), name)
    assert command is not None and command.help is not None
    parts = ["Commands"] if isinstance(command, click.Group) else []
    assert titles == ["Options", *parts, "Examples", *exits, "See also"]
    first = " ".join(command.help.strip().partition("\n\n")[0].split())
    assert first[0].isupper()
    assert first.endswith(".")


@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_an_example_is_a_command_that_is_understood(
    name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for file in FILES:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "archive").mkdir()
    (part,) = [part for part in re.split(r"[|<>]|&&|\$\(|\)", line) if re.match(r'\s*"?keephold ', part)]
    _, called, *arguments = shlex.split(part)
    command = main.get_command(click.Context(main), called)
    if isinstance(command, click.Group):
        called, *arguments = arguments
        command = command.get_command(click.Context(command), called)
    assert command is not None
    with command.make_context(called, [argument.replace("~", str(tmp_path)) for argument in arguments]):
        pass  # the options are there, and what they are given is right


@pytest.mark.parametrize("name", COMMANDS)
def test_help_command_says_the_same(name: str) -> None:
    assert run("help", name) == run(name, "--help")


def test_help_alone_lists_the_commands_by_purpose() -> None:
    said = run("help")
    assert said == run("--help")
    for purpose, group in GROUPS.items():
        assert f"\n{purpose}:\n" in said
        assert group


def test_help_of_an_unknown_command_names_the_nearest() -> None:
    result = CliRunner().invoke(main, ["help", "tol"], prog_name="keephold")
    assert result.exit_code == 2
    assert "No such command `tol`. Did you mean `tools`?" in result.stderr
