"""`keephold.terminal(…)`: a program in a terminal as a tool, made in Python (Y, P1, Q4, C1)."""

from pathlib import Path
from typing import Any

import pytest

import keephold
from keephold.errors import ConfigError
from keephold.schema.canonical import canonical
from keephold.tools.base import ACTIONS, OutputPolicy, OutputView, RetryPolicy, SpawnPolicy, Tool
from keephold.tools.terminal.terminal import Terminal

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def runtime_of(tool: Tool) -> Terminal:
    assert isinstance(tool.runtime, Terminal)
    return tool.runtime


def refused(*args: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        keephold.terminal(*args, **options)
    (only,) = caught.value.problems
    return only


def test_P1_a_terminal_made_in_python_runs_unattended_with_all_actions() -> None:
    tool = keephold.terminal("bash")
    assert (tool.name, tool.source, tool.run, tool.actions) == ("bash", "terminal", "unattended", ACTIONS)
    assert tool.parameters == {"type": "object", "properties": {}}
    assert tool.questions == {"password": keephold.policies.QuestionPolicy(exclusive=True)}
    assert {view.window for view in (tool.output.dispatch, tool.output.model)} == {"tail"}
    assert tool.spawn == SpawnPolicy()
    runtime = runtime_of(tool)
    assert (runtime.rows, runtime.cols, runtime.input, runtime.env, runtime.guard) == (24, 80, "raw", {}, None)
    assert (runtime.cwd, runtime.root) == (str(Path.cwd()), str(Path.cwd()))


def test_Y_what_is_said_of_the_terminal_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tool = keephold.terminal(
        ["vim", "{{ tool.arguments.path }}"],
        name="edit",
        description="Edit a file.",
        parameters=PATH,
        rows=50,
        cols=132,
        input="line",
        env={"A": "1"},
        cwd="sub",
    )
    assert (tool.name, tool.description, tool.parameters) == ("edit", "Edit a file.", PATH)
    runtime = runtime_of(tool)
    assert (runtime.rows, runtime.cols, runtime.input, runtime.env) == (50, 132, "line", {"A": "1"})
    assert runtime.cwd == str(tmp_path / "sub")
    values = {"tool": {"arguments": {"path": "a b"}}, "context": {}}
    assert runtime.line.render(values) == ["vim", "a b"]


def test_Y_policies_are_those_of_a_function_tool() -> None:
    shown = OutputPolicy(model=OutputView(limit=5))
    news = keephold.policies.NotificationPolicy(on_content=True, deliver=("turn",))
    policies: dict[str, Any] = {
        "summary": "A shell.",
        "examples": ["x"],
        "actions": ("spawn", "abort"),
        "scheduling": "serial",
        "resources": ["tty"],
        "max_running": 2,
        "run": "ask",
        "run_actions": {"abort": "ask"},
        "result": "skip",
        "timeout_secs": 9,
        "on_turn_end": "keep",
        "turn_end_timeout_secs": 5,
        "assistant": {"model": "small"},
        "notifications": news,
        "priority": 3,
        "output": shown,
        "on_crash": "replay",
        "retry": "safe",
    }

    @keephold.tool(**policies)
    async def function() -> None: ...

    tool = keephold.terminal("bash", **policies)
    fields = set(policies) - {"on_turn_end", "turn_end_timeout_secs", "assistant", "notifications", "priority"}
    assert {name: getattr(tool, name) for name in fields} == {name: getattr(function, name) for name in fields}
    assert tool.spawn == function.spawn
    assert tool.spawn == SpawnPolicy(
        priority=3, on_turn_end="keep", turn_end_timeout_secs=5, assistant={"model": "small"}, notifications=news
    )
    assert (tool.retry, tool.output, tool.resources) == (RetryPolicy(policy="safe"), shown, ("tty",))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("git add --patch", "git"),
        (["/usr/bin/python3.12", "-q"], "python3_12"),
        ("'bash' -i", "bash"),
        ("./run me", "run"),
        (("top",), "top"),
        (["x" * 80], "x" * 64),
    ],
)
def test_Y_a_terminal_is_named_after_its_program(command: Any, name: str) -> None:
    assert keephold.terminal(command).name == name


def test_Y_a_program_that_the_call_decides_names_no_tool() -> None:
    command = "{{ tool.arguments.program }} -i"
    assert refused(command).endswith("the call decides which program runs; give the tool a `name`")
    assert keephold.terminal(command, name="any").name == "any"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rows": 0}, "rows must be a whole number from 1 to 500, not 0"),
        ({"cols": 1001}, "cols must be a whole number from 1 to 1000, not 1001"),
        ({"rows": "24"}, "rows must be a whole number from 1 to 500, not '24'"),
        ({"cols": True}, "cols must be a whole number from 1 to 1000, not True"),
        ({"input": "lines"}, 'input must be "line" or "raw", not \'lines\''),
        ({"actions": ("fetch",)}, 'actions must be a tuple of "spawn" and any of'),
        ({"actions": "spawn"}, 'actions must be a tuple of "spawn" and any of'),
        ({"on_crash": "external"}, 'a terminal takes no completion key: on_crash="external" is for functions'),
        ({"run": "never"}, 'run must be one of "ask", "unattended", "edit", "skip", not \'never\''),
        ({"parameters": {"type": "string"}}, "parameters must be an object schema"),
    ],
)
def test_Y_what_cannot_be_is_refused(options: dict[str, Any], expected: str) -> None:
    assert refused("bash", **options).startswith(f"tool `bash`: {expected}")


def test_F_a_command_that_is_none_is_refused() -> None:
    assert refused("").startswith("the command of tool `terminal`: the command is empty")
    assert refused(["bash", 3]).startswith("the command of tool `bash`[1]: each part of a command is a string")


@pytest.mark.parametrize("name", ["view", "scrollback", "keys", "size", "id"])
def test_C1_a_terminal_cannot_use_the_names_of_what_its_actions_take(name: str) -> None:
    own = {"type": "object", "properties": {name: {"type": "string"}}}
    assert refused("bash", parameters=own).startswith(f"tool `bash`: parameter `{name}` has a name that ")
    assert canonical(keephold.terminal("bash", parameters=own, actions=())) == own


def test_C1_fetch_and_apply_of_a_terminal_take_more_than_those_of_other_tools() -> None:
    variants = {form["properties"]["action"]["const"]: form for form in canonical(keephold.terminal("bash"))["oneOf"]}
    assert list(variants["fetch"]["properties"]) == ["action", "id", "view", "scrollback"]
    assert list(variants["apply"]["properties"]) == ["action", "id", "input", "keys", "size"]
    assert variants["apply"]["required"] == ["action", "id"]
