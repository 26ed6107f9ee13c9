"""Terminals of a configuration: what a table `source = "terminal"` becomes, and what it may not say (F, C2, C6, Q4)."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit import config_files
from tests.unit.config_files import build, load

from keephold.config import load_config
from keephold.errors import ConfigError
from keephold.tools.base import ACTIONS, QuestionPolicy, Tool
from keephold.tools.guard import Guard
from keephold.tools.program import ACTION_PARAMETERS
from keephold.tools.terminal.terminal import Terminal

pytestmark = pytest.mark.usefixtures("empty_directory")

TERMINAL = "[conversation.tools.t]\nsource = 'terminal'\ncommand = ['bash']\n"


@pytest.fixture
def guard() -> Iterator[Guard]:
    guard = Guard()
    yield guard
    guard.close()


def problem(text: str) -> str:
    """The one problem of the file, from the key in the tool's table on."""
    return config_files.problem(text).partition("conversation.tools.")[2].partition(".")[2]


def test_F_a_terminal_is_stateful_asks_first_and_shows_its_tail(guard: Guard) -> None:
    tool = build(TERMINAL, guard)
    assert (tool.name, tool.source, tool.actions, tool.run) == ("t", "terminal", ACTIONS, "ask")
    assert tool.action_parameters == ACTION_PARAMETERS
    assert {view.window for view in (tool.output.dispatch, tool.output.model)} == {"tail"}
    runtime = tool.runtime
    assert isinstance(runtime, Terminal)
    assert (runtime.rows, runtime.cols, runtime.term, runtime.input) == (24, 80, "xterm-256color", "raw")
    assert (runtime.guard, runtime.cwd, runtime.root) == (guard, str(Path.cwd()), str(Path.cwd()))


def test_F_what_the_table_says_reaches_the_terminal(guard: Guard) -> None:
    tool = build(
        TERMINAL + "cwd = 'sub'\nenv = { A = '1' }\noptions = { deep = [1] }\nrun = 'unattended'\ntimeout_secs = 9\n"
        "output.limit = 7\nparameters.path = { type = 'string', required = true }\nspawn.input = 'line'\n"
        "terminal = { rows = 50, cols = 132, term = 'vt100' }\n",
        guard,
    )
    assert (tool.run, tool.timeout_secs, tool.output.model.limit) == ("unattended", 9, 7)
    assert tool.parameters["required"] == ["path"]
    runtime = tool.runtime
    assert isinstance(runtime, Terminal)
    assert (runtime.rows, runtime.cols, runtime.term, runtime.input) == (50, 132, "vt100", "line")
    assert (runtime.cwd, runtime.env, runtime.options) == (str(Path.cwd() / "sub"), {"A": "1"}, {"deep": [1]})


@pytest.mark.parametrize(
    ("defaults", "own", "actions"),
    [
        ("", "", ACTIONS),
        ("", "stateful = true", ACTIONS),
        ("", "stateful = false", ()),
        ("", "actions = ['spawn', 'fetch']", ("spawn", "fetch")),
        ("stateful = false", "", ()),
        ("stateful = false", "stateful = true", ACTIONS),
        ("stdin = true", "", ACTIONS),
    ],
)
def test_C2_a_terminal_has_all_actions_unless_the_file_says_otherwise(
    defaults: str, own: str, actions: tuple[str, ...]
) -> None:
    config = load(f'[conversation.tools."*"]\nspawn = {{ {defaults} }}\n{TERMINAL}spawn = {{ {own} }}\n')
    assert config.conversation.tools["t"].actions == actions


def test_C6_text_is_sent_as_it_is_to_a_terminal_and_as_a_line_to_a_command() -> None:
    tools = load(TERMINAL + "[conversation.tools.c]\nsource = 'local'\ncommand = 'cat'\n").conversation.tools
    assert (tools["t"].input, tools["c"].input) == ("raw", "line")
    tools = load('[conversation.tools."*"]\nspawn.input = "line"\n' + TERMINAL).conversation.tools
    assert tools["t"].input == "line"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("wire = true", 'wire: has no meaning for source = "terminal": '),
        ("spawn.stdin = true", 'spawn.stdin: has no meaning for source = "terminal": the terminal is the input'),
        ("function = 'a:b'", 'function: has no meaning for source = "terminal": '),
        ("env.TERM = 'dumb'", 'env.TERM: has no meaning for source = "terminal": the terminal is of the kind `term`'),
        (
            "env.COLUMNS = '9'",
            'env.COLUMNS: has no meaning for source = "terminal": the terminal tells its size itself',
        ),
        ("on_crash = 'external'", "on_crash: a command takes no completion key"),
        ("terminal.rows = 0", "terminal.rows: must be at least 1, not 0"),
        ("terminal.rows = 501", "terminal.rows: must be at most 500, not 501"),
        ("terminal.cols = 1001", "terminal.cols: must be at most 1000, not 1001"),
        ("terminal.rows = '24'", 'terminal.rows: must be a whole number, not "24"; without the quotes: 24'),
        ("terminal.term = ''", 'terminal.term: must be the name of a kind of terminal, such as "xterm-256color"'),
        ("terminal.row = 1", "terminal.row: unknown key; did you mean `rows`?"),
        ("rows = 30", "rows: unknown key; belongs in [conversation.tools.t.terminal]"),
        ("resources = ['{{ tool.arguments.x }}']", "resources.0: `tool.arguments.x`: `t` has no such parameter"),
    ],
)
def test_L4_what_makes_no_sense_for_a_terminal_is_named(line: str, expected: str) -> None:
    assert problem(TERMINAL + line).startswith(expected)


