"""Programs as tools: `keephold.command(…)`, `keephold.terminal(…)`, and the start that both kinds share.

The configuration makes the same `Program`s from its tables (`config/build.py`).
"""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

from keephold.errors import ConfigError, ToolError
from keephold.platforms import machine
from keephold.schema.canonical import check_parameters
from keephold.tools.base import (
    ACTIONS,
    Action,
    Invocation,
    OutputPolicy,
    OutputView,
    Policies,
    QuestionPolicy,
    Tool,
    ToolRuntime,
    tool_fields,
)
from keephold.tools.child import environment, remove
from keephold.tools.environment import wrong_names
from keephold.tools.guard import Guard
from keephold.tools.marks import call_mark

if TYPE_CHECKING:
    from keephold.tools.template import CommandLine

Child = TypeVar("Child")

MAX_ROWS, MAX_COLS = 500, 1000
"""The largest size of a terminal; the smallest has one row and one column."""
MAX_SCROLLBACK = 1000
"""The most lines above the screen that a `fetch` may ask for; a reply's caps may show fewer."""

ACTION_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "fetch": {
        "view": {
            "type": "string",
            "enum": ["auto", "stream", "screen"],
            "description": (
                "Show `stream`, the new output as text; `screen`, what the terminal shows now; "
                "`auto`, the default, the screen of a full-screen program and the stream of any other."
            ),
        },
        "scrollback": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_SCROLLBACK,
            "description": "How many lines above the screen to show with the screen. Default: none.",
        },
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
"""Further arguments of a terminal's `fetch` and `apply`, besides `id` and `input`."""

QUESTIONS: Mapping[str, QuestionPolicy] = {"password": QuestionPolicy(exclusive=True)}
"""Only the user answers a terminal's password prompt, regardless of other settings."""


