"""Tools made of a configuration: commands that run where and as the file says, functions found from its directory."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit import config_files

from keephold.durable.deferred import Pending
from keephold.errors import ConfigError
from keephold.handles.question import Question
from keephold.handles.state import Outcome, PrintedOutput
from keephold.tools.base import Invocation, NotificationPolicy, OutputPolicy, OutputView, SpawnPolicy, Tool
from keephold.tools.guard import Guard

MODULE = '''
from keephold.tools.base import NotificationPolicy
from keephold.tools.function import tool

@tool(actions=("spawn", "fetch", "apply", "abort"), scheduling="serial", priority=7, on_turn_end="keep")
async def deploy(env: str) -> str:
    """Deploy to an environment."""
    return env

def count(text: str) -> int:
    """Count the words."""
    return len(text.split())

def taken(id: str) -> str:
    return id

@tool(assistant={"model": "small"}, notifications=NotificationPolicy(on_success=False, deliver=("turn",)))
def loud() -> None: ...

NUMBER = 3
'''


@pytest.fixture
def guard() -> Iterator[Guard]:
    guard = Guard()
    yield guard
    guard.close()


@pytest.fixture
def build(empty_directory: None, monkeypatch: pytest.MonkeyPatch, guard: Guard) -> Callable[[str], Tool]:
    """Builds the one tool of a configuration that stands beside the module `seaside`."""
    Path("seaside.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "seaside", raising=False)
    return partial(config_files.build, guard=guard)


def python(function: str, more: str = "") -> str:
    return f'[conversation.tools.t]\nsource = "python"\nfunction = "{function}"\n{more}\n'


Build = Callable[[str], Tool]


def test_F_a_plain_function_becomes_a_tool_that_asks(build: Build) -> None:
    tool = build(python("seaside:count"))
    assert (tool.name, tool.source, tool.run, tool.description) == ("t", "python", "ask", "Count the words.")
    assert list(tool.parameters["properties"]) == ["text"]
    assert (tool.actions, tool.output, tool.spawn) == ((), OutputPolicy(), SpawnPolicy())


def test_F_what_the_file_does_not_say_stays_as_the_code_says_it(build: Build) -> None:
    tool = build(python("seaside:deploy"))
    assert tool.actions == ("spawn", "fetch", "apply", "abort")
    assert (tool.name, tool.scheduling, tool.run) == ("t", "serial", "ask")
    assert tool.spawn == SpawnPolicy(priority=7, on_turn_end="keep")


def test_F_what_the_file_says_goes_over_the_code(build: Build) -> None:
    more = (
        "run = 'unattended'\ndescription = 'Ship it.'\nscheduling = 'parallel'\noutput.limit = 5\n"
        "questions.sure.answer = true\nspawn = { settle_ms = 1, lifecycle.on_turn_end = 'abort' }"
    )
    tool = build(python("seaside:deploy", more))
    assert (tool.run, tool.description, tool.scheduling) == ("unattended", "Ship it.", "parallel")
    assert tool.output.dispatch == OutputView(limit=5)
    assert tool.questions["sure"].answered
    assert tool.spawn == SpawnPolicy(settle_ms=1, priority=7, on_turn_end="abort")


def test_F_what_is_news_goes_setting_by_setting_over_the_code(build: Build) -> None:
    more = "spawn = { notifications.on_content = true, lifecycle.timeout_secs = 5 }"
    assert build(python("seaside:loud", more)).spawn == SpawnPolicy(
        turn_end_timeout_secs=5,
        assistant={"model": "small"},
        notifications=NotificationPolicy(on_success=False, on_content=True, deliver=("turn",)),
    )
    assert build(python("seaside:loud", "spawn.lifecycle.assistant = {}")).spawn.assistant == {}


@pytest.mark.parametrize(
    ("function", "spawn", "actions"),
    [
        ("count", "stateful = true", ("spawn", "fetch", "abort")),
        ("count", "actions = ['spawn', 'apply']", ("spawn", "apply")),
        ("deploy", "stateful = true", ("spawn", "fetch", "apply", "abort")),
        ("deploy", "actions = ['spawn']", ("spawn",)),
        ("deploy", "stateful = false", ()),
    ],
)
def test_C2_the_file_may_decide_the_actions_of_a_function(
    build: Build, function: str, spawn: str, actions: tuple[str, ...]
) -> None:
    assert build(python(f"seaside:{function}", f"spawn = {{ {spawn} }}")).actions == actions


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("nowhere:f", "there is no module `nowhere` in "),
        ("seaside.deep:f", "there is no module `seaside.deep` in "),
        ("seaside:cuont", "module `seaside` has no `cuont`; did you mean `seaside:count`?"),
        ("seaside:NUMBER", "`seaside:NUMBER` is of type int; it must be a function or a tool"),
        ("broken:f", "importing `broken` failed: ZeroDivisionError: division by zero"),
        ("needy:f", "importing `needy` failed: No module named 'not_installed'; install what it needs"),
        ("json:dumps", "`json` is "),
    ],
)
def test_F_a_function_that_cannot_be_had_is_named(build: Build, tmp_path: Path, function: str, expected: str) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "needy.py").write_text("import not_installed")
    (tmp_path / "json.py").write_text("dumps = None")
    with pytest.raises(ConfigError) as caught:
        build(python(function))
    assert caught.value.problems[0].startswith(f"keephold.toml:3: conversation.tools.t.function: {expected}")


def test_C1_a_function_with_a_reserved_parameter_cannot_be_made_stateful(build: Build) -> None:
    assert build(python("seaside:taken")).actions == ()
    with pytest.raises(ConfigError, match=r"keephold.toml:3: conversation.tools.t.function: .*parameter `id`"):
        build(python("seaside:taken", "spawn.stateful = true"))


def test_L4_problems_of_all_functions_are_reported(build: Build) -> None:
    with pytest.raises(ConfigError) as caught:
        build(python("seaside:a") + python("seaside:b").replace("tools.t", "tools.u"))
    assert len(caught.value.problems) == 2


class Recorder:
    """A sink that keeps what a command printed until it is over."""

    def __init__(self) -> None:
        self.printed = b""
        self.outcome: Outcome | None = None
        self.over = asyncio.Event()

    def output(self, data: bytes) -> None:
        self.printed += data

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None: ...

    def reading(self, yes: bool) -> None: ...

    def park(self, pending: Pending) -> None: ...

    def ask(self, question: Question, then: Callable[[Outcome], None], record: object = None) -> None: ...

    def withdraw(self) -> None: ...

    def resized(self, rows: int, cols: int) -> None: ...

    def stop(self, outcome: Outcome, *, exit_code: int | None = None, signal: int | None = None) -> None:
        self.outcome = outcome

    def abandon(self) -> None: ...

    def released(self) -> None:
        self.over.set()


async def test_F1_a_command_runs_where_and_with_what_the_file_says(build: Build, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    tool = build(
        "[conversation.tools.t]\nsource = 'local'\ncwd = 'sub'\nenv = { COLOUR = 'grey' }\noptions = { deep = [1] }\n"
        "command = ['sh', '-c', 'pwd; echo $COLOUR; echo {{ tool.arguments.x }}; echo \"$KEEPHOLD_CALL\"']\n"
        "parameters.x.type = 'string'\n"
    )
    sink = Recorder()
    names: dict[str, Any] = {"uid": "u", "call_id": "1", "conversation": "c", "turn": "t", "stateful": False}
    tool.runtime.start(Invocation(tool=tool, arguments={"x": "a  b"}, **names), sink)
    await sink.over.wait()
    directory, colour, argument, call = sink.printed.decode().splitlines()
    assert sink.outcome == PrintedOutput()
    assert (directory, colour, argument) == (str(tmp_path / "sub"), "grey", "a  b")
    assert json.loads(call)["tool"]["options"] == {"deep": [1]}
    assert json.loads(call)["context"]["root"] == str(tmp_path)
