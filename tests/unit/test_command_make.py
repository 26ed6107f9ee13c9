"""`keephold.command(…)`: a command as a tool, made in Python (Y, P1, F, C1)."""

import json
from pathlib import Path
from typing import Any

import pytest

import keephold
from keephold.config import load_config
from keephold.config.build import build_tools
from keephold.policies import QuestionPolicy
from keephold.tools.base import Tool
from keephold.tools.command import Command
from keephold.tools.guard import Guard

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def runtime_of(tool: Tool) -> Command:
    assert isinstance(tool.runtime, Command)
    return tool.runtime


def refused(*args: Any, **options: Any) -> str:
    with pytest.raises(keephold.ConfigError) as caught:
        keephold.command(*args, **options)
    (only,) = caught.value.problems
    return only


async def results(tools: list[Tool], *calls: tuple[str, dict[str, Any]]) -> list[str]:
    async with keephold.Runtime(tools) as rt, rt.turn() as turn:
        batch = [keephold.ToolCall(str(at), name, arguments) for at, (name, arguments) in enumerate(calls)]
        return [response.result for response in await turn.run(batch)]


def test_P1_a_command_made_in_python_runs_unattended_and_one_shot() -> None:
    tool = keephold.command("git log")
    assert (tool.name, tool.source, tool.run, tool.actions) == ("git", "local", "unattended", ())
    assert tool.parameters == {"type": "object", "properties": {}}
    assert {view.window for view in (tool.output.dispatch, tool.output.model)} == {"tail"}
    runtime = runtime_of(tool)
    assert (runtime.stdin, runtime.wire, runtime.input, runtime.options) == (False, False, "line", {})


def test_Y_a_command_made_in_python_is_the_one_that_a_file_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keephold.toml"
    file.write_text("""
[conversation.tools.ask]
source = "local"
command = ["ask.sh", "{{ tool.arguments.text }}"]
description = "Ask."
run = "unattended"
wire = true
cwd = "sub"
env = { A = "1" }
options = { b = 2 }
timeout_secs = 9
[conversation.tools.ask.parameters.text]
type = "string"
required = true
[conversation.tools.ask.questions.sure]
exclusive = true
[conversation.tools.ask.spawn]
stateful = true
stdin = true
input = "raw"
""")
    monkeypatch.chdir(tmp_path)
    [from_file] = build_tools(load_config(file), Guard())
    made = keephold.command(
        ["ask.sh", "{{ tool.arguments.text }}"],
        name="ask",
        description="Ask.",
        parameters=TEXT,
        wire=True,
        stdin=True,
        input="raw",
        cwd="sub",
        env={"A": "1"},
        options={"b": 2},
        questions={"sure": QuestionPolicy(exclusive=True)},
        actions=("spawn", "fetch", "apply", "abort"),
        timeout_secs=9,
    )
    same = [field for field in Tool.__dataclass_fields__ if field != "runtime"]
    assert {field: getattr(made, field) for field in same} == {field: getattr(from_file, field) for field in same}
    values = {"tool": {"arguments": {"text": "a b"}}, "context": {}}
    mine, theirs = vars(runtime_of(made)), vars(runtime_of(from_file))
    assert mine.pop("line").render(values) == theirs.pop("line").render(values) == ["ask.sh", "a b"]
    assert (mine.pop("guard"), theirs.pop("guard") is None) == (None, False)
    assert (mine.pop("directory"), theirs.pop("directory")) == ("", str(tmp_path))  # of an editor's session
    assert mine == theirs


async def test_F2_words_and_scripts_get_their_arguments_as_values() -> None:
    text = "$(touch hacked); *"
    words = keephold.command(["printf", "%s", "{{ tool.arguments.text }}"], parameters=TEXT)
    script = keephold.command(
        "printf %s {{ tool.arguments.text }} | tr a-z A-Z", name="loud", parameters=TEXT, shell=True
    )
    joined = keephold.command(["printf", "%s", "{{ tool.arguments.text }}"], name="joined", parameters=TEXT, shell=True)
    calls = [(tool.name, {"text": text}) for tool in (words, script, joined)]
    assert await results([words, script, joined], *calls) == [text, text.upper(), text]


async def test_C6_a_spawned_command_reads_what_apply_sends() -> None:
    cat = keephold.command("cat", stdin=True, actions=("spawn", "fetch", "apply", "abort"))
    found = await results(
        [cat],
        ("cat", {"action": "spawn", "id": "c"}),
        ("cat", {"action": "apply", "id": "c", "input": "hello"}),
        ("cat", {"action": "apply", "id": "c", "input": None}),
        ("await", {"all": ["c"]}),
    )
    assert "hello" in found[1]
    [done] = json.loads(found[3])["completed"]
    assert done["state"] == "stopped"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"input": "lines"}, 'input must be "line" or "raw", not \'lines\''),
        ({"actions": ("spawn", "apply")}, '"apply" needs somewhere to send: stdin=True, or wire=True'),
        ({"stdin": True}, "stdin has no effect on a tool that is only called one-shot; add actions"),
        ({"actions": ("fetch",)}, 'actions must be a tuple of "spawn" and any of'),
        ({"on_crash": "external"}, 'a command takes no completion key: on_crash="external" is for functions'),
        ({"parameters": {"type": "string"}}, "parameters must be an object schema"),
    ],
)
def test_Y_an_invalid_option_is_refused(options: dict[str, Any], expected: str) -> None:
    assert refused("cat", **options).startswith(f"tool `cat`: {expected}")


def test_F_an_empty_command_is_refused() -> None:
    assert refused("").startswith("the command of tool `command`: the command is empty")
    assert "the program to run is missing" in refused([], shell=True)
    assert refused("{{ tool.arguments.program }}").endswith("give the tool a `name`")
