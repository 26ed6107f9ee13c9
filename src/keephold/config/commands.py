"""Finds mistakes in the commands and templates of a configuration that still parse.

Without a shell, `|` or `>` is an argument, and `["ls -l"]` names no program. In templates, only certain mistakes are
reported: a variable that nothing sets, or an unknown key that is written out, as in `tool.arguments.path`.

It also finds values of calls where they can do more than a value should (K3). A value is always within one argument,
and in the script of a shell it is a parameter. That does not help where the program itself reads the argument as code
(`python -c`, `awk`, `su -c`, a shell in a shell) or as an option (`-x`). keephold cannot know all programs, so these
are warnings, for the programs and positions that are known.
"""

import difflib
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from jinja2 import Environment, TemplateSyntaxError, meta, nodes

from keephold.config.source import TOOLS, KeyPath, dotted
from keephold.tools.shell import SHELLS, script_of

_OPERATORS = frozenset({"|", "||", "&&", ";", ">", "<", ">>", "2>&1", "&"})
_ENDS_WITH_SEMICOLON = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
WORD = re.compile(r"""(?: "(?:\\.|[^"\\])*" | '[^']*' | \\. | [^\s"'\\] )+""", re.DOTALL | re.VERBOSE)
environment = Environment()
"""Only finds the tags of a template."""
SEEN = {
    "tool": ("name", "arguments", "answers", "options"),
    "context": ("action", "root", "cwd", "conversation_id", "turn_id", "call_id"),
}
"""The names that templates see (F1)."""
_ALL = 1000
_WITH_TWO = {"--arg": 2, "--argjson": 2, "--slurpfile": 2, "--rawfile": 2}
_VERSIONED = re.compile(r"(python|pypy|perl|ruby|lua|php)[0-9.]+")
_HARMLESS = frozenset(("echo", "printf", "test", "[", "cd", "exit", "return", "export", "read"))
"""Programs of which no option does harm."""
_BETWEEN = frozenset(("|", "||", "&&", ";", "&", "do", "then", "else", "{", "(", "!"))
_REDIRECTS = re.compile(r"[0-9]*(>>?|<|>&|<<<)$")
_MARK = re.compile("\0([0-9]+)\0")
_SYNTAX = ("a'b", 'a"b', "a;b", "a$(b)", "a`b", "a\nb", "a(b)", "a{b}", "a|b", "a\\b", "a b")
_OPTIONS = ("-", "-a", "-rf", "--all", "--output=a")


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


class _Code(NamedTuple):
    """The arguments that a program reads as code."""

    options: tuple[str, ...] = ()
    """Options with code as their value."""
    positions: range = range(0)
    """Which of the arguments that belong to no option."""
    others: Mapping[str, int] = {}
    """Other options that take values, and how many."""
    instead: str = ""
    """An option with which no positional argument is code."""


_AWK = _Code(("-e", "--source"), range(1), {"-v": 1, "-F": 1}, "-f")
_SQL = _Code(("-c", "-cmd"), range(1, _ALL))
_CODE: Mapping[str, _Code] = {
    **dict.fromkeys(("python", "pypy"), _Code(("-c",))),
    **dict.fromkeys(("su", "runuser", "script", "psql", "expect"), _Code(("-c", "--command"))),
    **dict.fromkeys(("perl", "ruby", "lua", "osascript", "Rscript", "mysql", "mariadb"), _Code(("-e", "-E"))),
    **dict.fromkeys(("node", "nodejs", "bun"), _Code(("-e", "-p", "--eval", "--print"))),
    "php": _Code(("-r",)),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _AWK),
    **dict.fromkeys(("sed", "gsed"), _Code(("-e", "--expression"), range(1), {}, "-f")),
    "jq": _Code((), range(1), _WITH_TWO, "-f"),
    **dict.fromkeys(("sqlite3", "duckdb"), _SQL),
    "ssh": _Code((), range(1, _ALL), dict.fromkeys(("-p", "-i", "-l", "-o", "-F", "-J"), 1)),
    "eval": _Code((), range(_ALL)),
}


class _Value(NamedTuple):
    """A `{{ … }}` that the call decides."""

    name: str
    schema: Mapping[str, Any]


