"""Finds mistakes in the commands and templates of a configuration that still parse.

Without a shell, `|` or `>` is an argument, and `["ls -l"]` names no program. In templates, only certain mistakes are
reported: a variable that nothing sets, or an unknown key that is written out, as in `tool.arguments.path`.
"""

import difflib
import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta, nodes

from keephold.config.source import TOOLS, KeyPath, dotted

_OPERATORS = frozenset({"|", "||", "&&", ";", ">", "<", ">>", "2>&1", "&"})
_ENDS_WITH_SEMICOLON = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
WORD = re.compile(r"""(?: "(?:\\.|[^"\\])*" | '[^']*' | \\. | [^\s"'\\] )+""", re.DOTALL | re.VERBOSE)
environment = Environment()
"""Only finds the tags of a template."""


def texts(command: Any) -> Iterator[tuple[KeyPath, str]]:
    """Yield every template of a well-formed command with its key below `command`."""
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
    """Yield the words that only a shell understands, of a well-formed command without one."""
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
    """Return the program of a command; None if the arguments of the call decide it."""
    if isinstance(command, dict):
        word = "sh" if command.get("shell") else str(command["program"])
    elif isinstance(command, list):
        word = command[0]
    else:
        first = re.match(r"""\s*(?:"([^"]*)"|'([^']*)'|(\S+))""", command)
        word = "" if first is None else next(part for part in first.groups() if part is not None)
    return None if "{{" in word or "{%" in word else word


def which(program: str, directory: str, env: dict[str, str]) -> str | None:
    """Return the path of the program as a tool with this directory and environment would find it."""
    if "/" in program:
        return shutil.which(str(Path(directory, program)))
    return shutil.which(program, path=env.get("PATH", os.environ.get("PATH")))


def missing(command: Any, directory: str) -> str:
    """Return the sentence for a program that `which` does not find."""
    program = program_of(command) or ""
    if isinstance(command, list) and " " in program:
        return f'there is no program "{program}"; one word an element, or write the command as a string'
    if isinstance(command, dict) and " " in program:
        return f'there is no program "{program}"; put its arguments in `args`, or add shell = true'
    if "/" in program:
        return f"there is no program {Path(directory, program)}; a relative path counts from the tool's `cwd`"
    return f"program `{program}` is not in PATH; install it, or write its whole path"


def _unquoted(command: str) -> list[str]:
    """Return the words of a string with their quotes, and `x` in place of each `{{ … }}` and `{% … %}`."""
    parts = environment.lex(command)
    return WORD.findall("".join(text if kind == "data" else "x" for _, kind, text in parts))


SEEN = {
    "tool": ("name", "arguments", "answers", "options"),
    "context": ("action", "root", "cwd", "conversation_id", "turn_id", "call_id"),
}
"""The names that templates see (F1)."""


def unknown_names(text: str, parameters: Collection[str] | None, tool: str) -> list[str]:
    """Return a sentence for each unknown name in a template; None as `parameters` means that they are not known."""
    try:
        tree = environment.parse(text)
        unset = meta.find_undeclared_variables(tree) - SEEN.keys() - environment.globals.keys()
    except TemplateSyntaxError:
        return []
    found = [_unknown_variable(name, parameters or ()) for name in sorted(unset)]
    for path in paths(tree):
        found += _unknown_key(path, parameters, tool)
    return list(dict.fromkeys(found))


def _unknown_variable(name: str, parameters: Collection[str]) -> str:
    near = difflib.get_close_matches(name, parameters, n=1)
    meant = [f"tool.arguments.{name if name in parameters else near[0]}"] if near else []
    meant += [f"{seen}.{name}" for seen, keys in SEEN.items() if name in keys]
    meant += difflib.get_close_matches(name, SEEN, n=1)
    right = f"did you mean `{{{{ {meant[0]} }}}}`?" if meant else "a parameter is `{{ tool.arguments.<name> }}`"
    return f"`{name}` is unknown: templates see `tool` and `context`; {right}"


def _unknown_key(path: tuple[str, ...], parameters: Collection[str] | None, tool: str) -> Iterator[str]:
    match path:
        case (seen, key, *_) if key not in SEEN[seen]:
            yield f"`{seen}.{key}` is unknown; {_known(key, SEEN[seen])}"
        case ("tool", "arguments", name, *_) if parameters is not None and name not in parameters:
            yield f"`tool.arguments.{name}`: `{tool}` has no such parameter; " + (
                _known(name, parameters) if parameters else f"add [{dotted((*TOOLS, tool, 'parameters', name))}]"
            )


def _known(key: str, known: Collection[str]) -> str:
    listed = ", ".join(f"`{each}`" for each in known)
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean `{near[0]}`?" if near else ""
    return f"known: {listed}{hint}"


def paths(tree: nodes.Template) -> Iterator[tuple[str, ...]]:
    """Yield every chain of written-out keys that begins with `tool` or `context`."""
    own = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    for node in tree.find_all((nodes.Getattr, nodes.Getitem)):
        keys: list[str] = []
        inner: nodes.Node = node
        while isinstance(inner, nodes.Getattr | nodes.Getitem):
            key = _written_out(inner)
            keys = [] if key is None else [key, *keys]
            inner = inner.node
        if isinstance(inner, nodes.Name) and inner.name in SEEN and inner.name not in own and keys:
            yield (inner.name, *keys)


def _written_out(node: nodes.Getattr | nodes.Getitem) -> str | None:
    if isinstance(node, nodes.Getattr):
        return node.attr
    return node.arg.value if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str) else None
