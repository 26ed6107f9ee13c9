"""`keephold.terminal(…)`: a tool that is a program in a terminal, made in Python.

A terminal's `fetch` and `apply` take more than those of other tools (`ACTION_PARAMETERS`), and its password prompts are
answered by a person only. Both hold for the terminals of a configuration file as well.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

from keephold.errors import ConfigError
from keephold.schema.canonical import check_parameters
from keephold.tools.base import ACTIONS, Action, OutputPolicy, OutputView, QuestionPolicy, Tool
from keephold.tools.policies import Policies, tool_fields
from keephold.tools.template import CommandLine

MAX_ROWS, MAX_COLS = 500, 1000
"""How large a terminal may be; the smallest has one row and one column."""

ACTION_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "fetch": {
        "view": {
            "type": "string",
            "enum": ["auto", "stream", "screen"],
            "description": (
                "What to show: `stream`, the new output as text; `screen`, what the terminal shows now; "
                "`auto`, the default, the screen of a full-screen program and the stream of any other."
            ),
        }
    },
    "apply": {
        "keys": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Named keys pressed after the text: ENTER, TAB, ESC, UP, PAGEDOWN, F1, C-c, M-x, …",
        },
        "size": {
            "type": "object",
            "properties": {
                "rows": {"type": "integer", "minimum": 1, "maximum": MAX_ROWS},
                "cols": {"type": "integer", "minimum": 1, "maximum": MAX_COLS},
            },
            "required": ["rows", "cols"],
            "description": "The new size of the terminal.",
        },
    },
}
"""What `fetch` and `apply` of a terminal take besides `id` and `input`."""

QUESTIONS: Mapping[str, QuestionPolicy] = {"password": QuestionPolicy(exclusive=True)}
"""Who answers what a terminal asks, whatever else is said of it: what is read without echo is typed by a person."""


def terminal(
    command: str | Sequence[str],
    *,
    name: str | None = None,
    description: str = "",
    parameters: Mapping[str, Any] | None = None,
    rows: int = 24,
    cols: int = 80,
    input: Literal["line", "raw"] = "raw",
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    actions: Sequence[Action] = ACTIONS,
    output: OutputPolicy | None = None,
    **policies: Unpack[Policies],
) -> Tool:
    """Make a tool of a program that runs in a terminal: a shell, a REPL, an editor, `git add --patch`.

    `command` is a string or a list of words, templates as in the configuration: `{{ tool.arguments.path }}` is the
    argument of that name, declared in `parameters`. The tool is named after the program unless `name` is given.
    """
    # Whoever reads a configuration without terminals needs this module's constants, but not what runs them.
    from keephold.tools.terminal.terminal import Terminal

    words = command if isinstance(command, str) else list(command)
    name = _name_of(words) if name is None else name
    parameters = {"type": "object", "properties": {}} if parameters is None else parameters
    _check(name, rows=rows, cols=cols, input=input, on_crash=policies.get("on_crash"))
    fields = tool_fields(name, description=description, actions=actions, **policies)
    check_parameters(name, parameters, fields["actions"], ACTION_PARAMETERS)
    here = str(Path.cwd())
    runtime = Terminal(
        CommandLine.parse(words, f"the command of tool `{name}`"),
        env=env or {},
        cwd=os.path.normpath(Path(here, cwd or ".")),
        root=here,
        input=input,
        rows=rows,
        cols=cols,
        options={},
        guard=None,
    )
    return Tool(
        runtime=runtime,
        source="terminal",
        parameters=parameters,
        action_parameters=ACTION_PARAMETERS,
        questions=QUESTIONS,
        output=OutputPolicy(dispatch=_TAIL, model=_TAIL, history=_TAIL) if output is None else output,
        **fields,
    )


_TAIL = OutputView(window="tail")


def _name_of(command: str | list[str]) -> str:
    """The name of the program, as far as a tool may have it."""
    first = next(iter(command.split() if isinstance(command, str) else command), "").strip("\"'")
    if "{{" in first or "{%" in first:
        raise ConfigError([f"terminal {command!r}: the call decides which program runs; give the tool a `name`"])
    return re.sub("[^A-Za-z0-9_-]", "_", Path(first).name)[:64] or "terminal"


def _check(name: str, *, rows: object, cols: object, input: object, on_crash: object) -> None:
    """What the types of the keywords say, for those who have no type checker."""
    problems = [
        f"{what} must be a whole number from 1 to {most}, not {given!r}"
        for what, given, most in (("rows", rows, MAX_ROWS), ("cols", cols, MAX_COLS))
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= most
    ]
    if input not in ("line", "raw"):
        problems.append(f'input must be "line" or "raw", not {input!r}')
    if on_crash == "external":
        problems.append('a terminal takes no completion key: on_crash="external" is for functions')
    if problems:
        raise ConfigError([f"tool `{name}`: {problem}" for problem in problems])
