"""`keephold check`: what is wrong, what is missing, what is not acted on, and an exit code for scripts (L1, L3)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.trusting import write_trusted

from keephold.cli.check import check
from keephold.config.commands import program_of
from keephold.platforms import machine

LOCAL = '[conversation.tools.t]\nsource = "local"\n'


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(text: str, *options: str) -> Result:
    """With a port that nobody else on this machine can have taken."""
    write_trusted(Path("keephold.toml"), f"{text}\n[serve]\nport = 0\n")
    return CliRunner().invoke(check, options)


def report(text: str) -> dict[str, Any]:
    result = run(text, "--json")
    found: dict[str, Any] = json.loads(result.output)
    assert result.exit_code == (0 if found["ok"] else 1)
    return found


def test_L1_a_good_configuration_is_ok_and_each_tool_has_a_line() -> None:
    result = run(LOCAL + "command = ['sh', '-c', 'true']\nspawn.stateful = true\n")
    config, tool, cleanup, note, ok = result.output.splitlines()
    assert cleanup.startswith("processes are ended by mark ")
    assert "every call of `t` needs permission, and is refused where no person is there" in note
    assert result.exit_code == 0
    assert (config, ok) == (str(Path.cwd() / "keephold.toml"), "ok")
    assert tool.split()[:5] == ["t", "spawn", "fetch", "abort", "ask"]
    assert tool.split()[5].endswith("/sh")


def test_L3_json_has_the_facts_of_each_tool() -> None:
    Path("harbour.py").write_text("def f() -> str:\n    return ''\n")
    found = report(
        LOCAL + "command = 'sh -c true'\nrun = 'unattended'\n"
        "[conversation.tools.p]\nsource = 'python'\nfunction = 'harbour:f'\nrun = 'unattended'\nspawn.stateful = true\n"
        "[conversation.tools.await]\nsource = 'builtin'\n"
    )
    local, python, builtin = found.pop("tools")
    assert (found.pop("agents"), found.pop("servers")) == ([], [])
    assert found.pop("cleanup").startswith("by mark ")
    assert (found.pop("platform"), found.pop("weaker")) == (machine.name, list(machine.weaker))
    assert found == {"config": str(Path.cwd() / "keephold.toml"), "ok": True, "problems": [], "notes": []}
    assert local.pop("path").endswith("/sh")
    assert local == {
        "name": "t",
        "source": "local",
        "actions": [],
        "run": "unattended",
        "program": "sh",
        "found": True,
    }
    assert python == {
        "name": "p",
        "source": "python",
        "actions": ["spawn", "fetch", "abort"],
        "run": "unattended",
        "function": "harbour:f",
        "found": True,
    }
    assert builtin == {"name": "await", "source": "builtin", "actions": [], "run": "unattended", "found": True}


def test_L1_a_missing_program_is_a_problem_that_says_what_to_do() -> None:
    result = run(LOCAL + "command = ['no-such-program', 'x']\n")
    assert result.exit_code == 1
    assert "no-such-program: not found" in result.output
    assert (
        "problem: keephold.toml:3: conversation.tools.t.command: program `no-such-program` is not in PATH; "
        "install it, or write its whole path" in result.output
    )
    assert result.output.endswith("\n1 problem\n")


def test_L1_a_program_is_looked_for_where_it_would_be_started_from() -> None:
    tool = Path("sub/bin/tool")
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert report(LOCAL + "cwd = 'sub'\ncommand = 'bin/tool'\n")["ok"]
    assert report(LOCAL + f"env = {{ PATH = '{tool.parent.absolute()}' }}\ncommand = 'tool'\n")["ok"]
    (problem,) = report(LOCAL + "command = 'bin/tool'\n")["problems"]
    assert problem == (
        f"keephold.toml:3: conversation.tools.t.command: there is no program {Path.cwd()}/bin/tool; "
        "a relative path counts from the tool's `cwd`"
    )


def test_L1_a_missing_directory_is_a_problem() -> None:
    (problem,) = report(LOCAL + "command = 'sh'\ncwd = 'sub'\n")["problems"]
    assert problem.startswith("keephold.toml:4: conversation.tools.t.cwd: there is no directory ")


def test_L1_every_problem_is_listed_and_a_function_that_is_missing_is_one() -> None:
    found = report(
        LOCAL
        + "command = 'no-such-program'\n[conversation.tools.p]\nsource = 'python'\nfunction = 'no_such_module:f'\n"
    )
    assert [line.split(": ")[1] for line in found["problems"]] == [
        "conversation.tools.t.command",
        "conversation.tools.p.function",
    ]
    assert [tool["found"] for tool in found["tools"]] == [False, False]


def test_L1_a_wrong_configuration_is_reported_like_any_other_problem() -> None:
    found = report(LOCAL + "comand = 'sh'\n")
    assert [line.split(": ")[1] for line in found["problems"]] == [
        "conversation.tools.t.command",
        "conversation.tools.t.comand",
    ]
    assert found["tools"] == []


def test_L1_a_mistake_in_the_file_hides_nothing_that_is_missing() -> None:
    found = report(
        "[conversation]\ndetached = 'no'\n"
        + LOCAL
        + "command = ['no-such-program']\ncwd = 'nowhere'\ntimout_secs = 3\nparameters.p.type = 'str'\n"
        "[conversation.tools.p]\nsource = 'python'\nfunction = 'no_such_module:f'\nstateful = true\n"
        "[conversation.tools.f]\nsource = 'python'\nfunction = 3\n"
        "[conversation.tools.l]\nsource = 'local'\ncommand = ['ls -l']\n"
        "[conversation.tools.fine]\nsource = 'local'\ncommand = 'sh'\nrun = 'unattended'\n"
        "[store]\nurl = 'mysql://x'\n"
    )
    assert [":".join(line.split(": ")[:2]) for line in found["problems"]] == [
        "keephold.toml:2:conversation.detached",
        "keephold.toml:5:conversation.tools.t.command",
        "keephold.toml:6:conversation.tools.t.cwd",
        "keephold.toml:7:conversation.tools.t.timout_secs",
        "keephold.toml:8:conversation.tools.t.parameters.p.type",
        "keephold.toml:11:conversation.tools.p.function",
        "keephold.toml:12:conversation.tools.p.stateful",
        "keephold.toml:15:conversation.tools.f.function",
        "keephold.toml:18:conversation.tools.l.command",
        "keephold.toml:24:store.url",
    ]
    assert [tool["name"] for tool in found["tools"]] == ["fine"]
    assert found["notes"] == [], "what is wrong is not refused for want of permission"


def test_F1_the_resources_of_a_function_name_its_parameters() -> None:
    Path("quay.py").write_text("def f(path: str) -> str:\n    return path\n")
    text = "[conversation.tools.p]\nsource = 'python'\nfunction = 'quay:f'\nresources = ['{{ tool.arguments.%s }}']\n"
    assert report(text % "path")["ok"]
    assert report(text % "paht")["problems"] == [
        "keephold.toml:4: conversation.tools.p.resources.0: `tool.arguments.paht`: `p` has no such parameter; "
        "known: `path`; did you mean `path`?"
    ]


def test_L1_settings_without_effect_are_notes_and_no_problems() -> None:
    result = run(LOCAL + "command = 'sh'\nquestions.q.target = 'assistant'\nspawn.notifications.on_content = true\n")
    assert result.exit_code == 0
    assert "note: keephold.toml:4: conversation.tools.t.questions.q.target: there is no model to ask" in result.output
    assert "notifications" not in result.output
    assert report("")["notes"] == ["the configuration has no tools; a tool is a table [conversation.tools.<name>]"]


TERMINAL = "[conversation.tools.py]\nsource = 'terminal'\ncommand = ['sh', '-i']\nrun = 'unattended'\n"


def test_L1_the_program_of_a_terminal_is_looked_for() -> None:
    (tool,) = report(TERMINAL)["tools"]
    assert (tool["source"], tool["program"], tool["found"]) == ("terminal", "sh", True)
    assert tool["actions"] == ["spawn", "fetch", "apply", "abort"]
    (problem,) = report(TERMINAL.replace("'sh'", "'no-such-program'"))["problems"]
    assert problem.startswith("keephold.toml:3: conversation.tools.py.command: program `no-such-program` is not in")


def test_L1_a_missing_emulator_is_a_note_for_those_who_have_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert report(TERMINAL)["notes"] == []
    monkeypatch.setitem(sys.modules, "pyghostty", None)  # it cannot be imported
    (note,) = report(TERMINAL)["notes"]
    assert note.startswith("no terminal emulator is installed, so `py` will be in line mode")
    assert note.endswith("`pip install 'keephold[terminal]'` adds it")
    assert report(LOCAL + "command = 'sh'\nrun = 'unattended'\n")["notes"] == []


def test_M7_no_configuration_at_all_is_said_and_is_no_problem() -> None:
    result = CliRunner().invoke(check, ["--json"])
    said = json.loads(result.output)
    assert (result.exit_code, said["config"], said["ok"], said["problems"]) == (0, None, True, [])
    assert said["notes"][0].startswith(f"there is no keephold.toml in {Path.cwd()} or above it")
    assert CliRunner().invoke(check, ["--config", "elsewhere.toml"]).exit_code == 1


def test_L1_the_file_may_be_named() -> None:
    Path("other.toml").write_text(LOCAL + "command = 'sh'\n")
    result = CliRunner().invoke(check, ["--config", "other.toml", "--json"])
    assert json.loads(result.output)["config"] == str(Path.cwd() / "other.toml")


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["cargo", "check"], "cargo"),
        ("cargo check", "cargo"),
        ("'my cargo' check", "my cargo"),
        ({"program": "cargo", "args": ["check"]}, "cargo"),
        ({"program": "cargo check", "shell": True}, "sh"),
        (["{{ tool.arguments.program }}"], None),
        ("{{ tool.arguments.program }} check", None),
        ("bin/{% if tool.options.fast %}fast{% endif %} check", None),
    ],
)
def test_L1_the_program_of_a_command(command: Any, program: str | None) -> None:
    assert program_of(command) == program


@pytest.mark.cold
def test_L1_the_command_is_described_without_importing_the_configuration() -> None:
    code = "import sys, keephold.cli.check; print([m for m in ('pydantic', 'keephold.config') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
