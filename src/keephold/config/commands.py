"""What a command of the configuration is made of, and the mistakes that leave it a command all the same.

A command without a shell is a program and its arguments. Who thinks of a shell writes `|` or `>` there, and the program
gets it as an argument; or writes `["ls -l"]`, and no program has such a name.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment

from keephold.config.locate import KeyPath

_OPERATORS = frozenset({"|", "||", "&&", ";", ">", "<", ">>", "2>&1", "&"})
_ENDS_WITH_SEMICOLON = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_WORD = re.compile(r"""(?: "(?:\\.|[^"\\])*" | '[^']*' | \\. | [^\s"'\\] )+""", re.DOTALL | re.VERBOSE)
_environment = Environment()  # it only finds where a template's tags are


def texts(command: Any) -> Iterator[tuple[KeyPath, str]]:
    """Every template of a well-formed command with its key below `command`."""
    match command:
        case str():
            yield (), command
        case list():
            yield from (((at,), word) for at, word in enumerate(command))
        case {"shell": True}:
            yield (), " ".join([command["program"], *command.get("args", [])])
        case _:
            yield ("program",), command["program"]
            yield from ((("args", at), word) for at, word in enumerate(command.get("args", [])))


def operators(command: Any) -> Iterator[tuple[KeyPath, str]]:
    """The words of a well-formed command that only mean something to a shell, where there is none."""
    if isinstance(command, dict) and command.get("shell"):
        return
    words = [((), word) for word in _unquoted(command)] if isinstance(command, str) else list(texts(command))
    for at, (key, word) in enumerate(words):
        ends_exec = word == ";" and any(before in _ENDS_WITH_SEMICOLON for _, before in words[:at])
        if word in _OPERATORS and not (ends_exec and not isinstance(command, str)):
            plain = f"'{word}'" if isinstance(command, str) else f"{{{{ '{word}' }}}}"
            yield (
                key,
                f"`{word}` would be an argument of the program, for no shell reads it; for a script write "
                f'`command = {{ program = "…", shell = true }}`, for an argument `{plain}`',
            )


def program_of(command: Any) -> str | None:
    """The program a command starts, or None where that is decided by the arguments of the call."""
    if isinstance(command, dict):
        word = "sh" if command.get("shell") else str(command["program"])
    elif isinstance(command, list):
        word = command[0]
    else:
        first = re.match(r"""\s*(?:"([^"]*)"|'([^']*)'|(\S+))""", command)
        word = "" if first is None else next(part for part in first.groups() if part is not None)
    return None if "{{" in word or "{%" in word else word


def which(program: str, directory: str, env: dict[str, str]) -> str | None:
    """The path of the program as a tool in that directory, with that environment, would find it."""
    if "/" in program:
        return shutil.which(str(Path(directory, program)))
    return shutil.which(program, path=env.get("PATH", os.environ.get("PATH")))


def missing(command: Any, directory: str) -> str:
    """The sentence for a program that `which` does not find."""
    program = program_of(command) or ""
    if isinstance(command, list) and " " in program:
        return f'there is no program "{program}"; one word an element, or write the command as a string'
    if isinstance(command, dict) and " " in program:
        return f'there is no program "{program}"; put its arguments in `args`, or add shell = true'
    if "/" in program:
        return f"there is no program {Path(directory, program)}; a relative path counts from the tool's `cwd`"
    return f"program `{program}` is not in PATH; install it, or write its whole path"


def _unquoted(command: str) -> list[str]:
    """The words of a string with their quotes, and something harmless in place of each `{{ … }}` and `{% … %}`."""
    parts = _environment.lex(command)
    return _WORD.findall("".join(text if kind == "data" else "x" for _, kind, text in parts))