@dataclass(kw_only=True, eq=False)
class Program:
    """A configured program and the directory and environment in which its calls run."""

    line: "CommandLine"
    cwd: str
    root: str
    directory: str = ""
    """The working directory of the session; empty: there is none, and `root` counts."""
    input: Literal["line", "raw"] = "line"
    env: Mapping[str, str] = field(default_factory=dict)
    pass_env: Collection[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    guard: Guard | None = None

    def guarded(self, guard: Guard) -> Self:
        """Return the program with this guard: a tool made in Python gets that of the runtime that will run it."""
        return replace(self, guard=guard)

    def kept_call_file(self, invocation: Invocation) -> Path | None:
        """Return where the file that holds a call is, if its process is kept: the next runtime must find it (R7)."""
        spool = self.guard.spool if self.guard is not None else None
        kept = invocation.stateful and invocation.tool.on_crash == "keep"
        return spool / f"{invocation.uid}.call" if kept and spool is not None else None

    def launch(
        self,
        invocation: Invocation,
        child: Callable[[list[str], dict[str, str], str], Child],
        *,
        answers: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> tuple[Child, Path | None]:
        """Start the child by its argv, environment and mark; return it and the file that holds the call, if any (F1).

        Raises `ToolError` if the command cannot be rendered or started.
        """
        from keephold.tools.template import values_of  # Jinja is slow to import, and only programs need it

        assert self.guard is not None, "a program runs in a runtime, which gives it a guard"
        values = values_of(
            invocation, answers=answers, options=self.options, root=self.root, cwd=self.directory or self.root
        )
        argv = self.line.render(values)
        self.guard.ensure()
        own, place = {**self.env, **(env or {})}, self.kept_call_file(invocation)
        call_file, whole = environment(own, self.pass_env, self.guard, invocation.uid, values, place)
        try:
            return child(argv, whole, call_mark(self.guard.mark, invocation.uid)), call_file
        except ToolError:
            remove(call_file)
            raise


def command(
    command: str | Sequence[str],
    *,
    name: str | None = None,
    description: str = "",
    parameters: Mapping[str, Any] | None = None,
    shell: bool = False,
    wire: bool = False,
    stdin: bool = False,
    input: Literal["line", "raw"] = "line",
    env: Mapping[str, str] | None = None,
    pass_env: Sequence[str] = (),
    cwd: str | None = None,
    options: Mapping[str, Any] | None = None,
    questions: Mapping[str, QuestionPolicy] | None = None,
    actions: Sequence[Action] = (),
    output: OutputPolicy | None = None,
    returns: str | Mapping[str, Any] | None = None,
    **policies: Unpack[Policies],
) -> Tool:
    """Make a tool of a command: a compiler, `git log`, a script.

    `command` is a string or a list of words, templates as in the configuration: `{{ tool.arguments.path }}` is the
    argument of that name, declared in `parameters`. With `shell=True` the words are one script for `sh -c`, in which
    arguments are values and never code. The tool is named after the program unless `name` is given. `env` is added to
    the environment, which has no API keys and other secrets except those that `pass_env` names. `returns` is the MIME
    type of the file that the command prints, or the JSON Schema of the object that it prints.
    """
    from keephold.tools.command import Command

    problems = [*_wrong_input(input), *_wrong_pass_env(pass_env)]
    if "apply" in actions and not (stdin or wire):
        problems.append('"apply" needs somewhere to send: stdin=True, or wire=True')
    if stdin and not actions:
        problems.append("stdin has no effect on a tool that is only called one-shot; add actions")
    made = _Made("command", command, name, problems, policies, shell=shell)
    media = returns if isinstance(returns, str) else None
    given: dict[str, Any] = {
        "input": input,
        "options": dict(options or {}),
        "stdin": stdin,
        "wire": wire,
        "media": media,
    }
    runtime = Command(**made.program(env, pass_env, cwd), **given)
    tool = made.tool(
        runtime, parameters, actions, description=description, source="local", output=output, questions=questions or {}
    )
    return replace(tool, returns=returns) if isinstance(returns, Mapping) else tool


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
    pass_env: Sequence[str] = (),
    cwd: str | None = None,
    actions: Sequence[Action] = ACTIONS,
    output: OutputPolicy | None = None,
    **policies: Unpack[Policies],
) -> Tool:
    """Make a tool of a program that runs in a terminal: a shell, a REPL, an editor, `git add --patch`.

    `command` is a string or a list of words, templates as in the configuration: `{{ tool.arguments.path }}` is the
    argument of that name, declared in `parameters`. The tool is named after the program unless `name` is given. `env`
    and `pass_env` are as for `command`.
    """
    # A configuration without terminals needs this module's constants, but not what runs terminals.
    from keephold.tools.terminal.terminal import Terminal

    problems = [
        f"{what} must be a whole number from 1 to {most}, not {given!r}"
        for what, given, most in (("rows", rows, MAX_ROWS), ("cols", cols, MAX_COLS))
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= most
    ]
    made = _Made("terminal", command, name, [*problems, *_wrong_input(input), *_wrong_pass_env(pass_env)], policies)
    runtime = Terminal(**made.program(env, pass_env, cwd), input=input, rows=rows, cols=cols)
    return made.tool(
        runtime,
        parameters,
        actions,
        description=description,
        source="terminal",
        output=output,
        questions=QUESTIONS,
        action_parameters=ACTION_PARAMETERS,
    )


class _Made:
    """A program tool that is being made in Python: the steps that both kinds share."""

    def __init__(
        self,
        kind: str,
        command: str | Sequence[str],
        name: str | None,
        problems: list[str],
        policies: Policies,
        *,
        shell: bool = False,
    ) -> None:
        words = command if isinstance(command, str) else list(command)
        self._name = _name_of(words, kind) if name is None else name
        self._policies = policies
        on_crash: object = policies.get("on_crash")
        if on_crash == "external":
            problems.append(f'a {kind} takes no completion key: on_crash="external" is for functions')
        if machine.no_programs:
            problems.append(machine.no_programs)
        if problems:
            raise ConfigError([f"tool `{self._name}`: {problem}" for problem in problems])
        from keephold.tools.template import CommandLine

        given: Any = words
        if shell:
            first, *rest = [words] if isinstance(words, str) else words or [""]
            given = {"program": first, "args": rest, "shell": True}
        self._line = CommandLine.parse(given, f"the command of tool `{self._name}`")

    def program(self, env: Mapping[str, str] | None, pass_env: Sequence[str], cwd: str | None) -> dict[str, Any]:
        here = str(Path.cwd())
        return {
            "line": self._line,
            "env": dict(env or {}),
            "pass_env": tuple(pass_env),
            "cwd": os.path.normpath(Path(here, cwd or ".")),
            "root": here,
        }

    def tool(
        self,
        runtime: ToolRuntime,
        parameters: Mapping[str, Any] | None,
        actions: Sequence[Action],
        *,
        output: OutputPolicy | None,
        action_parameters: Mapping[str, Mapping[str, Any]] = {},
        **fields: Any,
    ) -> Tool:
        named = tool_fields(self._name, actions=actions, **fields, **self._policies)
        parameters = {"type": "object", "properties": {}} if parameters is None else parameters
        check_parameters(self._name, parameters, named["actions"], action_parameters)
        return Tool(
            runtime=runtime,
            parameters=parameters,
            action_parameters=action_parameters,
            output=OutputPolicy(dispatch=_TAIL, model=_TAIL) if output is None else output,
            **named,
        )


_TAIL = OutputView(window="tail")


def _name_of(command: str | list[str], kind: str) -> str:
    """Return the name of the program with the characters a tool's name may have."""
    first = next(iter(command.split() if isinstance(command, str) else command), "").strip("\"'")
    if "{{" in first or "{%" in first:
        raise ConfigError([f"{kind} {command!r}: the call decides which program runs; give the tool a `name`"])
    return re.sub("[^A-Za-z0-9_-]", "_", Path(first).name)[:64] or kind


def _wrong_input(input: object) -> list[str]:
    return [] if input in ("line", "raw") else [f'input must be "line" or "raw", not {input!r}']


def _wrong_pass_env(pass_env: object) -> list[str]:
    wrong = wrong_names(pass_env)
    return [] if wrong is None else [f"pass_env {wrong}"]
