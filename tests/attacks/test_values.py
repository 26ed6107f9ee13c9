"""Values of calls in commands that read them as code or as options: `keephold check` warns of each by name (K3)."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.trusting import write_trusted

import keephold
from keephold.cli.check import check
from keephold.config.commands import risky_values

TEXT = {"x": {"type": "string"}}
X = "{{ tool.arguments.x }}"


def shell(script: str) -> dict[str, Any]:
    return {"program": script, "shell": True}


@pytest.mark.parametrize(
    ("command", "reader"),
    [
        (["python3", "-c", f"print('{X}')"], "python3 -c"),
        (["/usr/bin/python3.11", "-Ic", f"print('{X}')"], "python3.11 -c"),
        (["docker", "exec", "box", "perl", "-ne", f"print if /{X}/"], "perl -e"),
        (["node", "--eval", X], "node --eval"),
        (f"awk '/{X}/ {{ print }}' notes.txt", "awk"),
        (["awk", "-v", "n=1", f"/{X}/", "notes.txt"], "awk"),
        (["sed", "-n", f"s/a/{X}/p", "notes.txt"], "sed"),
        (["su", "-", "me", "-c", f"ls {X}"], "su -c"),
        (shell(f'sudo su me -c "ls {X}" | wc -l'), "su -c"),
        (shell(f"sh -c 'echo {X}'"), "sh -c"),
        (shell(f"cd src && bash -c 'make {X}'; echo done"), "bash -c"),
        (["sh", "-c", f'python -c "print({X})"'], "python -c"),
        (shell(f"eval {X}"), "eval"),
        (["ssh", "-p", "22", "host", f"ls {X}"], "ssh"),
        (["sqlite3", "a.db", f"select {X}"], "sqlite3"),
        (["python3", "-c", "{% for each in tool.arguments.x %}{{ each }}{% endfor %}"], "python3 -c"),
    ],
)
def test_K3_a_value_that_becomes_code(command: Any, reader: str) -> None:
    (said,) = risky_values(command, TEXT)
    assert f"becomes part of the code that `{reader}` runs" in said
    assert said.startswith(("parameter `x` ", "`{{ each }}` "))


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["grep", X, "notes.txt"], "grep"),
        (f"git log {X}", "git"),
        (shell(f"grep -l {X} *.txt"), None),  # it may be the value of `-l`, as far as keephold knows
        (shell(f"sort -u < a && grep {X} *.txt | wc"), "grep"),
        (["tar", "xf", X + ".tar"], "tar"),
        (["git", "log", "{% if tool.arguments.x is defined %}" + X + "{% endif %}"], "git"),
    ],
)
def test_K3_a_value_that_may_be_an_option(command: Any, program: str | None) -> None:
    said = list(risky_values(command, TEXT))
    if program is None:
        assert said == []
    else:
        assert said == [
            f"parameter `x` is an option of `{program}` if it begins with `-`; write `--` before it, if `{program}` "
            "knows that, or give the parameter a `pattern` such as '^[^-]'"
        ]


@pytest.mark.parametrize(
    "command",
    [
        ["grep", "-e", X, "--", X],
        ["python3", "-c", "import sys; print(sys.argv[1])", X],
        ["awk", "-v", f"p={X}", "$0 ~ p", "notes.txt"],
        ["awk", "-f", "find.awk", f"p={X}"],
        ["jq", "--arg", "a", X, ".[$a]"],
        ["tool", f"--file={X}", f"./{X}"],
        ["deploy", "{{ tool.options.target }}", "{{ context.root }}"],
        shell(f"sh -c 'echo \"$1\"' sh {X}"),
        shell(f"echo {X} > {X}"),
        ["sh", "-c", f"printf %s {X}"],
    ],
)
def test_K3_values_that_stay_values(command: Any) -> None:
    assert list(risky_values(command, TEXT)) == []


@pytest.mark.parametrize(
    ("schema", "code", "option"),
    [
        ({"type": "string"}, True, True),
        ({}, True, True),
        ({"type": "integer"}, False, False),
        ({"type": "string", "enum": ["a", "b"]}, False, False),
        ({"type": "string", "enum": ["-a"]}, False, True),
        ({"type": "string", "pattern": "^[a-z0-9]+$"}, False, False),
        ({"type": "string", "pattern": "^[^-]"}, True, False),
        ({"type": "string", "pattern": "[a-z"}, True, True),
    ],
)
def test_K3_a_schema_may_refuse_what_does_harm(schema: dict[str, Any], code: bool, option: bool) -> None:
    assert bool(list(risky_values(["python", "-c", X], {"x": schema}))) == code
    assert bool(list(risky_values(["grep", X], {"x": schema}))) == option


def test_K3_check_names_the_tool_and_the_parameter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    tool = f"[conversation.tools.evaluate]\nsource = 'local'\nrun = 'unattended'\ncommand = ['python3', '-c', '{X}']\n"
    text = f"{tool}parameters.x.type = 'string'\n[serve]\nport = 0\n"
    write_trusted(tmp_path / "keephold.toml", text)
    found = json.loads(CliRunner().invoke(check, ["--json"]).output)
    (note,) = found["notes"]
    assert found["ok"] and note == (
        "keephold.toml:4: conversation.tools.evaluate.command: parameter `x` becomes part of the code that "
        "`python3 -c` runs; pass it as an argument of its own, or on standard input"
    )


async def test_K3_what_is_warned_of_does_run_and_the_advice_does_not(tmp_path: Path) -> None:
    """A nested shell runs a value as code; as an argument of the inner script it stays a value."""
    parameters = {"type": "object", "properties": TEXT}
    warned = keephold.command(f"sh -c 'echo {X}'", name="warned", shell=True, parameters=parameters)
    advised = keephold.command(f"sh -c 'echo \"$1\"' sh {X}", name="advised", shell=True, parameters=parameters)
    attack = {"x": f"$(touch {tmp_path}/hacked; echo ran)"}
    async with keephold.Runtime([warned, advised]) as rt, rt.turn() as turn:
        (safe,) = await turn.run([keephold.ToolCall("1", "advised", attack)])
        assert safe.result.startswith("$(touch ") and not (tmp_path / "hacked").exists()
        (ran,) = await turn.run([keephold.ToolCall("1", "warned", attack)])
        assert ran.result == "ran\n" and (tmp_path / "hacked").exists()