@pytest.mark.parametrize("source", ["source = 'local'\ncommand = 'true'", "source = 'python'\nfunction = 'm:f'"])
def test_L4_a_tool_that_is_no_terminal_has_no_such_table(source: str) -> None:
    found = problem(f"[conversation.tools.t]\n{source}\n[conversation.tools.t.terminal]\nrows = 5\n")
    assert found.startswith("terminal: has no meaning for source = ")
    assert found.endswith('only a program with source = "terminal" has one')
    load(f'[conversation.tools."*".terminal]\nrows = 5\n[conversation.tools.t]\n{source}\n')


def test_L4_a_builtin_name_is_none_for_a_terminal() -> None:
    path = Path("keephold.toml")
    path.write_text(TERMINAL.replace("tools.t", "tools.await"))
    with pytest.raises(ConfigError, match="`await` is the name of a built-in tool"):
        load_config(path)


@pytest.mark.parametrize("name", ["view", "keys", "size", "input"])
def test_C1_a_terminal_cannot_use_the_names_of_what_its_actions_take(name: str) -> None:
    text = TERMINAL + f"[conversation.tools.t.parameters.{name}]\ntype = 'string'\n"
    assert problem(text).startswith(f"parameters.{name}: parameter `{name}` has a name that ")
    load(text + "[conversation.tools.t.spawn]\nstateful = false\n")
    load(f"[conversation.tools.t]\nsource = 'local'\ncommand = 'true'\nparameters.{name}.type = 'string'\n")


@pytest.mark.parametrize("written", ["", "questions.password.exclusive = false\n"])
def test_Q4_a_password_is_for_a_person_whatever_the_file_says(written: str, guard: Guard) -> None:
    tool = build(TERMINAL + "questions.sure.answer = true\n" + written, guard)
    assert tool.questions == {
        "sure": QuestionPolicy(answered=True, answer=True),
        "password": QuestionPolicy(exclusive=True),
    }


def test_K5_a_password_does_not_belong_in_the_file() -> None:
    found = problem(TERMINAL + "questions.password.answer = 'hunter2'\n")
    assert found.startswith("questions.password.answer: what a terminal reads without echo is a secret")
    assert "hunter2" not in found
    assert "4711" not in problem(TERMINAL + "questions.password.answer = 4711\n")
    inherited = '[conversation.tools."*"]\nquestions.password.answer = "x"\n'
    assert problem(inherited + TERMINAL).startswith("questions.password.answer: what a terminal reads")
    load("[conversation.tools.t]\nsource = 'local'\ncommand = 'true'\nquestions.password.answer = 'x'\n")


def test_Q4_no_model_is_asked_for_a_password() -> None:
    found = problem(TERMINAL + "questions.password.target = 'assistant'\n")
    assert found.startswith("questions.password.target: what a terminal reads without echo is typed by a person")


MODULE = """
import keephold

shell = keephold.terminal("bash", name="shell", on_turn_end="keep")
"""


def python_terminal(more: str, guard: Guard) -> Tool:
    sys.modules.pop("moorings", None)
    Path("moorings.py").write_text(MODULE)
    return build(f"[conversation.tools.t]\nsource = 'python'\nfunction = 'moorings:shell'\n{more}", guard)


def test_F_a_terminal_made_in_python_may_be_named_by_the_file(guard: Guard) -> None:
    tool = python_terminal("output.limit = 5\nquestions.password.exclusive = false\n", guard)
    assert (tool.name, tool.source, tool.actions, tool.run) == ("t", "terminal", ACTIONS, "ask")
    assert (tool.output.model.limit, tool.output.model.window) == (5, "tail")
    assert tool.questions["password"] == QuestionPolicy(exclusive=True)
    assert tool.spawn.on_turn_end == "keep"
    assert isinstance(tool.runtime, Terminal)
    assert tool.runtime.guard is guard


def test_K5_nor_does_the_password_of_a_terminal_made_in_python(guard: Guard) -> None:
    with pytest.raises(ConfigError, match=r"keephold\.toml:4: conversation\.tools\.t\.questions\.password\.answer"):
        python_terminal("questions.password.answer = 'x'\n", guard)