def risky_values(command: Any, parameters: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each value that the program would read as code or as an option, of a well-formed command."""
    reading = _Reading(parameters)
    words = [reading.marked(text) for _, text in texts(command)]
    if isinstance(command, dict) and command.get("shell"):
        found = reading.script(words[0])
    elif isinstance(command, str):
        found = reading.command([_without_quotes(word) for word in WORD.findall(words[0])])
    else:
        found = reading.command(words)
    yield from dict.fromkeys(found)


class _Reading:
    """Looks at the words of one command. A value in them is a mark."""

    def __init__(self, parameters: Mapping[str, Mapping[str, Any]]) -> None:
        self._parameters = parameters
        self._values: list[_Value | None] = []

    def marked(self, template: str) -> str:
        """Return the text of a template, with a mark for each value and without its blocks."""
        made, inside = "", ""
        try:
            for _, kind, text in environment.lex(template):
                if kind == "data":
                    made += text
                elif kind == "variable_begin":
                    inside = ""
                elif kind == "variable_end":
                    self._values.append(self._value(inside))
                    made += f"\0{len(self._values) - 1}\0"
                else:
                    inside += text
        except TemplateSyntaxError:  # a problem of its own
            return ""
        return made

    def _value(self, expression: str) -> _Value | None:
        """Return the value, or None if the call does not decide it."""
        tree = environment.parse(f"{{{{{expression}}}}}")
        found = list(paths(tree))
        for path in found:
            if path[:2] == ("tool", "arguments") and len(path) > 2:
                return _Value(f"parameter `{path[2]}`", self._parameters.get(path[2], {}))
        by_call = any(path[:2] in (("tool", "arguments"), ("tool", "answers")) for path in found)
        if by_call or meta.find_undeclared_variables(tree) - {"tool", "context"}:  # such as the variable of a loop
            return _Value(f"`{{{{ {expression.strip()} }}}}`", {})
        return None

    def command(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the risks of a command without a shell; the script of a shell in it is read as one."""
        for at, word in enumerate(words):
            script = script_of(words, at) if PurePath(word).name in SHELLS else None
            if script is not None:
                yield from self.script(words[script])
                words = [*words[:script], "", *words[script + 1 :]]
        yield from self._simple(words, shell=False)

    def script(self, text: str) -> Iterator[str]:
        """Yield the risks of a shell's script, in which values are parameters."""
        simple: list[str] = []
        for word in [*WORD.findall(text), ";"]:
            if word not in _BETWEEN:
                simple.append(_without_quotes(word.removesuffix(";")))
            if word in _BETWEEN or word.endswith(";"):
                yield from self._simple(simple, shell=True)
                simple = []

    def _simple(self, words: Sequence[str], *, shell: bool) -> Iterator[str]:
        """Yield the risks of one command; behind `sudo`, `env` and the like another one is found by its name."""
        code: dict[int, tuple[str, str]] = {}
        for at, word in enumerate(words):
            name = PurePath(word).name
            nested = script_of(words, at) if shell and name in SHELLS else None
            if nested is not None:
                code[nested] = f"{name} -c", f"""write `{name} -c '… "$1" …' {name} {{{{ … }}}}`"""
            for position, reader in _code(name, words, at):
                code[position] = reader, "pass it as an argument of its own, or on standard input"
        for position, (reader, advice) in code.items():
            for mark in _MARK.finditer(words[position]):
                value = self._values[int(mark[1])]
                if value is not None and _admits(value.schema, _SYNTAX):
                    yield f"{value.name} becomes part of the code that `{reader}` runs; {advice}"
        yield from self._options(words, code)

    def _options(self, words: Sequence[str], code: Mapping[int, object]) -> Iterator[str]:
        """Yield the values at the start of an argument, where `-` makes an option."""
        if not words or PurePath(words[0]).name in _HARMLESS:
            return
        program = _MARK.sub("…", words[0])
        for at, word in enumerate(words[1:], 1):
            if word == "--" or at in code:  # arguments behind code are its own
                return
            before, mark = words[at - 1], _MARK.match(word)
            value = None if mark is None else self._values[int(mark[1])]
            of_option = before.startswith("-") or words[max(0, at - 2)] in _WITH_TWO
            if value is None or of_option or _REDIRECTS.search(before):
                continue
            if _admits(value.schema, _OPTIONS):
                yield (
                    f"{value.name} is an option of `{program}` if it begins with `-`; write `--` before it, if "
                    f"`{program}` knows that, or give the parameter a `pattern` such as '^[^-]'"
                )


def _code(name: str, words: Sequence[str], program: int) -> Iterator[tuple[int, str]]:
    """Yield the positions of the arguments that a program reads as code, and what reads them."""
    versioned = _VERSIONED.fullmatch(name)
    known = _CODE.get(versioned[1] if versioned else name)
    if known is None:
        return
    positions = range(0) if known.instead and known.instead in words else known.positions
    at, count = program + 1, 0
    while at < len(words):
        word = words[at]
        option = next((each for each in known.options if _is_option(word, each)), None)
        if option is not None:
            at, positions = at + 1, range(0)
            if at < len(words):
                yield at, f"{name} {option}"
        elif word.startswith("-") and word != "-":
            at += known.others.get(word, 0)
        else:
            if count in positions:
                yield at, name
            count += 1
        at += 1


def _is_option(word: str, option: str) -> bool:
    """Whether an argument is this option, or a cluster of short ones that ends with it: `-ne` of `perl`."""
    if re.fullmatch("-[A-Za-z]", option):
        return re.fullmatch(f"-[A-Za-z]*{option[1]}", word) is not None
    return word == option


def _admits(schema: Mapping[str, Any], texts: Sequence[str]) -> bool:
    """Whether a parameter may have one of these texts as its value, as far as its schema says."""
    if isinstance(schema.get("enum"), list):
        return any(text in schema["enum"] for text in texts)
    if "const" in schema or schema.get("type") in ("integer", "number", "boolean", "null"):
        return False
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        try:
            return any(re.search(pattern, text) for text in texts)
        except re.error:
            return True
    return True


def _without_quotes(word: str) -> str:
    """Return an argument as its program gets it, roughly: without quotes around it."""
    return re.sub(r"""\A(["'])(.*)\1\Z""", r"\2", word, flags=re.DOTALL)
